// Package answer reads what a client of an engine's API gets, for tests: whole answers and streams, of chat and completions,
// from an engine or through anything before it.
//
// In goes an HTTP response, out comes an Answer: the tokens, how it ended, and what Tandem says of it in headers. Streams are
// read strictly: a line that server-sent events do not have is an error. What is asked is the caller's, and it does not judge.
package answer
