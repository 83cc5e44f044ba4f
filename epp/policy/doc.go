// Package policy reads a pool's objectives and model rewrites from a file, for pickers without a cluster.
//
// A YAML stream of Kubernetes objects enters: kinds InferenceObjective and InferenceModelRewrite, in API version
// llm-d.ai/v1alpha2 or the older inference.networking.x-k8s.io/v1alpha2, each as a document or in a List. An epp.Policy
// leaves. The reading is strict: it reports every problem with its line, and a file with a problem is not used; the last good
// one stays in use.
//
// Names are unique in the file, whatever their namespaces and API groups. poolRef is required, as in Kubernetes, and not
// compared: the file belongs to one picker. Rewrites without creationTimestamp count as equally old, so the first name
// counts. A target without a weight has weight 1. Status is ignored.
package policy
