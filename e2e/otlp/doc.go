// Package otlp is a collector of traces for tests.
//
// Spans enter over OTLP/gRPC, as programs send them. Tests read the spans of a trace, with the name of each span's service.
// Spans are kept until the test ends and are not passed on. Metrics and logs are not accepted.
package otlp
