// Package kube runs a Kubernetes cluster of processes for tests. It is a module of its own, so that programs and their tests
// do not depend on what it takes.
//
// [StartCluster] adds to the control plane of package controlplane what makes it a cluster: kube-controller-manager with all
// its controllers and kube-scheduler, which Deployments, Jobs, EndpointSlices, evictions and the end of namespaces come from;
// all of admission; and package services for Services and names. It has no nodes: package kubelet runs some, on package
// container, in whose namespaces all of it lives. So tests that want a cluster call container.Enter in their TestMain, and
// there is one cluster at a time. Nodes that are gone are found out, and their pods made again, within seconds ([NodeGrace],
// [Toleration]).
//
// What it does not have: a second API server, certificates of clients, the Node authorizer, cloud controllers, storage, and
// metrics of pods for an autoscaler. Everything is gone when the test ends; should the test's process be killed, Linux kills
// the children with it.
package kube
