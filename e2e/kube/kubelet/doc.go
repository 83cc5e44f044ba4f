// Package kubelet is a kubelet for tests: it registers a node with a real API server and runs the pods that are bound to
// it, whose containers are local processes (package container).
//
// In go the pods that the scheduler binds to the node, and the ConfigMaps, Secrets and tokens that they name. Out come
// processes with the command, environment, files and address that the pod asks for; the pod's status, conditions and
// events as a kubelet reports them; the node's status and its lease; and the containers' logs for kubectl logs. Init
// containers run in their order, sidecars (init containers that restart) beside the others; probes of all four kinds count
// with all their numbers; what ends is started again with a kubelet's pauses; what is deleted has its preStop hooks run,
// is told to end, and is killed when its time is over, sidecars last. Pods run on while there is no API server. The files
// of a ConfigMap or Secret change all together, and at once, where a kubelet may take a minute.
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
