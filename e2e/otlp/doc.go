// Package otlp is a collector of traces for tests.
//
// In come spans over OTLP/gRPC, as programs send them; out comes what a test asks for: the spans of a trace, with the name of
// the service that each is of. Nothing is thrown away before the test ends, and nothing is passed on. Metrics and logs are
// not taken.
package otlp
