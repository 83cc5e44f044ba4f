// Package nixl is a [transfer.Notifier] and a [transfer.Transport] over the real NIXL library: what vLLM's engines move
// their KV with.
//
// In goes the metadata of remote agents, as their side channels hand it out, and short messages for them; out come the
// messages of others. That is all an [Agent] does: it registers no memory, so that nothing of its process can be read by
// others. A [Transport] also registers memory for others to read, and reads theirs: in go spans of a peer's regions, out
// come their bytes, in the caller's buffers. The two understand each other's metadata as far as messages go.
//
// The library is not linked. It is found and opened when the first agent starts, through its C interface
// (libnixl_capi.so), which this package declares itself: it takes no header and no C++ to build. Whoever wants it builds
// with the tag nixl, with cgo, on Linux. Without, New and NewTransport say [transfer.ErrNotSupported], and nothing of it is
// in the program.
//
// The library can take its process down: it has been seen to crash when peers die in the wrong moment, and it does when
// memory that a peer reads is unmapped. So it belongs into a process that may die and be started again.
//
// What it does not do: it speaks no side channel, authenticates nobody, keeps no peer from writing where it may read, and
// moves memory of the host only, not of a GPU.
package nixl
