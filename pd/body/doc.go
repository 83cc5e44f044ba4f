// Package body reads and edits the bodies that pass through Tandem as bytes:
// JSON requests and answers, and streams of server-sent events.
//
// It takes the chunks of a body as they arrive, a Table of the members wanted in
// it, and a Sink for text that is wanted while it arrives. Out come the places
// of those members (Scanner), the body with some of them replaced, removed or
// added and every other byte as it was (Edit), the same body with some of them
// blanked while it streams (Blank), an answer with another model's name while
// it streams (Renamer), and the events of a stream (Events). A body is scanned
// once, is never decoded as a whole and never copied.
//
// # What counts as JSON
//
// A scan must find whatever the engine behind us will find: a member that we
// overlook is a member that a client smuggled past us. So:
//
//   - What encoding/json accepts is accepted and has the same members. Names
//     are compared decoded (\u escapes, surrogate pairs, U+FFFD for what is no
//     UTF-8) and case-sensitively. Find returns the last of several.
//   - More is accepted where engines written in Python accept more: a leading
//     UTF-8 byte order mark, and the literals NaN, Infinity and -Infinity.
//   - UTF-16 and UTF-32, which Python detects and decodes, are refused.
//   - The grammar outside of strings is checked everywhere. What lies inside of
//     strings is not: bad escapes and control characters are the engine's to
//     refuse, and looking for them would cost more than all the rest.
//   - A body that is no JSON has no members that could be told from text.
//     Table.Mentions tells whether it could hold one to a lenient reader.
//
// # What it does not do
//
// The package knows no API and no policy: which members are wanted and what
// becomes of them is the callers' business. The exceptions are conventions of
// event streams and answers, each in one place: "error" and [DONE] in sse.go,
// the names of token counts in usage.go, the places of the model's in rename.go.
// It does no I/O but through the io.Reader of Blank, starts no goroutines, and
// imports only the standard library.
package body
