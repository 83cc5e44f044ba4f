// Package nixl implements [transfer.Notifier] and [transfer.Transport] with the real NIXL library, with which vLLM's engines
// move their KV.
//
// An [Agent] only sends and receives notifications: it takes the metadata of remote agents, as their side channels serve it,
// and short messages for them. It registers no memory, so no peer can read this process. A [Transport] also registers memory
// for others to read, and reads theirs: it takes spans of a peer's regions, and writes their bytes into the caller's
// buffers. Each can load the other's metadata, for messages.
//
// The library is not linked. It is found and opened when the first agent starts, through its C interface (libnixl_capi.so),
// which this package declares itself, so a build needs neither header nor C++. It needs the tag nixl, cgo and Linux. Without
// them, New and NewTransport return [transfer.ErrNotSupported], and the program contains nothing of it.
//
// The library can crash its process: it has been seen to crash when peers die at the wrong moment, and it does when memory
// that a peer reads is unmapped. So it belongs into a process that may die and be restarted.
//
// The package does not speak to side channels, authenticate peers, or prevent a peer from writing where it may read. It
// moves memory of the host only, not of a GPU.
package nixl
