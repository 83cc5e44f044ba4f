// Package external serves sizes as Kubernetes' external metrics API (external.metrics.k8s.io/v1beta1), which a HorizontalPodAutoscaler with a
// metric of type External reads through the API server, without Prometheus and an adapter.
//
// In goes the name of a metric and a label selector: tandem_desired_replicas with the labels role and variant, or a name of llm-d's Workload
// Variant Autoscaler with the label variant_name. Out come the sizes that fit, with the target AverageValue 1 the number of replicas.
//
// While sizes are not known the answer is 503, and the autoscaler keeps what there is. A cluster has one server of this API: where KEDA or
// prometheus-adapter serves it, this one cannot be registered.
//
// The API server proves who it is by a client certificate, which the server of the port verifies (or does not). Users are not told apart:
// sizes are on the metrics page too.
package external
