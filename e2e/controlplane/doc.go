// Package controlplane runs a real Kubernetes control plane for tests: etcd and kube-apiserver, as child processes on loopback.
//
// The results are clients' configurations: of the administrator, and of service accounts as in a pod, with the rights that
// RBAC grants them. The API server can be stopped and restarted with the same address and data, and etcd's history can be
// deleted.
//
// A Deployment makes no pods, and a pod becomes ready when a test writes so into its status; package kube, a module of its
// own, adds controllers and nodes. Admission is that of production, with pod security, which namespaces request by labels.
// Only the check that a pod's ServiceAccount exists is off, since no controller makes one.
//
// The programs come from .tools/kube, which `make .tools/kube` builds from Go modules. Everything is removed when the test
// ends; if the test's process is killed, Linux kills the children with it.
package controlplane
