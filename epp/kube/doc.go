// Package kube finds the endpoints of the pool, and what its operators say of requests, in a Kubernetes cluster.
//
// In come the objects of one namespace, over watches: an InferencePool, the pods that it selects, and the
// InferenceObjectives and InferenceModelRewrites that name it; or, in selector mode, pods alone. Out go the whole pool as
// epp.Specs each time it changes, 20 ms apart at least, and an epp.Policy that may be asked for at any time. A Watch is a
// Discovery of epp/pool.
//
// A pod serves while it is Ready, has an address and is not being deleted. Each of the pool's target ports is an endpoint,
// <pod>-rank-<i>, where i is the port's place in the pool, also if there is only one: so llm-d names them.
//
// # What is kept
//
// Only what the selector selects, and of a pod only what is used here: labels, address, readiness, and the two annotations
// that limit its ports. Another selector means another watch of pods; the endpoints stay as they were until that has told
// all of its pods.
//
// # When the cluster does not answer
//
// Endpoints and policy stay as they are, whatever is missing: the API server, a grant, the history that a watch wants to go
// on from. The watches try again by themselves, at most a minute apart, and Trouble says what is wrong and what to do. Only
// a pool that was deleted is a pool without endpoints. Before everything has been told once, nothing is applied, so that a
// picker never serves a part of its pool or forgets a rewrite; only objectives and rewrites that it may not read do not hold
// it up.
//
// Every replica of the picker serves, so there is no leader. Kinds that the cluster does not have are asked for again, too,
// and used as soon as they are there.
//
// # What it does not do
//
// It writes nothing to the cluster, and never asks an endpoint anything: epp/pool does. Of an InferencePool's gateway side
// (endpointPickerRef, status) it reads nothing.
package kube
