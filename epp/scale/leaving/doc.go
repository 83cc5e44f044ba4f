// Package leaving tells Kubernetes which pods of a role are to go first when the role becomes smaller.
//
// In go the sizes of the roles, and of each pod how many requests it has and how much of its cache requests reuse. Out go values of the annotation
// controller.kubernetes.io/pod-deletion-cost: pods that are to go get [Cost], and lose it when they are to stay. The controller of ReplicaSets deletes
// pods with a lower cost first, all else being equal: before it looks at the cost, it prefers pods that are not ready.
//
// Kubernetes asks not to change the annotation often, because each change is a write to the API server, and an event for all that watch pods. So
// nothing is written unless a role is larger than it should be, or becomes so within scale.Interval; no value tells a load; and a pod is written
// to once in [Pace] at most. Loads are compared by their order of magnitude, so that equal pods do not change places.
//
// Several pickers of a pool write the same, and see each other's values: one that another has written is not written again. Another value,
// which a user has set, is left as it is, and that pod is not chosen.
//
// The package deletes no pods and reads no metrics pages. StatefulSets, and so the groups of a LeaderWorkerSet, ignore the annotation.
package leaving
