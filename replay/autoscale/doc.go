// Package autoscale has the autoscalers that a replay compares: the algorithm of Kubernetes' HorizontalPodAutoscaler, by the queues of
// engines, by the use of their KV caches or by the plugin replica-sizer, and a plan that knows the sizes of every moment beforehand.
//
// What a replay sees of the roles enters an autoscaler, and the wanted sizes leave it. It starts no engines, and reads no clock: package
// replay does both.
package autoscale
