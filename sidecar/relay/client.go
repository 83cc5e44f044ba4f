package relay

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// Exchange is the request that an answer belongs to, as far as the relay must know it.
type Exchange interface {
	// Committed is called right before the answer's headers are sent: from there on no leg of the request is sent again.
	Committed()
	// Interrupted says why the request's context has ended: a *pd.Refusal if the client can still be told, else another
	// error.
	Interrupted() error
	// CheckWhole says why a complete answer that is no stream must not be sent, nil if it may be.
	CheckWhole(answer []byte) error
}

// Client is the client of one request: where its answer goes, and what is reported about it. Its exported fields, but for
// the Report, are set before an answer is relayed.
type Client struct {
	Exchange Exchange
	Context  context.Context // the request's
	Writer   http.ResponseWriter
	API      pd.API
	ID       string   // the request id
	TE       []string // the client's TE header
	Plan     *pd.Plan // nil: no picker of ours has planned the request
	Rename   *pd.Rename
	// ReadUsage has usage read along, for a trace, where it would not be read otherwise.
	ReadUsage bool
	Log       *slog.Logger
	Report

	sent     pd.Phase // the first phase that the answer's headers could not report
	cached   int64    // prefill's count of cached tokens
	corrects bool     // cached replaces decode's
}

// Report is what is reported of a request: to the client, in metrics and in traces.
type Report struct {
	Decision pd.Result
	Clock    pd.PhaseClock
	Status   int // sent to the client; 0 = none
	Usage    body.Usage
	End      pd.End
	Failure  error // why the answer is not what was asked for
	// RetryElsewhere: the engine has died of this request, or with it. The client gets the engine's error only if no other
	// decode pod takes the request.
	RetryElsewhere bool
}

// Tandem's headers as net/http spells them: its functions make a new string of a lower-case name at each use.
var (
	keyDecision = http.CanonicalHeaderKey(pd.HeaderDecision)
	keyTiming   = http.CanonicalHeaderKey(pd.HeaderTiming)
	keyOutcome  = http.CanonicalHeaderKey(pd.HeaderOutcome)
)

// CorrectCached has prefill's count of cached tokens replace decode's in the answer's usage, while the decision is remote.
func (c *Client) CorrectCached(tokens int64) { c.cached, c.corrects = tokens, true }

// correctsUsage reports whether decode's count of cached tokens must be replaced by prefill's.
func (c *Client) correctsUsage() bool { return c.corrects && c.Decision.Verdict == pd.Remote }

// Relay sends an engine's answer to the client, and frees nothing. The error says why nothing was sent; once the headers are
// sent, what goes wrong is in the Report.
func (c *Client) Relay(resp *http.Response, a *Answer) error {
	if !IsEventStream(resp.Header) || Encoded(resp.Header) {
		return c.relayWhole(resp, a)
	}
	if a.first == nil { // a local stream: its headers do not wait for its first event
		c.sendHeaders(resp, true)
		c.flush()
	}
	return c.relayStream(resp, a)
}

// RelayFresh relays an answer of which nothing has been read.
func (c *Client) RelayFresh(resp *http.Response) error {
	a := NewAnswer(resp.Body)
	defer a.Free()
	return c.Relay(resp, a)
}

// sendHeaders sends status and headers, with the decision and the phases that are known by now.
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

// NotAdmitted reports whether an engine that answers with status has done nothing, so that another decode pod may try.
func NotAdmitted(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable
}

// saturated reports whether an engine that answers with status has as many requests as it accepts.
func saturated(status int) bool {
	return status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests
}

// reports says whether a report after the answer is read: by the picker, or by a client that accepts trailers.
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

// setTiming writes the phases, preceded by the picker's if it sent them.
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

// sendTrailers completes the report with the phases that came too late for the headers, and passes the engine's own trailers
// on.
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
