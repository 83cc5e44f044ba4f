// Package policy reads a pool's objectives and model rewrites from a file, for pickers that no cluster tells them.
//
// In comes a YAML stream of the objects that Kubernetes would hold: kinds InferenceObjective and InferenceModelRewrite, in
// API version llm-d.ai/v1alpha2 or the older inference.networking.x-k8s.io/v1alpha2, each as a document of its own or in a
// List. Out goes an epp.Policy. The reading is strict: every problem is told at once with its line, and a file with any of
// them is not used; what was last read well stays in use.
//
// Names are unique in the file, whatever their namespaces and API groups. poolRef must be there, as in Kubernetes, and is
// not compared: the file belongs to one picker. Without creationTimestamp rewrites count as equally old, and the first name
// goes before the others. A target without a weight has weight 1. Status is skipped.
package policy
