package handoff

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/merge"
	"github.com/tandem-serving/tandem/sidecar/relay"
)

// choices runs a request for several choices as one request for each, and merges their answers. A part has candidates, legs and a
// hand-off of its own.
//
// Part 0 goes ahead: the others begin when its prefill has ended. The prompt is then in that pod's prefix cache, and is
// computed once.
//
// Nothing goes to the client before each part has its first event, or all of an answer that is no stream. What ends a part
// until then ends all of them, and the request is answered as one for one choice would be: by the engine's refusal, or by local
// prefill, all choices at once. Afterwards it ends the stream.
//
// The client is told the phases of the part that began last, and the attempts, candidate and pod of the part with most attempts.
type choices struct {
	x       *Exchange
	parts   []*part
	streams bool          // the client asked for a stream
	ahead   chan struct{} // closed when part 0 needs no head start any more
	running sync.WaitGroup

	mu      sync.Mutex    // guards what follows
	changed sync.Cond     // something of it
	stream  *merge.Stream // of the answers
	out     bytes.Buffer  // merged events that have not been read
	size    int           // bytes of answers that are no streams
	last    *part         // that has begun
	failed  *part         // whose end ends the others
}

const (
	// maxAhead is how many bytes of merged events may wait for the client. A part that has more waits too, and its engine with it.
	maxAhead = 64 << 10
	// maxMerged is the most bytes of answers that are no streams: they are in memory until the last one is complete.
	maxMerged = 64 << 20
)

// runChoices runs a request for n choices. Its results are those of tryCandidates; with reason "" the answer is under way or
// complete.
func (x *Exchange) runChoices(req *intake.Request, n int) (pd.Reason, error) {
	x.state = decoding
	x.Clock.Enter(pd.PhasePrefill, time.Now())
	c := &choices{x: x, streams: req.Stream(), ahead: make(chan struct{}), stream: merge.NewStream(x.API, n)}
	c.changed.L = &c.mu
	defer context.AfterFunc(x.Context, c.wake)()
	c.start(req, n)
	if c.await() {
		err := c.answer()
		c.end()
		return "", err
	}
	c.end()
	return c.failure()
}

// start begins all parts.
func (c *choices) start(req *intake.Request, n int) {
	request := *c.x.request
	request.Header = request.Header.Clone()
	request.Header.Set("Accept-Encoding", "identity") // the answers have to be read
	for i := range n {
		p := &part{of: c, index: i, header: http.Header{}}
		p.x = c.x.part(p, &request)
		c.parts = append(c.parts, p)
	}
	c.parts[0].x.prefilled = sync.OnceFunc(func() { close(c.ahead) })
	for i, p := range c.parts {
		one := &intake.Request{Request: req.Choice(i)}
		c.running.Go(func() { p.run(one) })
	}
}

// wake has all waiting goroutines look again.
func (c *choices) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed.Broadcast()
}

// await waits until the answer can begin. It returns false if a part has failed before.
func (c *choices) await() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.failed == nil && !c.ready() {
		c.changed.Wait()
	}
	return c.failed == nil
}

// ready reports whether each part has what the answer needs to begin. The caller holds mu.
func (c *choices) ready() bool {
	for _, p := range c.parts {
		if !p.ended && !(p.begun && c.streams) {
			return false
		}
	}
	return true
}

// fail notes that a part has failed, and ends the others. The caller holds mu.
func (c *choices) fail(p *part) {
	if c.failed != nil {
		return
	}
	c.failed = p
	for _, other := range c.parts {
		if other != p {
			other.x.cancel(errOtherChoice)
		}
	}
	c.changed.Broadcast()
}

// errOtherChoice is the cause of a part that was ended because another one had failed.
var errOtherChoice = errors.New("another choice of this request has failed")

// end waits for the parts. It ends them first, unless the answer is complete.
func (c *choices) end() {
	if c.x.Client.End != pd.EndDone {
		for _, p := range c.parts {
			p.x.cancel(errLegEnded)
		}
		c.wake()
	}
	c.running.Wait()
	for _, p := range c.parts {
		p.x.cancel(nil)
		c.x.record.addLegs(p.x.record)
		if p.panicked != nil {
			panic(p.panicked)
		}
	}
	if c.failed != nil && c.x.Failure == nil {
		c.x.Failure = c.failed.x.Failure
	}
}

// failure answers with the failure of a part, or says how the request goes on. All parts have ended.
func (c *choices) failure() (pd.Reason, error) {
	x, p := c.x, c.failed
	x.tell(p.report())
	switch answered := p.status != 0 && p.status != http.StatusOK; {
	case x.Context.Err() != nil:
		return "", x.contextError()
	case p.err != nil && !errors.Is(p.err, errAnswered):
		return "", p.err
	case answered:
		x.Clock, x.Decision = p.x.Clock, p.x.Decision
		x.SendBytes(p.status, p.answer, p.body)
		return "", p.err
	case p.reason != "":
		x.noteLeg()
		return p.reason, nil
	}
	return x.redoWithout(causeFailed, cmp.Or(p.x.Failure, errBrokeOff)), nil
}

// errBrokeOff is the failure of a part whose engine gave no other reason.
var errBrokeOff = errors.New("decode broke off the answer for one of several choices")

// answer sends the merged answer to the client.
func (c *choices) answer() error {
	x := c.x
	said := c.begin()
	resp := &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Header: said, Body: c, ContentLength: -1}
	if !c.streams {
		answers := make([][]byte, len(c.parts))
		for i, p := range c.parts {
			answers[i] = p.body
		}
		whole, err := merge.Whole(x.API, answers)
		if err != nil {
			return fmt.Errorf("answering with %d choices: %w", len(answers), err)
		}
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(whole)), int64(len(whole))
		said.Set("Content-Length", strconv.Itoa(len(whole)))
	}
	x.rename(resp)
	a := relay.NewAnswer(resp.Body)
	defer a.Free()
	if err := firstOf(resp, a, nil); err != nil {
		if x.Context.Err() != nil {
			return x.contextError()
		}
		return err
	}
	return x.Relay(resp, a)
}

// begin makes the report of the parts that of the exchange, and returns the headers of the answer.
func (c *choices) begin() http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := c.parts[0]
	for _, p := range c.parts {
		if p.began.attempts > most.began.attempts {
			most = p
		}
	}
	c.x.Clock = c.last.began.clock
	c.x.tell(most.began)
	return c.parts[0].answer.Clone()
}

// Read implements io.Reader: it reads the merged stream. What parts have in memory of it leaves room for more.
func (c *choices) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.out.Len() == 0 {
		_, failed := c.stream.Failed()
		switch {
		case c.x.Context.Err() != nil:
			return 0, c.x.Context.Err()
		case c.stream.Done(), failed && c.failed.ended:
			return 0, io.EOF
		case c.failed != nil && c.failed.ended:
			return 0, io.ErrUnexpectedEOF
		}
		c.changed.Wait()
	}
	defer c.changed.Broadcast()
	return c.out.Read(b)
}

// Close implements io.Closer. The parts end with their exchange.
func (c *choices) Close() error { return nil }
