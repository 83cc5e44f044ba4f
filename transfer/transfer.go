package transfer

import (
	"context"
	"errors"
)

// Limits that every transport holds its callers to.
const (
	// MaxMessage is the longest notification, in bytes. Engines send a request id, or a list of them, and stay far below.
	MaxMessage = 64 << 10
	// MaxName is the longest agent name, in bytes. A Kubernetes object name has at most 253.
	MaxName = 255
	// QueueLength is how many notifications wait for a receiver that does not read. The next one is refused with ErrBusy.
	QueueLength = 1024
)

// The errors of the contract, to be tested with errors.Is. Each says what to do about it.
var (
	// ErrUnknownPeer: the peer was never loaded, or has been forgotten.
	ErrUnknownPeer = errors.New("unknown peer: load its metadata first")
	// ErrGone: the peer could not be reached, or was lost on the way. It may come back.
	ErrGone = errors.New("peer unreachable: try another, or later")
	// ErrRestarted: the peer lives again under another generation. What was loaded describes memory that is no more.
	ErrRestarted = errors.New("peer restarted: get its new metadata and load it")
	// ErrRange: a span is not inside a region that is registered, and was registered when the metadata was exported.
	ErrRange = errors.New("outside of the peer's registered memory: load its present metadata")
	// ErrBusy: the peer does not read its notifications; the message was not delivered.
	ErrBusy = errors.New("peer's notification queue is full: try later")
	// ErrInvalid: the call is wrong in itself. Nothing was sent.
	ErrInvalid = errors.New("invalid argument")
	// ErrNotSupported: this transport cannot do that with this peer, whatever the moment.
	ErrNotSupported = errors.New("not supported by this transport")
	// ErrClosed: this transport, or this region, has been closed.
	ErrClosed = errors.New("closed")
)

// Peer is the name under which a loaded remote agent is addressed: the name the agent was given when it started.
type Peer string

// Notification is a message from another agent.
type Notification struct {
	// From is the sender, whether or not it was loaded here. To answer it, load it first.
	From Peer
	// Message belongs to the receiver, is at most MaxMessage bytes long, and may be empty.
	Message []byte
}

// Notifier is what a participant without KV memory needs: a sidecar that holds and releases leases is one.
// All methods may be called from several goroutines.
type Notifier interface {
	// Load makes a remote agent known from the metadata it exported, without necessarily contacting it. Loading the same
	// agent again refreshes what is known of its memory. Metadata of another generation replaces the earlier one; reads
	// under way with that one may fail.
	// Errors: ErrInvalid for what is not metadata, or one's own; ErrNotSupported for another kind of transport's; ErrClosed.
	Load(ctx context.Context, metadata []byte) (Peer, error)
	// Forget undoes Load, so that an agent that is gone for good takes no room. Forgetting the unknown is no error.
	Forget(peer Peer)
	// Notify sends message to a loaded agent. Nil means the message was handed over; those of sim/transport also
	// wait until it is in the peer's queue, which others (NIXL) do not. After an error of the context, or ErrGone, it may or
	// may not arrive. It never arrives twice.
	// Errors: ErrUnknownPeer, ErrGone, ErrRestarted, ErrBusy, ErrInvalid (too long), ErrClosed, the context's.
	Notify(ctx context.Context, to Peer, message []byte) error
	// Notifications returns the one channel of received messages. It holds QueueLength of them; while it is full, senders
	// get ErrBusy and nothing grows. Messages of one sender that each waited for the one before arrive in order. Close closes it.
	Notifications() <-chan Notification
}

// Transport also moves memory. All methods may be called from several goroutines.
type Transport interface {
	Notifier
	// Metadata describes this agent and the memory it has registered so far. Every holder of it can read that memory.
	Metadata() []byte
	// Register makes mem readable by peers that load the metadata exported from now on, until Region.Close or Close.
	// Errors: ErrInvalid for no bytes, ErrNotSupported beyond 65,536 regions at a time, ErrClosed.
	Register(mem []byte) (Region, error)
	// Read copies each span of the peer's memory into the buffer of the same index and, if notify is not nil, delivers it
	// to the peer once every byte has arrived here: the peer never hears of a read that failed. The peer's program is not
	// asked, and may write to its memory meanwhile: a read that overlaps a write can return bytes of both.
	// Read returns when no byte can land in into any more; a transport that cannot stop a transfer (NIXL) has to let it land
	// in memory of its own. After an error the content of into is unspecified.
	// Errors: those of Notify, where ErrBusy means read but not told; ErrRange; ErrInvalid if counts or lengths of spans and buffers differ, before any byte moves.
	Read(ctx context.Context, from Peer, spans []Span, into [][]byte, notify []byte) error
	// Close ends this agent and everything it started. When it returns, no peer can read its memory. Closing again does nothing.
	Close() error
}

// Region is memory that peers can read.
type Region interface {
	// ID is what spans name the region by. An agent numbers its regions from 0 in order of registration and never
	// gives a number twice.
	ID() uint32
	// Write copies p into the region's memory, offset bytes from its start, and excludes reads by peers for that moment.
	// The owner uses it to write to memory that a peer may be reading. Error: ErrRange, ErrClosed.
	Write(offset uint64, p []byte) error
	// Close waits until no read touches the memory, and gives it back. Reads that are cut off, and later ones, fail with
	// ErrRange at the reader. Closing again does nothing.
	Close() error
}

// Span is a run of bytes in a remote registered region.
type Span struct {
	Region         uint32 // Region.ID at the owner
	Offset, Length uint64 // bytes
}
