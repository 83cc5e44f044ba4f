package handoff

import (
	"context"
	"errors"
	"net/http"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/relay"
)

// part is the request for one of several choices. It is the client of its exchange: it takes the answer.
type part struct {
	of     *choices
	index  int
	x      *Exchange
	header http.Header // while the answer has none

	// of.mu guards what follows, until the part has ended.
	status   int
	answer   http.Header // of the answer
	body     []byte      // of an answer that is no stream
	begun    bool        // some of a body with status 200 is there
	began    report      // the state when it began
	ended    bool
	reason   pd.Reason
	err      error
	panicked any
}

// report is how far a part has come, for what the client is told.
type report struct {
	clock               pd.PhaseClock
	attempts, candidate int
	target              string
}

var (
	errOddAnswer = errors.New("an engine has answered a stream whole, or a request for a whole answer with a stream")
	errTooMuch   = errors.New("the answers for several choices are too long together")
)

// part makes the exchange of one part of a request. Its budget, its buffered body and its client are those of x.
func (x *Exchange) part(client http.ResponseWriter, request *http.Request) *Exchange {
	one := &Exchange{Route: x.Route, legs: x.legs, request: request, span: x.span,
		Client: relay.Client{Writer: client, API: x.API, ID: x.ID, Log: x.Log, Aborted: x.Aborted, Report: relay.Report{Decision: x.Decision, Clock: x.Clock, Usage: body.NoUsage}}}
	one.Exchange, one.prefilled = one, func() {}
	one.Context, one.cancel = context.WithCancelCause(x.Context)
	if x.record != nil {
		one.record = newRecord(x.ID, x.record.began)
		one.record.of = x.record
	}
	return one
}

// tell makes a part's report that of the exchange.
func (x *Exchange) tell(r report) {
	x.target, x.Decision.Attempts, x.Decision.Candidate = r.target, r.attempts, r.candidate
}

// run runs both legs of the part.
func (p *part) run(req *intake.Request) {
	defer p.end()
	defer func() {
		if r := recover(); r != nil && r != http.ErrAbortHandler { // an answer that broke off
			p.panicked = r
		}
	}()
	if p.index > 0 {
		select {
		case <-p.of.ahead:
		case <-p.x.Context.Done():
			p.err = p.x.contextError()
			return
		}
	}
	p.reason, p.err = p.x.run(req)
}

// end notes that the part has ended. It has failed unless it has all of its answer.
func (p *part) end() {
	c := p.of
	if p.index == 0 {
		p.x.prefilled()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p.ended = true
	complete := p.x.Client.End == pd.EndDone
	if c.streams {
		complete = c.stream.Ended(p.index)
	}
	if complete {
		p.begin() // with an empty answer it has not
	} else {
		c.fail(p)
	}
	c.changed.Broadcast()
}

// report returns the part's report as it is now.
func (p *part) report() report {
	return report{p.x.Clock, p.x.Decision.Attempts, p.x.Decision.Candidate, p.x.target}
}

// Header implements http.ResponseWriter.
func (p *part) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter.
func (p *part) WriteHeader(status int) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.status, p.answer = status, p.header.Clone()
}

// Flush implements http.Flusher.
func (p *part) Flush() {}

// Write implements http.ResponseWriter. It waits while the client is slow.
func (p *part) Write(b []byte) (int, error) {
	c := p.of
	c.mu.Lock()
	defer c.mu.Unlock()
	streams := p.status == http.StatusOK && relay.IsEventStream(p.answer)
	switch {
	case c.x.Context.Err() != nil: // only the client's own relay says why it ends
		return 0, c.x.Context.Err()
	case streams != c.streams && p.status == http.StatusOK:
		return 0, errOddAnswer
	case !streams && c.size+len(b) > maxMerged:
		return 0, errTooMuch
	case !streams:
		c.size += len(b)
		p.body = append(p.body, b...)
		if p.status == http.StatusOK {
			p.begin()
		}
		return len(b), nil
	}
	events, err := c.stream.Feed(c.out.AvailableBuffer(), p.index, b)
	c.out.Write(events)
	p.begin()
	if failed, ok := c.stream.Failed(); ok {
		c.fail(c.parts[failed])
	}
	c.changed.Broadcast()
	for err == nil && c.out.Len() > maxAhead {
		if err = p.x.Context.Err(); err == nil {
			c.changed.Wait()
		}
	}
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// begin notes that the part has begun to answer. The caller holds mu.
func (p *part) begin() {
	if p.begun {
		return
	}
	p.begun, p.began, p.of.last = true, p.report(), p
	if p.index == 0 {
		p.x.prefilled()
	}
}
