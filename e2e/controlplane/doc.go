// Package controlplane runs a real Kubernetes control plane for tests: etcd and kube-apiserver, as child processes on loopback.
//
// A Deployment makes no pods, and a pod becomes ready when a test writes so into its status; package kube, a module of its
// own, adds controllers and nodes. Admission is that of production, pod security included, which namespaces ask for by their
// labels; only the check that a pod's ServiceAccount exists is off, since no controller makes one.
//
// Out come clients' configurations: of the administrator, and of service accounts as they would be in a pod, with what RBAC
// grants them and no more. The API server can be stopped and started again with the same address and data, and etcd's history
// can be cut off.
//
// The programs come from .tools/kube, which `make .tools/kube` builds from Go modules. Everything is gone when the test ends;
// should the test's process be killed, Linux kills the children with it.
package controlplane
