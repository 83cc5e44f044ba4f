// Package podwatch follows the addresses of the pods that an InferencePool selects.
//
// The name of a pool enters, and how to reach the API server. Watch.Has leaves, which may be asked at any time: whether an
// address is that of one of these pods. A pod counts from when it has an address, which is before it is Ready and a picker
// names it, until it has ended or is deleted.
//
// The package speaks the API server's REST API over net/http: a list, then a watch that begins at the list's version, and
// another list when the watch ends. client-go would make the sidecar several times as large, for two kinds of objects.
//
// While the API server does not answer, the addresses stay as they are. Nothing is allowed before the pods were known once.
//
// The package writes nothing to the cluster. It does not choose pods: pickers do, which know load and readiness.
package podwatch
