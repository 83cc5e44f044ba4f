// Package kube runs a Kubernetes cluster of processes for tests. It is a module of its own, so that programs and their tests
// do not depend on its libraries.
//
// [StartCluster] adds to the control plane of package controlplane: kube-controller-manager with all its controllers and
// kube-scheduler, which make Deployments, Jobs, EndpointSlices, evictions and the end of namespaces work; all of admission;
// and package services for Services and names. It has no nodes: package kubelet runs them, on package container, in whose
// namespaces all of it lives. So tests that need a cluster call container.Enter in their TestMain, and there is one cluster
// at a time. Lost nodes are noticed, and their pods made again, within seconds ([NodeGrace], [Toleration]).
//
// It does not have a second API server, certificates of clients, the Node authorizer, cloud controllers, storage, or metrics
// of pods for an autoscaler. Everything is removed when the test ends; if the test's process is killed, Linux kills the
// children with it.
package kube
