// Package kubelet is a kubelet for tests: it registers a node with a real API server and runs the pods that are bound to it,
// whose containers are local processes (package container).
//
// The pods that the scheduler binds to the node enter, with the ConfigMaps, Secrets and tokens that they name. Processes
// leave, with the command, environment, files and address of the pod; the pod's status, conditions and events as a kubelet
// reports them; the node's status and its lease; and the containers' logs for kubectl logs. Init containers run in their
// order, and sidecars (init containers that restart) beside the others. Probes of all four kinds work, with all their
// numbers. A container that ends is restarted with a kubelet's pauses. A deleted pod has its preStop hooks run, gets SIGTERM,
// and is killed when its time is over, sidecars last. Pods continue without an API server. The files of a ConfigMap or Secret
// change together, and at once, where a kubelet may take a minute.
//
// [Node.Crash] is a loss of power. A node of the same name may be started after it: it finds its pods, and runs them again.
//
// What it does not do. Of resources it only fills in variables: no limits, eviction, devices, images to pull, garbage to
// collect. Of pods: host namespaces, host paths and privileged containers (refused, with an event and a waiting reason),
// persistent volumes, ephemeral containers, rules for the restarts of single containers, changes of a running container's
// image, host aliases, service links other than to the API server, seccomp. A memory-backed emptyDir is a folder like any
// other. A container may be started before the postStart hook of the one before it is over. Tokens have the mode of their
// volume whatever user the container runs as. Admission at the node (selectors, taints, ports) is left to the scheduler. Of the
// kubelet's API there are logs only: no exec, attach, port-forward or metrics; callers are not asked who they are.
package kubelet
