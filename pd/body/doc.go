// Package body reads and edits the bodies that pass through Tandem: JSON requests and answers, and streams of server-sent
// events.
//
// The chunks of a body enter, with a Table of the members to find. What leaves are the offsets of these members (Scanner),
// their text (Sink), the body with members replaced, removed or added and all other bytes unchanged (Edit), the same body
// with members blanked while it streams (Blank), an answer with another model's name while it streams (Renamer), and the
// events of a stream (Events). A body is scanned once, is never decoded as a whole and never copied.
//
// # What counts as JSON
//
// A scan must find every member that the engine finds. A client could smuggle a member that only the engine sees. So:
//
//   - What encoding/json accepts is accepted and has the same members. Names are compared decoded (\u escapes, surrogate pairs,
//     U+FFFD for invalid UTF-8) and case-sensitively. Find returns the last of several equal members.
//   - What engines written in Python accept beyond that is accepted too: a leading UTF-8 byte order mark, and the literals NaN,
//     Infinity and -Infinity.
//   - UTF-16 and UTF-32, which Python detects and decodes, are refused.
//   - The grammar outside of strings is checked everywhere. Inside of strings it is not: the engine refuses bad escapes and
//     control characters, and a check here would cost more than the rest of the scan.
//   - A body that is not JSON has no members. Table.Mentions reports whether a lenient reader could find one in it.
//
// # What it does not do
//
// The package knows no API and no policy: the callers decide which members are wanted and what happens to them. The
// exceptions are conventions of event streams and answers, each in one place: "error" and [DONE] in sse.go, the names of
// token counts in usage.go, the places of the model's name in rename.go. The only I/O is through the io.Reader of Blank and
// Sentry. The package starts no goroutines, and imports only the standard library.
package body
