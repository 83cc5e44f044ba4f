package core

import (
	"context"
	"errors"
	"sync"
	"time"
)

// The errors that end a request in the engine, besides those of its protocol.
var (
	// ErrDead says that the engine has died or was closed.
	ErrDead = errors.New("the engine has ended")
	// ErrBusy says that admission refused the request.
	ErrBusy = errors.New("the engine has too many requests")
)

// Sampling says how tokens are drawn and when the answer ends.
type Sampling struct {
	MaxTokens, MinTokens int // of the answer
	IgnoreEOS            bool
	Stop                 []string
	StopTokens           []int
	Allowed              []int  // the only tokens that are drawn, apart from the end; nil: all are
	IncludeStop          bool   // the stop string stays in the text
	Seed                 uint64 // shifts every draw; 0 is the draw of a request without seed
	Choice               uint64 // index of the choice among those of one prompt
}

// Request asks for one answer to one prompt.
type Request struct {
	ID       string // the engine's request id
	Prompt   []int  // the engine keeps it, and appends to it
	Sampling Sampling
	Salt     string // prompts of different salts share no cached blocks
	Leg      any    // the protocol's own
}

// Output is one token of an answer, or the error that ends it.
type Output struct {
	Index      int // of the request among those that were submitted together
	Token      int // -1 if none came with it
	Text       string
	Finish     string // "stop", "length", or "" while the answer goes on
	StopReason any    // stop string or stop token id, when one ended the answer
	Result     any    // the protocol's own, with the last token
	Err        error  // the answer ends here, without a finish reason: ErrDead, or an error of the protocol
	Usage      PromptUsage
}

// PromptUsage says how many tokens of a prompt were cached, and how many this request added to the cache.
type PromptUsage struct{ Cached, Created int }

// Generation is the answers to requests that were submitted together.
type Generation struct {
	engine    *Engine
	sequences []Sequence
	outputs   mailbox
}

// Submit queues requests together. The error is ErrBusy or ErrDead.
func (e *Engine) Submit(requests []Request) (*Generation, error) {
	g := &Generation{engine: e, sequences: make([]Sequence, len(requests)), outputs: mailbox{ready: make(chan struct{}, 1)}}
	for i := range requests {
		r := &requests[i]
		g.sequences[i] = Sequence{ID: r.ID, Index: i, Sampling: r.Sampling, Salt: r.Salt, Leg: r.Leg,
			Tokens: r.Prompt, Prompt: len(r.Prompt), out: &g.outputs}
		if e.cfg.TextOfPrompts {
			g.sequences[i].text.detokenizer.Begin(r.Prompt)
		}
	}
	refusal := ErrDead
	e.Call(func() {
		if refusal = e.refuses(len(requests)); refusal != nil {
			return
		}
		now := time.Now()
		for i := range g.sequences {
			s := &g.sequences[i]
			s.Times.Queued = now
			e.live[s] = struct{}{}
			e.protocol.Queued(s)
		}
		e.counts.Requests++
	})
	if refusal != nil {
		return nil, refusal
	}
	return g, nil
}

// Next waits for the next output of any of the answers. The error is the context's.
func (g *Generation) Next(ctx context.Context) (Output, error) { return g.outputs.next(ctx) }

// Abort ends the answers that have not ended, as when the client has left. Their blocks are free when it returns, except blocks
// that a transfer still writes to.
func (g *Generation) Abort() {
	g.engine.Call(func() {
		for i := range g.sequences {
			if s := &g.sequences[i]; !s.Done {
				g.engine.abort(s)
			}
		}
	})
}

// mailbox carries outputs from the engine's loop to one reader. put never blocks, because a slow client must not delay a
// step. The length of the answers bounds the mailbox.
type mailbox struct {
	mu    sync.Mutex
	queue []Output
	ready chan struct{}
}

func (m *mailbox) put(o Output) {
	m.mu.Lock()
	m.queue = append(m.queue, o)
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// next waits for one output. The error is the context's.
func (m *mailbox) next(ctx context.Context) (Output, error) {
	for {
		m.mu.Lock()
		if len(m.queue) > 0 {
			o := m.queue[0]
			m.queue = m.queue[1:]
			m.mu.Unlock()
			return o, nil
		}
		m.mu.Unlock()
		select {
		case <-m.ready:
		case <-ctx.Done():
			return Output{}, ctx.Err()
		}
	}
}
