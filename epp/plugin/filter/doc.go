// Package filter holds the plugins that keep or drop candidates of a pick: by role and label, by what they have in their prefix
// cache, and by how full they are. Saturation detectors and admitters, which refuse requests for the load, are here too.
//
// A round and its candidates enter; the candidates that may serve leave, in place and in their order. Filters allocate nothing.
// They do not rate what they keep (epp/plugin/scorer does), and read no metrics: the load comes with the candidates.
package filter
