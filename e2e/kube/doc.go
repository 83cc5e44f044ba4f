// Package kube runs a real Kubernetes control plane for tests.
//
// [Start] has etcd and kube-apiserver as child processes on loopback, no more: a Deployment makes no pods, and a pod becomes
// ready when somebody writes so into its status. Admission is that of production, pod security included, which namespaces ask
// for by their labels; only that pods need a ServiceAccount object is not checked, since nothing makes one.
//
// [StartCluster] adds what makes it a cluster: kube-controller-manager with all its controllers and kube-scheduler, which
// Deployments, Jobs, EndpointSlices, evictions and the end of namespaces come from; all of admission; and package services for
// Services and names. It has no nodes: package kubelet runs some, on package container, in whose namespaces all of it lives.
// So tests that want a cluster call container.Enter in their TestMain, and there is one cluster at a time. Nodes that are gone
// are found out, and their pods made again, within seconds ([NodeGrace], [Toleration]).
//
// Out come clients' configurations: of the administrator, and of service accounts as they would be in a pod, with what RBAC
// grants them and no more. The API server can be stopped and started again with the same address and data, and etcd's history
// can be cut off.
//
// What it does not have: a second API server, certificates of clients, the Node authorizer, cloud controllers, storage, and
// metrics of pods for an autoscaler. The programs come from .tools/kube, which `make .tools/kube` builds from Go modules.
// Everything is gone when the test ends; should the test's process be killed, Linux kills the children with it.
package kube
