// Package relay sends engines' answers to clients.
//
// An engine's answer enters. The same answer leaves, with headers that say what was decided and where the time went; what is
// known only at the end goes into trailers. Streams are passed on event by event, so that an error event can end them at any
// time. The client's name of the model replaces the engine's, and prefill's count of cached tokens replaces decode's, if the
// caller says so. The texts of errors, and compressed answers, stay as the engine wrote them.
//
// The package does not send legs. If an answer fails before its first byte, the caller decides what happens.
package relay
