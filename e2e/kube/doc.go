// Package kube runs a real Kubernetes control plane for tests: etcd and kube-apiserver as child processes.
//
// Out come clients' configurations: of the administrator, and of service accounts as they would be in a pod, with what RBAC
// grants them and no more. Admission is that of production, pod security included, which namespaces ask for by their labels;
// only that pods need a ServiceAccount object is not checked. The API server can be stopped and started again with the same
// address and data, and etcd's history can be cut off.
//
// There is no controller-manager, scheduler or kubelet: a Deployment makes no pods, and a pod becomes ready when somebody
// writes so into its status. The programs come from .tools/kube, which `make .tools/kube` builds from Go modules. Everything
// listens on loopback and is gone when the test ends; should the test's process be killed, Linux kills the children with it.
package kube
