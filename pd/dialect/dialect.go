package dialect

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// Dialect is one hand-off protocol of engines. It is safe for concurrent use.
type Dialect interface {
	// Shape returns the order in which the legs are sent.
	Shape() Shape
	// Attempt makes what one try of a request at one prefill pod needs: request ids, rendezvous ids, addresses. No other try
	// uses them. The error says why this pod cannot be used; another one may be usable.
	Attempt(ctx context.Context, r *request.Request, prefill pd.Target) (Attempt, error)
}

// Shape is the order in which the legs of a request are sent.
type Shape uint8

const (
	// Serial protocols send the decode leg after the answer to the prefill leg, and with data from it.
	Serial Shape = iota
	// Concurrent protocols send both legs at once. The engines meet at a rendezvous that the attempt names. The legs may
	// reach them in any order. The attempts of such a protocol implement Rendezvous.
	Concurrent
)

// Attempt is one try at one prefill pod. Only one goroutine uses it.
type Attempt interface {
	// Prefill returns the body of the prefill leg.
	Prefill() (request.Payload, error)
	// Accept reads the complete answer to a prefill leg that got status 200. An error means that decode has nothing safe to
	// use. If a Handoff comes with the error, it must be released; ErrNoHandoff says that nothing is pinned. The Handoff may
	// share the bytes of the answer. Of a concurrent protocol, decode may have answered before, so that the request must not be
	// read any more.
	Accept(answer []byte) (Handoff, error)
}

// Rendezvous is an Attempt whose decode leg does not wait for the prefill leg.
type Rendezvous interface {
	Attempt
	// Handoff returns the hand-off for the decode leg. The Handoff that Accept returns replaces it, and may know more: usage.
	Handoff() Handoff
}

// Handoff is the KV cache of one attempt, which decode reads from prefill. Only its dialect knows its content. A Handoff may
// also implement the interfaces below.
type Handoff interface {
	// Decode returns the body of the decode leg.
	Decode() (request.Payload, error)
}

// ErrNoHandoff says that a prefill engine answered without a hand-off, so that it pins nothing.
var ErrNoHandoff = errors.New("prefill answered without a hand-off in it: is a KV connector configured on that engine?")

// ErrEnded says that a prefill engine ended its leg before the limit, as every other one will, and has dropped the KV cache.
var ErrEnded = errors.New("the prefill engine ended its leg before the limit, and hands nothing over")

// Releaser is a Handoff that stays pinned on the prefill pod until decode has read it, and that a decode engine releases when
// its leg is cancelled.
type Releaser interface {
	// Discard returns the body of a decode leg that the sidecar sends only to cancel it as soon as the engine has answered
	// with headers: by then the engine has read the hand-off's parameters.
	Discard() (request.Payload, error)
	// Settle returns how long a decode engine must have a leg without streamed headers before the leg may be cancelled. An
	// engine that reads a request together with its end may never read the hand-off's parameters.
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

// OnceReleaser is a RequestReleaser whose request reads the hand-off. For one that was read before, decode would keep blocks of its own
// until its time-out: so the request is sent only if decode has certainly not read.
type OnceReleaser interface {
	RequestReleaser
	ReadsOnce()
}

// Leased is a Handoff that its prefill engine keeps for a limited time.
type Leased interface {
	// Trust returns the age up to which decode may be asked to read the hand-off, unless its lease was renewed.
	Trust() time.Duration
	// Pin names the hand-off in notices to the prefill engine, for dialects that implement Noticer.
	Pin() Pin
}

// Pin names a hand-off to the engine that keeps it. The values are the engine's own, and are not checked.
type Pin struct {
	EngineID  string
	RequestID string // the engine's own id of the request
	// Host and Port are the engine's side channel.
	Host string
	Port int
	// Tensor and Pipeline are the engine's numbers of ranks. Each rank holds a part of the blocks. 0 = not known.
	Tensor, Pipeline int
}

// UsageCorrector is a Handoff whose decode engine reports a wrong number of cached prompt tokens. Of concurrent protocols, decode's
// answer waits for prefill's.
type UsageCorrector interface {
	// Cached returns the prefill engine's count, which replaces decode's; ok is false if decode's is right.
	Cached() (tokens int64, ok bool)
}

// Completer is a Handoff of engines whose prefill answer has something that decode's answer lacks, such as log probabilities of the
// prompt.
type Completer interface {
	// Lacks reports whether the answer to this request lacks something. Decode's answer then waits for prefill's.
	Lacks() bool
	// Complete returns the whole answer, or the data of an event, with what it lacks. It is called only after Accept.
	Complete(answer []byte) []byte
}

// Finisher is the Handoff of an engine that has ended a request with its first token, so that there is nothing to hand over: its answer
// is the whole answer, and no decode leg is sent.
type Finisher interface {
	// Answer returns the answer for the client: events if the client asked for a stream, else a JSON object.
	Answer() []byte
}

// Sized is a Handoff with a known number of KV blocks, for traces.
type Sized interface {
	Blocks() int
}

// Ranked is an Attempt whose engines are told the data-parallel rank of each leg.
type Ranked interface {
	// UseRanks names the ranks that the picker has chosen, before any leg is made. The attempt chooses in place of one that is not
	// named, or that the engine does not have.
	UseRanks(prefill, decode pd.Rank)
}

// LocalRanker is a Dialect whose engines are told by a header which data-parallel rank serves a request that has no hand-off.
type LocalRanker interface {
	// SetLocalRank sets the header for the rank that the picker has chosen; none, if it has chosen none.
	SetLocalRank(rank pd.Rank, of http.Header)
}

// Rerouter is an Attempt whose decode engine remembers the process of a prefill pod. If that is started anew before the engine notices,
// the legs of all attempts wait in vain, although both engines are healthy.
type Rerouter interface {
	// Misrouted reports whether this is why both legs have been silent for some seconds. get gets a page of the engine of one role. It
	// may be called while the legs run.
	Misrouted(ctx context.Context, get func(ctx context.Context, role pd.Role, path string) ([]byte, error)) (bool, error)
	// Forget returns a request that is POSTed to the decode engine as JSON. When it has ended, in whatever way, the engine has
	// forgotten the process.
	Forget() (path string, body []byte)
}

// Aborter is an Attempt whose engines need a request to learn that a leg was cancelled, because they are slow to notice that
// its connection was closed.
type Aborter interface {
	// Abort returns the request for the engine of one role. The sidecar POSTs body as JSON to path, on both engines of the
	// attempt, when it ends the attempt: the client left, a leg failed, or another candidate is tried. It sends the request
	// once; only status 200 counts as done.
	Abort(role pd.Role) (path string, body []byte)
}

// HeaderSetter is an Attempt, and its Handoff, whose engines take something of a leg from a header.
type HeaderSetter interface {
	// SetHeader sets the headers of the leg to the engine of one role, which have all others. Their names are in the form of
	// http.CanonicalHeaderKey, and HeaderStripper keeps a client's own away, unless they are replaced.
	SetHeader(role pd.Role, of http.Header)
}

// Stripper is a Dialect with further members, besides those of request.Base, that are removed from what clients send.
type Stripper interface {
	Strips() (paths []string)
}

// Controller is a Dialect whose legs change further members, besides those of request.Base, that clients may send.
type Controller interface {
	Controls() (paths []string)
}

// rankHeader is the header by which an engine with several data-parallel ranks is told which of them serves a request.
const rankHeader = "X-Data-Parallel-Rank"

// HeaderStripper is a Dialect whose engines obey certain request headers. These headers, like those of pd.Internal, are
// removed from what clients send, on all calls.
type HeaderStripper interface {
	// StripsHeader reports whether a header is removed. The name is in the form of http.CanonicalHeaderKey.
	StripsHeader(name string) bool
}

// Splitter is a Dialect that splits only some of the requests for which request.Request.Fit returns FitSplit.
type Splitter interface {
	// Splits reports whether the hand-off carries a request. It is called for these requests only.
	Splits(r *request.Request) bool
}

// Fitter is a Dialect that can split some requests for which request.Request.Fit does not return FitSplit.
type Fitter interface {
	// Fit is called for these requests only.
	Fit(r *request.Request) request.Fit
}

// Checker is a Dialect of engines that end when they compute certain requests which their front ends accept.
type Checker interface {
	// Checks reports whether requests of an API are checked. They are buffered, also if they are planned local.
	Checks(api pd.API) bool
	// Check returns what is wrong with a request, in words for the client. It is called before any leg.
	Check(r *request.Request) error
}

// Moded is a Dialect of engines that may be unable to serve a request alone. Without a hand-off such a request must not reach
// them.
type Moded interface {
	// ModePath is what the sidecar gets from its engine to know; "": no page of the engine tells.
	ModePath() string
	// Whole reads the answer, which is nil if there is no page: whether the engine serves requests alone.
	Whole(answer []byte) (bool, error)
}

// AfterTransfer is a Dialect whose prefill engines answer their leg only when decode has the KV cache. Until then the sidecar
// watches the prefill pod by probes, and afterwards decode needs it no more.
type AfterTransfer interface {
	AnswersAfterTransfer()
}

// Pusher is a Dialect whose prefill engines answer their leg before decode has the KV cache, and whose decode engines do not
// notice that a prefill engine has ended. The sidecar watches the prefill pod by probes until decode begins to answer.
type Pusher interface {
	// PushesAfterAnswer reports whether a decode engine whose client has left keeps the blocks of its leg until prefill has sent the KV
	// cache.
	PushesAfterAnswer() (decodeKeeps bool)
}

// Prober is a Dialect whose engines are probed at another path than /health.
type Prober interface {
	HealthPath() string
}

// IdleLimiter is a Dialect of engines that may close an idle connection earlier than those of other dialects.
type IdleLimiter interface {
	// IdleTimeout returns how long an idle connection to an engine is kept.
	IdleTimeout() time.Duration
}

// Caller is a Dialect of engines with generate calls of their own, besides pd.GenerateAPIs.
type Caller interface {
	APIs() []pd.API
}

// Continuer is a Dialect of engines that go on with the answer of another engine of the same model: they tell token ids on request
// (return_token_ids), and take them as prompts of completions.
type Continuer interface {
	ContinuesFromIDs()
}

// Regenerator is a Dialect of engines that answer chats and completions again, with a prefill engine, if another one has lost the answer.
type Regenerator interface {
	Regenerates()
}

// LimitKeeper is a Dialect whose prefill legs have the client's own limits: what prefill refuses, decode would refuse.
type LimitKeeper interface {
	KeepsLimits()
}

// PathLimiter is a Dialect of engines that serve calls which no client may send.
type PathLimiter interface {
	// Passes reports whether a call that does not generate may be passed to an engine.
	Passes(method, path string) bool
}

// EventTeller is a Dialect of engines that tell where they publish KV events on a page that PathLimiter keeps from clients.
type EventTeller interface {
	// EventsPath returns the page.
	EventsPath() string
	// EventSources returns what vLLM would answer at pd.PathEventSources, from the answer of the page.
	EventSources(answer []byte) ([]byte, error)
}

// EncodingReader is a Dialect of engines that may read encodings of images, audio and video from encoders, by the connectors of package
// pd/encode.
type EncodingReader interface {
	ReadsEncodings()
}

// PerChoice is a Dialect with a hand-off for one choice of each prompt. A request for n choices is run as n requests for one
// choice, each with attempts of its own (request.Request.Choice). Their answers are merged into one.
type PerChoice interface {
	// MaxChoices returns the most choices of a request that is run so: each costs both legs.
	MaxChoices() int
}

// Fit says whether a dialect can split a request, and as how many requests for one choice each it is then run.
func Fit(d Dialect, r *request.Request) (fit request.Fit, choices int) {
	if fit, choices = r.Fit(), 1; fit == request.FitSplit {
		if s, ok := d.(Splitter); ok && !s.Splits(r) {
			fit = request.FitLocal
		}
		return fit, choices
	}
	if per, ok := d.(PerChoice); ok && r.Choices() > 1 && r.Choices() <= per.MaxChoices() {
		choices, r = r.Choices(), r.Choice(0)
		fit = r.Fit()
	}
	if f, ok := d.(Fitter); ok && fit != request.FitSplit {
		fit = f.Fit(r)
	}
	if fit == request.FitDoubted {
		choices = 1 // it goes to an engine as it is
	}
	return fit, choices
}

// Unfinisher is a Dialect whose engines answer requests that they have aborted with status 200, and what they have so far.
type Unfinisher interface {
	// Unfinished reports whether an answer that is not a stream, or the data of an event, is marked as incomplete.
	Unfinished(answer []byte) bool
	// ClientsAbort reports whether a client can have an engine abort requests. Then only an engine that is being stopped fails
	// those that it aborts.
	ClientsAbort() bool
}

// StatusReader is a Dialect of engines that answer some failures of their own with a status that blames the client.
type StatusReader interface {
	// OwnFailure reports whether an answer with a 4xx tells of the engine's own failure: another pod may do better.
	OwnFailure(answer []byte) bool
}

// RankRefuser is a Dialect of engines that answer 400 if they do not have the data-parallel rank that the picker has chosen.
type RankRefuser interface {
	// RefusesRank reports whether a prefill engine's answer with a 4xx says that: the client named no rank, and another pod may have it.
	RefusesRank(answer []byte) bool
}

// Noticer is a Dialect whose prefill engines take notices of hand-offs, from any agent that can reach them.
type Noticer interface {
	Notices() Notices
	Agents() Agents
	// Renewal returns how long an engine keeps a hand-off after a heartbeat. lease is how long it keeps a finished one.
	Renewal(lease time.Duration) time.Duration
}

// Agents are the prefill engines' agents, one for each rank, that receive notices. The engine says on its side channel, over
// ZeroMQ, how they are reached.
type Agents interface {
	// Question returns the question about one rank's agent, and the most bytes that its answer may have.
	Question(pipeline, tensor int) (question []byte, limit int)
	// Answer reads the parts of an answer: the engine's id, as in a Pin, and the agent's metadata for transfer.Notifier's
	// Load.
	Answer(parts [][]byte) (engineID string, agent []byte, err error)
}

// Notices are the messages that prefill engines take.
type Notices interface {
	// Names reports whether notices can name a request.
	Names(requestID string) bool
	// Release returns the notice that no engine will read the hand-off of a request. Names must be true for the request.
	Release(requestID string) []byte
	// Heartbeats returns the notices that the hand-offs of these requests will be read, in as few messages of at most size
	// bytes as possible.
	Heartbeats(requestIDs []string, size int) [][]byte
}

// Options describe the engines. The operator sets them.
type Options struct {
	// BlockSize is how many tokens a KV cache block of the prefill engines has. 0 = unknown: see blockSizes.
	BlockSize int
	// BootstrapPort is the port of prefill engines' bootstrap servers, for SGLang. 0: each engine says it.
	BootstrapPort int
	// MooncakePort is the port of prefill engines' bootstrap servers, for vLLM's Mooncake.
	MooncakePort int
	// P2PPort is the port of prefill engines' peer-to-peer tiers, for vLLM's OffloadingConnector.
	P2PPort int
	// Pull says that engines of vLLM's NixlConnector have such tiers too (MultiConnector), and fetch from those of other engines.
	Pull bool
	// ReadBack says that prefill engines of vLLM's NixlConnector read from decode engines what those have of a prompt.
	ReadBack bool
	// MoRIIO describes engines of vLLM's MoRIIOConnector.
	MoRIIO MoRIIO
	// Lease is how long prefill engines keep a finished hand-off.
	Lease time.Duration
	// Ask gets a path from a prefill pod's HTTP server, for protocols that need to know something about the pod before the
	// first leg. It may be nil for dialects that do not call it.
	Ask func(ctx context.Context, prefill pd.Target, path string) (answer []byte, err error)
	// AskBootstrap does the same at a prefill pod's bootstrap server, which has a port of its own and no TLS.
	AskBootstrap func(ctx context.Context, server pd.Target, path string) (answer []byte, err error)
}

// Members returns the table of the members that a scan must find for a dialect.
func Members(d Dialect) *request.Table {
	var strips []string
	var controls []body.Want
	if own, ok := d.(Stripper); ok {
		strips = own.Strips()
	}
	if own, ok := d.(Controller); ok {
		for _, path := range own.Controls() {
			controls = append(controls, body.Want{Path: path})
		}
	}
	if len(strips)+len(controls) == 0 {
		return request.Base
	}
	return request.NewTable(strips, controls...)
}
