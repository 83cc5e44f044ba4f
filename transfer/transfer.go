package transfer

import (
	"context"
	"errors"
)

// The limits of every transport.
const (
	// MaxMessage is the longest notification, in bytes. Engines send a request id, or a list of them, which is much shorter.
	MaxMessage = 64 << 10
	// MaxName is the longest agent name, in bytes. A Kubernetes object name has at most 253.
	MaxName = 255
	// QueueLength is how many notifications a receiver that does not read them stores. The next one is refused with ErrBusy.
	QueueLength = 1024
)

// The errors of the contract, for errors.Is. Each says what the caller can do.
var (
	// ErrUnknownPeer: the peer was never loaded, or has been forgotten.
	ErrUnknownPeer = errors.New("unknown peer: load its metadata first")
	// ErrGone: the peer could not be reached, or was lost during the call. It may come back.
	ErrGone = errors.New("peer unreachable: try another, or later")
	// ErrRestarted: the peer was restarted. The metadata that was loaded describes memory which no longer exists.
	ErrRestarted = errors.New("peer restarted: get its new metadata and load it")
	// ErrRange: a span is not inside a region that is registered, and was registered when the metadata was exported.
	ErrRange = errors.New("outside of the peer's registered memory: load its present metadata")
	// ErrBusy: the peer does not read its notifications; the message was not delivered.
	ErrBusy = errors.New("peer's notification queue is full: try later")
	// ErrInvalid: an argument is wrong, whatever the peer does. Nothing was sent.
	ErrInvalid = errors.New("invalid argument")
	// ErrNotSupported: this transport can never do that with this peer.
	ErrNotSupported = errors.New("not supported by this transport")
	// ErrClosed: this transport, or this region, has been closed.
	ErrClosed = errors.New("closed")
)

// Peer is the name of a loaded remote agent: the name that the agent was given when it started.
type Peer string

// Notification is a message from another agent.
type Notification struct {
	// From is the sender, whether or not it was loaded here. To answer it, load it first.
	From Peer
	// Message belongs to the receiver, is at most MaxMessage bytes long, and may be empty.
	Message []byte
}

// Notifier has what a participant without KV memory needs, such as a sidecar that holds and releases leases. All methods may be
// called from several goroutines.
type Notifier interface {
	// Load makes a remote agent known from the metadata that it exported. It need not contact the agent. Loading the same agent
	// again updates its memory. Metadata of another generation replaces the earlier one; running reads with that may fail.
	// Errors: ErrInvalid for bytes that are not metadata, and for the agent's own; ErrNotSupported for metadata of another kind
	// of transport; ErrClosed.
	Load(ctx context.Context, metadata []byte) (Peer, error)
	// Forget undoes Load, which frees the memory for an agent that will not come back. Forgetting an unknown peer does nothing.
	Forget(peer Peer)
	// Notify sends message to a loaded agent. Nil means that the message was sent; the transports of sim/transport also wait
	// until it is in the peer's queue, NIXL does not. After an error of the context, or ErrGone, the message may or may not
	// arrive. It never arrives twice.
	// Errors: ErrUnknownPeer, ErrGone, ErrRestarted, ErrBusy, ErrInvalid (too long), ErrClosed, the context's.
	Notify(ctx context.Context, to Peer, message []byte) error
	// Notifications returns the channel of received messages, always the same one. It has room for QueueLength messages; while
	// it is full, senders get ErrBusy. Messages of one sender arrive in order if the sender waits for each Notify. Close closes
	// the channel.
	Notifications() <-chan Notification
}

// Transport also moves memory. All methods may be called from several goroutines.
type Transport interface {
	Notifier
	// Metadata describes this agent and the memory that it has registered so far. Every program that has it can read that
	// memory.
	Metadata() []byte
	// Register makes mem readable by peers that load the metadata exported from now on, until Region.Close or Close.
	// Errors: ErrInvalid for no bytes, ErrNotSupported beyond 65,536 regions at a time, ErrClosed.
	Register(mem []byte) (Region, error)
	// Read copies each span of the peer's memory into the buffer of the same index. If notify is not nil, it then delivers
	// notify to the peer, after every byte has arrived here; a read that fails delivers nothing. The peer's program takes no
	// part, and may write to its memory meanwhile: a read that overlaps a write can return bytes of both.
	// Read returns when no more bytes can be written to into; a transport that cannot stop a transfer (NIXL) receives it in
	// memory of its own. After an error the content of into is unspecified.
	// Errors: those of Notify, where ErrBusy means that the read succeeded and the message was not delivered; ErrRange;
	// ErrInvalid, before any byte moves, if counts or lengths of spans and buffers differ.
	Read(ctx context.Context, from Peer, spans []Span, into [][]byte, notify []byte) error
	// Close ends this agent and everything that it started. When it returns, no peer can read its memory. Closing again does
	// nothing.
	Close() error
}

// Region is memory that peers can read.
type Region interface {
	// ID identifies the region in spans. An agent numbers its regions from 0 in the order of registration, and uses no number
	// twice.
	ID() uint32
	// Write copies p into the region's memory, offset bytes from its start. Peers cannot read meanwhile, so the owner can write
	// to memory that a peer is reading. Errors: ErrRange, ErrClosed.
	Write(offset uint64, p []byte) error
	// Close waits until no read uses the memory, and returns it to the caller. Reads that it interrupts, and later ones, fail
	// with ErrRange at the reader. Closing again does nothing.
	Close() error
}

// Span is a run of bytes in a remote registered region.
type Span struct {
	Region         uint32 // Region.ID at the owner
	Offset, Length uint64 // bytes
}
