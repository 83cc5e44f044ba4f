// Package answer reads what a client of an engine's API gets, for tests: whole answers and streams, of every API that is split,
// from an engine or through a proxy.
//
// An HTTP response enters, and an Answer leaves: the tokens, the usage, how the answer ended, and Tandem's headers. Streams are
// read strictly: a line that server-sent events do not have is an error, and so is an event whose name is not its type. The
// package sends no requests of its own choice, and does not judge.
package answer
