// Package answer reads what a client of an engine's API gets, for tests: whole answers and streams, of chat and completions,
// from an engine or through a proxy.
//
// An HTTP response enters, and an Answer leaves: the tokens, how the answer ended, and Tandem's headers. Streams are read
// strictly: a line that server-sent events do not have is an error. The package sends no requests of its own choice, and does
// not judge.
package answer
