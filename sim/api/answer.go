package api

import (
	"net/http"
	"strings"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/web"
)

// answer is what the engine has generated for one prompt and choice.
type answer struct {
	tokens     []int
	pieces     []string // of text, one per token
	finish     string
	stopReason any
	handoff    *sim.Handoff
	usage      sim.PromptUsage
}

func (a *answer) add(out sim.Output) {
	a.tokens = append(a.tokens, out.Token)
	a.pieces = append(a.pieces, out.Text)
	a.finish, a.stopReason, a.usage = out.Finish, out.StopReason, out.Usage
	a.handoff, _ = out.Result.(*sim.Handoff)
}

func (a *answer) text() string { return strings.Join(a.pieces, "") }

// collect waits for n whole answers, and returns them in the order of their indexes. It returns false if the client has left,
// or got an error instead.
func (c *call) collect(g *sim.Generation, n int) ([]answer, bool) {
	answers := make([]answer, n)
	for open := n; open > 0; {
		out, err := g.Next(c.Ctx())
		if err != nil { // the client has left
			g.Abort()
			return nil, false
		}
		if out.Err != nil {
			g.Abort()
			c.fail(engineError(out.Err))
			return nil, false
		}
		answers[out.Index].add(out)
		if out.Finish != "" {
			open--
		}
	}
	return answers, true
}

// handoff returns the kv_transfer_params of an answer, damaged if a fault says so, or nil if there are none.
func (q *generateRequest) handoff(h *sim.Handoff) any {
	switch {
	case h == nil:
		return nil
	case q.fault.Is(fault.BadHandoff):
		return fault.Damage(q.fault.Arg, pyjson.Encode(h))
	}
	return h
}

// stream is the answer of a call to one path.
type stream struct {
	*web.Stream
	path string
}

func (c *call) stream() *stream { return &stream{c.Stream(), c.R.URL.Path} }

// fail ends a stream whose headers have said 200. The real engine has no event for an error in a stream of responses: its
// handler fails, which breaks the connection.
func (s *stream) fail(err *apiError) {
	switch s.path {
	case responsesPath:
		panic(http.ErrAbortHandler)
	case anthropicPath:
		failed := *err
		failed.Type = "internal_error"
		s.Event("error", failed.envelope(s.path))
		return
	}
	s.Raw("data: " + err.event() + "\n\n")
	s.Done()
}

// next waits for the next token of a stream. It returns false if the stream has ended, because the client has left or with an
// error.
func (c *call) next(s *stream, g *sim.Generation) (sim.Output, bool) {
	out, err := g.Next(c.Ctx())
	if err != nil {
		g.Abort()
		return out, false
	}
	if out.Err != nil {
		g.Abort()
		s.fail(engineError(out.Err))
		return out, false
	}
	return out, true
}

// member makes a member of an object whose order matters.
func member(name string, value any) pyjson.Member { return pyjson.Member{Name: name, Value: value} }
