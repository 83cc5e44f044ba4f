package core

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/transfer"
)

// Protocol is how the engines of one kind hand KV to each other, and what they count. The engine's loop calls its methods, which
// must not block, and the methods of Engine below are for them.
type Protocol interface {
	// Queued takes a new sequence, and calls Engine.Wait as soon as it may get blocks.
	Queued(s *Sequence)
	// Admitted is called when a sequence has got blocks for the first time.
	Admitted(s *Sequence)
	// Load starts the transfer of KV into the blocks of a sequence of stage Wanted. Engine.Arrived or Engine.Fail ends it.
	Load(s *Sequence)
	// Drew is called for each token that was drawn.
	Drew(s *Sequence, now time.Time)
	// Finished takes a sequence whose last token was drawn. Engine.End and Engine.Free end it, now or later.
	Finished(s *Sequence, last Output)
	// Aborted takes a sequence whose caller has left. It is in no queue any more. Engine.Free ends it, now or later.
	Aborted(s *Sequence)
	// Preempted is called when a sequence has lost its blocks to others. It will be computed again.
	Preempted(s *Sequence)
	// Stepped is called after each step, with the number of tokens that it computed.
	Stepped(tokens int)
	// Notified takes a message of another engine.
	Notified(n transfer.Notification)
	// Deadline returns when Expired has to be called; ok is false if no time is known. changed is false, and the rest does not
	// count, if that is as at the last call: it is called between all steps, so it must be cheap.
	Deadline() (next time.Time, ok, changed bool)
	// Expired is called after a deadline.
	Expired(now time.Time)
}

// Wait puts a sequence at the end of the queue.
func (e *Engine) Wait(s *Sequence) { e.waiting = append(e.waiting, s) }

// WaitAgain puts a sequence at the head of the queue, to which it had got before.
func (e *Engine) WaitAgain(s *Sequence) { e.waiting = slices.Insert(e.waiting, 0, s) }

// Arrived continues a sequence in whose blocks the KV of its first tokens has been stored.
func (e *Engine) Arrived(s *Sequence, tokens int) {
	s.KV = Here
	s.Computed = tokens
	e.cacheBlocks(s)
	s.Computed = min(tokens, len(s.Tokens)-1) // the last token is computed here, because the next one is drawn from it
	e.WaitAgain(s)
}

// Accept gives a sequence its next token, which was drawn here or at another engine.
func (e *Engine) Accept(s *Sequence, token int) {
	out := s.accept(token, e.cfg.MaxModelLen)
	e.protocol.Drew(s, time.Now())
	if out.Finish == "" {
		s.out.put(out)
		return
	}
	e.running = remove(e.running, s)
	e.protocol.Finished(s, out)
}

// Stall keeps new steps from beginning until as many calls of Resume have followed.
func (e *Engine) Stall() { e.stalls++ }

// Resume undoes a Stall.
func (e *Engine) Resume() { e.stalls-- }

// Recompute has a sequence whose KV did not arrive computed here.
func (e *Engine) Recompute(s *Sequence) {
	e.releaseBlocks(s)
	e.WaitAgain(s)
}

// End delivers the last output of a sequence. It holds its blocks until Free.
func (e *Engine) End(s *Sequence, last Output) {
	s.Done = true
	last.Index = s.Index
	s.out.put(last)
}

// Cut ends a sequence that may be in a queue. It holds its blocks until Free.
func (e *Engine) Cut(s *Sequence, last Output) {
	e.unqueue(s)
	e.End(s, last)
}

// Fail is Cut with an error.
func (e *Engine) Fail(s *Sequence, err error) { e.Cut(s, Output{Token: -1, Err: err}) }

// Free releases the blocks of a sequence that has ended.
func (e *Engine) Free(s *Sequence) {
	e.pool.Release(s.Blocks)
	s.Blocks = nil
	e.Forget(s)
}

// Forget drops a sequence whose blocks the protocol releases.
func (e *Engine) Forget(s *Sequence) { delete(e.live, s) }

// Live returns all sequences that have not been freed.
func (e *Engine) Live() iter.Seq[*Sequence] { return maps.Keys(e.live) }

// Waits returns how many sequences are in the queue, Runs how many take part in steps.
func (e *Engine) Waits() int { return len(e.waiting) }

// Runs returns how many sequences take part in steps.
func (e *Engine) Runs() int { return len(e.running) }

// Pool returns the engine's blocks.
func (e *Engine) Pool() *kv.Pool { return e.pool }

// Host returns the blocks in the memory of the engine's host.
func (e *Engine) Host() *kv.Host { return e.host }

// Memory returns the KV in the engine's blocks.
func (e *Engine) Memory() *kv.Memory { return e.kv }

// Counts returns what was counted.
func (e *Engine) Counts() Counts { return e.counts }

// Config returns the engine's configuration.
func (e *Engine) Config() Config { return e.cfg }
