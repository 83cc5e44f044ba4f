// Package kube reads the endpoints of a pool, and its objectives and rewrites, from a Kubernetes cluster.
//
// The objects of one namespace enter, over watches: an InferencePool, the pods that it selects, the InferenceObjectives
// and InferenceModelRewrites that name it, and VariantAutoscalings; in selector mode, only pods. The whole pool leaves as epp.Specs each time it
// changes, at least 20 ms apart, and an epp.Policy that may be read at any time. A Watch is a Discovery of epp/pool.
//
// A pod serves while it is Ready, has an address and is not being deleted. Each of the pool's target ports is an endpoint,
// <pod>-rank-<i>, as in llm-d, where i is the port's index in the pool, even if there is only one.
//
// # What the package keeps
//
// It keeps only the selected pods, and of a pod only labels, controller, address, readiness, the two annotations that limit its
// ports, and its deletion cost. A changed selector needs another watch of pods; the endpoints stay as they were until that watch has reported all of
// its pods.
//
// # Variants
//
// The endpoints of a pod whose Deployment, LeaderWorkerSet, StatefulSet or other owner is the scale target of a VariantAutoscaling
// have its name and cost as labels, unless the pod has these labels itself.
//
// # When the cluster does not answer
//
// Endpoints and policy stay as they are, whatever fails: the API server, a permission, or the continuation of a watch. The
// watches retry by themselves, at most a minute apart, and Trouble says what is wrong and what to do. Only a deleted pool has
// no endpoints. Nothing is applied before everything was reported once, so that a picker never serves a part of its pool or
// ignores a rewrite. Objectives and rewrites that the picker may not read are the exception: it does not wait for them. Nor does
// it for VariantAutoscalings that it cannot read, for whatever reason; without the permission, they are not followed.
//
// Every replica of the picker serves, so there is no leader. Kinds that the cluster does not have are requested again too,
// and used as soon as they exist.
//
// # What it does not do
//
// The package writes nothing to the cluster but the deletion cost of a pod, when its caller asks, and sends nothing to endpoints (epp/pool does). It does not read
// endpointPickerRef and status of an InferencePool, which are for gateways.
package kube
