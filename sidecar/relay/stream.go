package relay

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// relayStream passes on complete events only, as they arrive, so that an error event can follow at any time.
func (c *Client) relayStream(resp *http.Response, a *Answer) error {
	p := &eventPipe{c: c, events: body.Events{Limit: MaxEvent}}
	if c.ITL != nil {
		p.pauses.to = c.ITL[c.Decision.Verdict]
	}
	defer func() { p.pauses.end(c.Trace) }()
	if a.first != nil {
		c.Clock.Enter(pd.PhaseDecode, time.Now())
		c.sendHeaders(resp, true)
	}
	for {
		next, passed, err := p.passAll(a)
		if next != nil {
			a, p.events = next, body.Events{Limit: MaxEvent}
			continue
		}
		if next := c.goOn(p, passed, err); next != nil {
			a, p.events = next, body.Events{Limit: MaxEvent}
			continue
		}
		if passed {
			return c.endEvents(resp, p, err)
		}
		return c.brokenPipe(resp, p, err)
	}
}

// passAll passes on what comes, until the stream goes on with another answer, or an error: of the answer if passed is true, else of an
// event or of the client.
func (p *eventPipe) passAll(a *Answer) (next *Answer, passed bool, err error) {
	if a.first != nil {
		first := a.first
		a.first = nil
		if err := p.pass(first, time.Now()); err != nil {
			return nil, false, err
		}
	}
	for {
		chunk, err := a.Peek()
		if err != nil {
			return nil, true, err
		}
		now := time.Now()
		if err := p.pass(chunk, now); err != nil {
			return nil, false, err
		}
		if !p.opening {
			p.c.Clock.Enter(pd.PhaseDecode, now)
		}
		a.Skip()
		if p.c.Elsewhere != nil && !p.done {
			if next := p.c.Elsewhere.Leave(); next != nil {
				return next, false, nil
			}
		}
	}
}

// Continuation has a stream that breaks off go on at another engine.
type Continuation interface {
	// Event takes each event of the stream, but errors, and returns what the client gets now: an event, after others that Event has
	// held back, or nothing.
	Event(e body.Event) body.Event
	// Held returns the events that are held back, when none follows.
	Held() []byte
	// GoOn returns the answer with which a stream goes on that broke off because of cause; nil if it ends. The relay does not free it.
	GoOn(cause error) *Answer
	// Leave returns the answer with which the stream goes on although its engine lives, because that is to end, or because the stream needs
	// no more of its answer; nil: it stays for now.
	Leave() *Answer
	// Moves returns how often the stream has gone on.
	Moves() int
}

// ErrEngineFailed says that an engine has sent an error event in a stream that may go on elsewhere.
var ErrEngineFailed = errors.New("the engine ended this stream with an error")

// goOn returns the answer with which the stream goes on after an error, as passAll returned it; nil if it ends.
func (c *Client) goOn(p *eventPipe, passed bool, err error) *Answer {
	if c.Elsewhere == nil || c.Context.Err() != nil || p.done || !passed && !errors.Is(err, ErrEngineFailed) {
		return nil
	}
	return c.Elsewhere.GoOn(err)
}

// doneEvent ends streams of chat and completions, also after an error event.
const doneEvent = "data: [DONE]\n\n"

// sendHeld sends the events of a stream that may go on elsewhere, and does not, if some are held back.
func (p *eventPipe) sendHeld() {
	if p.c.Elsewhere == nil {
		return
	}
	if _, err := p.c.Writer.Write(p.c.Elsewhere.Held()); err != nil {
		p.c.Log.Debug("ending a stream", "request_id", p.c.ID, "error", err)
	}
}

// eventPipe passes events on and records what they report.
type eventPipe struct {
	c       *Client
	events  body.Events
	usage   body.UsageReader
	pauses  pauses
	tokens  bool   // an event with tokens has passed since the last read
	passed  int    // events
	opening bool   // all of them open the stream, and there is one
	done    bool   // the event that ends the stream has passed
	failed  bool   // an error event has passed
	failure []byte // an error event that has not passed, because the stream may go on elsewhere
}

// pass writes the events that end in chunk, in one write. The chunk was read at now. The error is that of writing.
func (p *eventPipe) pass(chunk []byte, now time.Time) error {
	p.tokens = false
	if err := p.events.Feed(chunk, p.event); err != nil {
		return err
	}
	p.c.flush()
	if p.tokens {
		p.c.Streamed = true
		p.pauses.arrived(now)
	}
	return nil
}

// noChoices is in the event that ends a stream with its usage, and has no token.
var noChoices = []byte(`"choices":[]`)

func (p *eventPipe) event(e body.Event) error {
	done := e.Done()
	switch {
	case done:
	case e.Error(): // it searches the event: once is enough
		if p.c.Elsewhere != nil {
			p.failure = bytes.Clone(e.Raw)
			return ErrEngineFailed
		}
		p.failed = true
	case p.c.Aborted != nil && p.c.Aborted(e.Data):
		return ErrAborted
	}
	p.opening = e.Opens() && (p.opening || p.passed == 0)
	p.passed++
	if p.c.Elsewhere != nil {
		if e = p.c.Elsewhere.Event(e); len(e.Raw) == 0 {
			p.tokens = true
			return nil
		}
	}
	p.done = p.done || done
	raw, data, tokens := e.Raw, e.Data, len(e.Data) > 0 && !p.done && !e.Opens()
	if p.c.complete != nil && len(data) > 0 {
		data = p.c.complete(data)
		raw = replaceData(e, data)
	}
	if u, ok := p.usage.Event(e.Data); ok {
		tokens = tokens && !bytes.Contains(e.Data, noChoices)
		p.c.Usage = p.c.Usage.Merge(u)
		if p.c.correctsUsage() {
			raw = replaceData(e, correctUsage(data, true, p.c.cached))
			p.c.Usage.Cached = p.c.cached
		}
	}
	p.tokens = p.tokens || tokens && !p.failed
	_, err := p.c.Writer.Write(raw)
	return err
}

// brokenPipe ends an answer whose client no longer reads it, or whose engine does not send an event stream.
func (c *Client) brokenPipe(resp *http.Response, p *eventPipe, err error) error {
	c.Failure = err
	switch {
	case errors.Is(err, body.ErrTooLarge):
		p.endError(pd.Refuse(pd.InternalError, "The decode engine sent an event that is too large."))
		c.sendTrailers(resp)
	case errors.Is(err, ErrEngineFailed):
		p.failed, c.End = true, pd.EndError
		p.sendHeld()
		if c.API == pd.APIChat || c.API == pd.APICompletions {
			p.failure = append(p.failure, doneEvent...)
		}
		if _, err := c.Writer.Write(p.failure); err != nil {
			c.Log.Debug("ending a stream", "request_id", c.ID, "error", err)
		}
		c.flush()
		c.sendTrailers(resp)
	case errors.Is(err, ErrAborted):
		p.breakOff(err)
		c.sendTrailers(resp)
	}
	return nil
}

// endsWithEvent reports whether an API's streams are complete only with an event that says so.
func endsWithEvent(api pd.API) bool {
	switch api {
	case pd.APIChat, pd.APICompletions, pd.APIResponses, pd.APIMessages, pd.APIGenerate:
		return true
	}
	return false
}

// endEvents ends a stream that the engine, the client or the shutdown has ended.
func (c *Client) endEvents(resp *http.Response, p *eventPipe, err error) error {
	switch {
	case c.Context.Err() != nil:
		var refusal *pd.Refusal
		if cause := c.Exchange.Interrupted(); !errors.As(cause, &refusal) {
			c.Failure = cause
			return nil
		}
		p.endError(refusal)
	case !p.done && (err != io.EOF || endsWithEvent(c.API) && resp.StatusCode == http.StatusOK):
		c.Failure = err
		p.sendHeld()
		if !p.failed {
			p.breakOff(err)
		}
	default:
		if _, err := c.Writer.Write(p.events.Pending()); err != nil {
			return c.brokenPipe(resp, p, err)
		}
		c.End = pd.EndDone
	}
	if p.failed {
		c.End = pd.EndError
	}
	c.sendTrailers(resp)
	return nil
}

// breakOff ends a stream that the engine has not finished.
func (p *eventPipe) breakOff(err error) {
	broken := pd.Refuse(pd.InternalError, "The decode engine broke off this answer.")
	broken.Cause = err
	p.endError(broken)
}

// endError ends a stream with an error event in the API's shape.
func (p *eventPipe) endError(r *pd.Refusal) {
	c := p.c
	c.Failure, c.End = r, pd.EndError
	if _, err := c.Writer.Write(r.Event(c.API, p.passed)); err != nil {
		c.Log.Debug("ending a stream", "request_id", c.ID, "error", err)
	}
	c.flush()
}
