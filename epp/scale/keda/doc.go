// Package keda serves sizes to KEDA as an external scaler: the gRPC service externalscaler.ExternalScaler, which triggers of type external
// (KEDA asks) and external-push (KEDA is told) of a ScaledObject name by its address.
//
// In goes the metadata of a trigger, of which role and variant say which size is meant. Out comes that size as the value of a metric
// whose target is 1 for each replica, so that KEDA's autoscaler makes as many; and whether it is more than 0, which is when KEDA starts the
// first replica. A change of the latter is pushed at once.
//
// While sizes are not known the service answers Unavailable, and KEDA's autoscaler keeps what there is. StreamMetricSpec, by which a
// scaler changes its targets, is not served: they do not change.
//
// The package reads and writes KEDA's messages itself: they are few and small, and KEDA's own Go package is part of a module with the
// clients of all clouds.
package keda
