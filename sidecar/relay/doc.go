// Package relay sends engines' answers to clients.
//
// What enters is an engine's answer. What leaves is the same answer, with what was decided and where the time went in its
// headers (in trailers, for what is known only at its end). Streams are passed on event by event, so that an error event can
// end them at any time. On the way the client's name of the model replaces the engine's, and prefill's count of cached
// tokens replaces decode's where the caller says so. The texts of errors stay as the engine wrote them, and so do answers
// that it compressed.
//
// It does not send legs, and does not decide what happens when an answer fails before its first byte: the caller does.
package relay
