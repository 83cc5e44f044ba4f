// Package cluster tests what a user does with a cluster and the Helm chart: install, send requests, scale, kill, roll,
// upgrade, uninstall. The control plane is real, so are Envoy, helm and kubectl; nodes are process kubelets, whose containers
// are processes in namespaces of their own (packages kube, kube/kubelet and kube/container).
//
//	make e2e        all of it, with a table in the end
//	go test ./e2e/kube/cluster -timeout=40m -args -cluster          the same
//	go test ./e2e/kube/cluster -args -cluster -cluster.only='kill|roll'    some of it, and the installation they need
//	go test ./e2e/kube/cluster -args -cluster -cluster.ci            what CI does each time
//
// Without -cluster only the helpers are tested. It needs root on Linux, and the parts that `make tools` fetches.
//
// # On another cluster
//
// With -cluster.real the scenarios run on the cluster that KUBECONFIG names, in the namespace tandem-e2e, which they make and
// delete. The cluster needs
//
//   - a user who may make namespaces and read nodes, and to whom pods can be reached by the API server's proxy,
//   - the images that testdata/images.yaml names; -cluster.values names a file with others,
//   - an address at which the Service of the proxy is reached from here: -cluster.address, else the Service's own,
//   - room for 2 prefill, 2 decode, 2 picker and 2 proxy pods, and one more of each.
//
// Scenarios that need the test's own cluster, such as the death of a process or of a node, are skipped and say so. Traces are
// checked there only, since another cluster cannot reach a collector here.
//
// # What each scenario checks
//
// Load runs through the proxy's Service during the scenario: short and long prompts, whole and streamed, completions and
// chat. Every answer is compared with that of an undisturbed engine: the simulated engine's tokens depend on the bytes of the
// KV cache from which they were made. No request may fail, except for failures that the scenario causes, which are counted:
//
//	ended by event   streams whose decode engine was killed after their first byte: a well-formed error event ends them
//	cut              streams whose sidecar was killed, since no sidecar is left to write that; all on the connections of a killed Envoy
//	refused          503 with a reason and Retry-After, while no engine can serve the request
//
// Afterwards all engines are idle, no hand-off waits for its lease unless the component that could have released it was
// killed (stranded), and the traces of requests are complete.
//
// No package imports this one.
package cluster
