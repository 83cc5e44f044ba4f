// Package message reads the protobuf messages of gRPC bodies while they arrive.
//
// Chunks of a body enter, cut anywhere. The fields that a list of Field names leave through a Sink, strings in the pieces that they
// came in; all other fields are skipped. Between two chunks a Reader keeps at most the ten bytes of a number that was cut.
//
// The package knows no engine's messages, changes no body, and does not decompress.
package message
