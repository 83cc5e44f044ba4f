package dialect

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// Dialect is one hand-off protocol, as the engines of one deployment speak it. It is safe for concurrent use.
type Dialect interface {
	// Shape says in which order the legs are sent.
	Shape() Shape
	// Attempt mints what one try of a request at one prefill pod needs: request ids, rendezvous ids, addresses. None of
	// it is used for another try. The error says why the pod cannot be used; another one may be.
	Attempt(ctx context.Context, r *request.Request, prefill pd.Target) (Attempt, error)
}

// Shape is the order in which the legs of a request are sent.
type Shape uint8

const (
	// Serial protocols send the decode leg when the prefill leg has been answered, with what the answer says.
	Serial Shape = iota
	// Concurrent protocols send both legs at once. The engines meet at a rendezvous that the attempt names, and may get
	// the legs in any order. Their attempts implement Rendezvous.
	Concurrent
)

// Attempt is one try at one prefill pod. It belongs to one goroutine.
type Attempt interface {
	// Prefill makes the body of the prefill leg.
	Prefill() (request.Payload, error)
	// Accept reads the whole answer of a prefill leg that ended with status 200. An error means that there is nothing that
	// decode can safely use; a Handoff that comes with it has to be released, and ErrNoHandoff says that nothing is
	// pinned. The Handoff may share the bytes of the answer.
	Accept(answer []byte) (Handoff, error)
}

// Rendezvous is an Attempt whose decode leg does not wait for the prefill leg.
type Rendezvous interface {
	Attempt
	// Handoff is what decode is told at once. Accept confirms it: the Handoff that it returns may know more, such as usage.
	Handoff() Handoff
}

// Handoff is the KV cache of one attempt, from prefill to decode. Only its dialect knows what it consists of. What else can
// be asked of it is in the interfaces below, each of which a Handoff implements or not.
type Handoff interface {
	// Decode makes the body of the decode leg.
	Decode() (request.Payload, error)
}

// ErrNoHandoff says that a prefill engine answered without a hand-off, so that it pins nothing.
var ErrNoHandoff = errors.New("prefill answered without a hand-off in it: is a KV connector configured on that engine?")

// Releaser is a Handoff that stays pinned on the prefill pod until decode has read it, and that a decode engine releases
// when it loses the leg.
type Releaser interface {
	// Discard makes the body of a decode leg that is sent only to be cancelled as soon as the engine has answered its
	// headers: by then it has noted the hand-off.
	Discard() (request.Payload, error)
	// Settle is how long a decode engine must have a leg without streamed headers before the leg may be cancelled: an
	// engine that reads a request together with its end may never note the hand-off.
	Settle() time.Duration
	// Pins reports whether the hand-off may still be pinned after a decode leg was answered with status.
	Pins(status int) bool
}

// RequestReleaser is a Handoff that a decode engine releases, without reading it, when it gets a certain request. If the
// Handoff is not a Releaser too, it stays pinned after every decode leg that fails.
type RequestReleaser interface {
	// ReleaseRequest makes the request.
	ReleaseRequest() (path string, body []byte)
	// Released reports whether an engine that answers the request with status releases the hand-off.
	Released(status int) bool
	// Tries returns how often the request is sent while connections break, and the first pause, which doubles. The
	// connections of a dying engine break a little before its port is closed.
	Tries() (n int, pause time.Duration)
}

// Leased is a Handoff that its prefill engine keeps for a limited time.
type Leased interface {
	// Trust is the age up to which decode may be asked to read the hand-off, unless its lease was renewed.
	Trust() time.Duration
	// Pin says who keeps the hand-off, for those engines that take notices. See Noticer.
	Pin() Pin
}

// Pin is how an engine is told about a hand-off that it keeps: all of it is the engine's own word, and checked by none.
type Pin struct {
	EngineID  string
	RequestID string // the engine's own id of the request, which notices name
	// Host and Port are the engine's side channel.
	Host string
	Port int
	// Tensor and Pipeline are the engine's ranks, each of which holds a part of the blocks. 0 = not known.
	Tensor, Pipeline int
}

// UsageCorrector is a Handoff whose decode engine counts wrongly how many prompt tokens were cached.
type UsageCorrector interface {
	// Cached is the prefill engine's count, which replaces decode's; ok is false if decode's is right.
	Cached() (tokens int64, ok bool)
}

// Sized is a Handoff whose size is known, for traces.
type Sized interface {
	Blocks() int
}

// Aborter is an Attempt whose engines are told by a request that a leg was cancelled, because they are slow to notice that
// its connection was closed.
type Aborter interface {
	// Abort makes the request for the engine of one role. The sidecar POSTs body as JSON to path, on both engines of the
	// attempt, when it gives the attempt up: the client left, a leg failed, or another candidate is tried. Status 200
	// counts as done; whatever the engine answers, it is asked once.
	Abort(role pd.Role) (path string, body []byte)
}

// Stripper is a Dialect with members of its own that never reach an engine as a client sent them, besides those of
// request.Base.
type Stripper interface {
	Strips() (paths []string)
}

// HeaderStripper is a Dialect whose engines take orders from headers of their own, which only an operator's components may
// give. Those never reach an engine as a client sent them, on no leg and no other call, besides those of pd.Internal.
type HeaderStripper interface {
	// StripsHeader is asked about every header of every call. The name is spelled as by http.CanonicalHeaderKey.
	StripsHeader(name string) bool
}

// Fitter is a Dialect that can split some requests for which request.Request.Fit says FitLocal.
type Fitter interface {
	// Fit is asked about those requests alone.
	Fit(r *request.Request) request.Fit
}

// Unfinisher is a Dialect whose engines, when they are stopped, answer with status 200 what they have by then.
type Unfinisher interface {
	// Unfinished reports whether an answer that is not streamed says of itself that the engine did not finish it.
	Unfinished(answer []byte) bool
}

// Noticer is a Dialect whose prefill engines take notices of hand-offs, from any agent that knows how to reach them.
type Noticer interface {
	Notices() Notices
	Agents() Agents
	// Renewal is how long an engine keeps a hand-off after it got a heartbeat, if it keeps finished ones for lease.
	Renewal(lease time.Duration) time.Duration
}

// Agents are those of prefill engines, one for each rank, to which notices are sent. The engine tells how they are reached on
// its side channel, which takes questions over ZeroMQ.
type Agents interface {
	// Question asks about the agent of one rank. limit bounds the answer, in bytes.
	Question(pipeline, tensor int) (question []byte, limit int)
	// Answer reads the parts of an answer: the id of the engine, as in a Pin, and what transfer.Notifier's Load takes.
	Answer(parts [][]byte) (engineID string, agent []byte, err error)
}

// Notices are the messages that prefill engines take.
type Notices interface {
	// Names reports whether notices can name a request.
	Names(requestID string) bool
	// Release tells an engine's rank that no engine will read the hand-off of a request that can be named.
	Release(requestID string) []byte
	// Heartbeats tell an engine's rank that the hand-offs of these requests will be read, in as few messages of at most
	// size bytes as possible.
	Heartbeats(requestIDs []string, size int) [][]byte
}

// Options are what an operator says of the engines.
type Options struct {
	// BlockSize is how many tokens a KV cache block of the prefill engines has. 0 = unknown.
	BlockSize int
	// Lease is how long prefill engines keep a finished hand-off.
	Lease time.Duration
	// Ask gets a path of a prefill pod's HTTP server, for protocols that must know something of the pod before the first
	// leg. nil in tests of dialects that ask nothing.
	Ask func(ctx context.Context, prefill pd.Target, path string) (answer []byte, err error)
}
