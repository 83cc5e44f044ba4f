package relay

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// Exchange is what the relay needs to know of the answer's request.
type Exchange interface {
	// Committed is called right before the answer's headers are sent. From then on no leg of the request is sent again.
	Committed()
	// Interrupted returns why the request's context has ended: a *pd.Refusal if the client can still get one, else another
	// error.
	Interrupted() error
	// CheckWhole returns why a complete answer that is not a stream must not be sent, nil if it may be.
	CheckWhole(answer []byte) error
}

// Client is the client of one request: the destination of its answer, and the report on it. The caller sets the exported
// fields, except for the Report, before it relays an answer.
type Client struct {
	Exchange Exchange
	Context  context.Context // of the request
	Writer   http.ResponseWriter
	API      pd.API
	ID       string   // the request id
	TE       []string // the client's TE header
	Plan     *pd.Plan // nil: no Tandem picker has planned the request
	Rename   *pd.Rename
	ITL      *ByVerdict               // gets the pauses of streams; nil: they are not observed
	Aborted  func(answer []byte) bool // tells whole answers, or data of events, of requests that the engine has aborted; nil: none does
	// Elsewhere has a stream that breaks off go on; nil: it ends.
	Elsewhere Continuation
	// Holds has an answer that is no stream read to its end, up to MaxBuffered, before any of it is sent: if it breaks off, another
	// engine is asked.
	Holds bool
	Trace prometheus.Labels // the exemplar of observations: the request's trace; nil if it is not sampled
	Pause time.Duration     // longest time in which the client may read nothing of its answer; 0 = unlimited
	Log   *slog.Logger
	Report

	sent     pd.Phase // the first phase that was not complete when the answer's headers were sent
	cached   int64    // prefill's count of cached tokens
	corrects bool     // cached replaces decode's
	complete func(answer []byte) []byte
}

// Report is what Tandem reports about a request: to the client, in metrics and in traces.
type Report struct {
	Decision pd.Result
	Clock    pd.PhaseClock
	Status   int // sent to the client; 0 = none
	Usage    body.Usage
	Streamed bool // an event with tokens has been sent
	End      pd.End
	Failure  error // why the client did not get the answer it asked for
	Anew     int   // how often another engine was asked for the whole answer
	// RetryElsewhere says that the engine died during this request. The client gets the engine's error only if no other
	// decode pod takes the request.
	RetryElsewhere bool
}

// Tandem's headers in net/http's form, whose functions allocate a new string for a lower-case name at each use.
var (
	keyDecision = http.CanonicalHeaderKey(pd.HeaderDecision)
	keyTiming   = http.CanonicalHeaderKey(pd.HeaderTiming)
	keyOutcome  = http.CanonicalHeaderKey(pd.HeaderOutcome)
)

// CorrectCached makes prefill's count of cached tokens replace decode's in the answer's usage, while the decision is remote.
func (c *Client) CorrectCached(tokens int64) { c.cached, c.corrects = tokens, true }

// CompleteWith makes complete replace the whole answer, or the data of each event of a stream.
func (c *Client) CompleteWith(complete func(answer []byte) []byte) { c.complete = complete }

// correctsUsage reports whether decode's count of cached tokens must be replaced by prefill's.
func (c *Client) correctsUsage() bool { return c.corrects && c.Decision.Verdict == pd.Remote }

// Relay sends an engine's answer to the client, and does not free it. The error says why nothing was sent. Failures after the
// headers are in the Report.
func (c *Client) Relay(resp *http.Response, a *Answer) error {
	if c.Pause > 0 {
		w := newPatient(c.Writer, c.Context, c.Pause)
		defer w.end()
		c.Writer = w
	}
	if !IsEventStream(resp.Header) || Encoded(resp.Header) {
		return c.relayWhole(resp, a)
	}
	if a.first == nil { // a local stream: its headers do not wait for its first event
		c.sendHeaders(resp, true)
		c.flush()
	}
	return c.relayStream(resp, a)
}

// RelayFresh relays an answer that has not been read.
func (c *Client) RelayFresh(resp *http.Response) error {
	a := NewAnswer(resp.Body)
	defer a.Free()
	return c.Relay(resp, a)
}

// sendHeaders sends status and headers, with the decision and the complete phases.
func (c *Client) sendHeaders(resp *http.Response, stream bool) {
	c.Exchange.Committed()
	h := c.Writer.Header()
	transport.AnswerHeader(h, resp.Header)
	h.Set("X-Request-Id", c.ID)
	h.Set(keyDecision, c.Decision.String())
	c.setTiming(*c.Clock.Phases())
	if c.RetryElsewhere || NotAdmitted(resp.StatusCode) {
		h.Set(pd.HeaderRetry, "1")
	}
	if c.Anew > 0 {
		h.Set(pd.HeaderContinued, strconv.Itoa(c.Anew))
	}
	if saturated(resp.StatusCode) && h.Get("Retry-After") == "" { // vLLM does not send it
		h.Set("Retry-After", (&pd.Refusal{Reason: pd.Saturated}).RetryAfter())
	}
	if stream {
		h.Del("Content-Length") // its usage may be corrected, an error may end it, trailers may follow
	}
	if stream && c.reports() {
		h.Add("Trailer", keyTiming)
		h.Add("Trailer", keyOutcome)
	}
	c.Status, c.sent = resp.StatusCode, c.Clock.Phase()
	c.Writer.WriteHeader(resp.StatusCode)
}

// NotAdmitted reports whether a status means that the engine has done nothing, so that another decode pod may try.
func NotAdmitted(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable
}

// saturated reports whether a status means that the engine has as many requests as it accepts.
func saturated(status int) bool {
	return status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests
}

// reports reports whether the picker, or a client that accepts trailers, reads a report after the answer.
func (c *Client) reports() bool {
	if c.Plan != nil && c.Plan.Report {
		return true
	}
	for _, te := range c.TE {
		if strings.Contains(te, "trailers") {
			return true
		}
	}
	return false
}

// setTiming writes the phases, after the picker's if it sent them.
func (c *Client) setTiming(phases pd.Phases) {
	if c.Plan != nil {
		phases.Set(pd.PhaseEPP, c.Plan.EPP)
	}
	c.Writer.Header().Set(keyTiming, string(phases.AppendTiming(nil, pd.PhaseEPP)))
}

func (c *Client) summary() pd.AnswerSummary {
	return pd.AnswerSummary{End: c.End, Prompt: c.Usage.Prompt, Cached: c.Usage.Cached, Completion: c.Usage.Completion}
}

func (c *Client) flush() {
	if err := http.NewResponseController(c.Writer).Flush(); err != nil {
		c.Log.Debug("flushing an answer", "request_id", c.ID, "error", err)
	}
}

// Refuse answers with a refusal.
func (c *Client) Refuse(r *pd.Refusal) {
	attempts := c.Decision
	c.Decision = r.Result()
	c.Decision.Attempts, c.Decision.Candidate = attempts.Attempts, attempts.Candidate
	c.Status, c.Failure, c.End = r.Status(), r, pd.EndError
	if r.Reason == pd.InternalError {
		c.Log.Error("serving a request", "request_id", c.ID, "error", r.Cause)
	}
	c.setTiming(*c.Clock.Stop(time.Now()))
	if c.reports() {
		c.Writer.Header().Set(keyOutcome, c.summary().String())
	}
	if err := r.Write(c.Writer, c.API, c.Decision, true); err != nil {
		c.Log.Debug("answering a request", "request_id", c.ID, "error", err)
	}
}

// sendTrailers sends the phases that were not complete for the headers, the summary, and the engine's own trailers.
func (c *Client) sendTrailers(resp *http.Response) {
	h := c.Writer.Header()
	for name, values := range resp.Trailer {
		if !transport.Reserved(name) {
			h[http.TrailerPrefix+name] = values
		}
	}
	if !c.reports() {
		return
	}
	moves := c.Anew
	if c.Elsewhere != nil {
		moves += c.Elsewhere.Moves()
	}
	if moves > 0 {
		h.Set(http.TrailerPrefix+pd.HeaderContinued, strconv.Itoa(moves))
	}
	all := c.Clock.Stop(time.Now())
	var rest pd.Phases
	for ph := c.sent; int(ph) < pd.PhaseCount; ph++ {
		if took, ok := all.Get(ph); ok {
			rest.Set(ph, took)
		}
	}
	h.Set(keyTiming, string(rest.AppendTiming(nil, pd.PhaseEPP)))
	h.Set(keyOutcome, c.summary().String())
}

// IsEventStream reports whether an answer is a stream of server-sent events.
func IsEventStream(h http.Header) bool {
	media, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(media), "text/event-stream")
}

// Encoded reports whether an answer is compressed, so that the relay cannot read it.
func Encoded(h http.Header) bool {
	e := h.Get("Content-Encoding")
	return e != "" && e != "identity"
}
