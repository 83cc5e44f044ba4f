package trtllm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// leg is what the engine knows of a sequence, beside its core.
type leg struct {
	request  *Request
	stage    stage
	deadline time.Time     // of the stage; zero: none
	met      bool          // the context engine of a generation leg is known
	offered  *message      // what it has said before that
	from     transfer.Peer // who has
	reading  bool          // a transfer writes to the blocks
}

// stage says how far the hand-off of a leg is.
type stage int

const (
	alone     stage = iota // a request without a hand-off, or whose hand-off is over
	unasked                // a context leg, generation first, that no generation engine has asked for
	computing              // a context leg
	kept                   // a context leg whose blocks wait for a generation engine
	fetching               // a generation leg that waits for its KV
)

func legOf(s *core.Sequence) *leg { return s.Leg.(*leg) }

// ErrTransfer is how a leg ends whose KV was not transferred in time.
var ErrTransfer = errors.New("the KV was not transferred")

// message is what engines say to each other.
type message struct {
	Kind kind  `json:"kind"`
	ID   int64 `json:"id"`
	// Agent is the sender's transport, in a question and its answer.
	Agent []byte `json:"agent,omitempty"`
	// Wait is how long the generation engine waits for the KV.
	Wait time.Duration `json:"wait,omitempty"`
	// Blocks has the KV, First the first token, Cached how many tokens were cached; in an offer.
	Blocks []int `json:"blocks,omitempty"`
	First  int   `json:"first,omitempty"`
	Cached int   `json:"cached,omitempty"`
}

type kind string

const (
	ask   kind = "ask"   // generation asks for the KV of an id
	offer kind = "offer" // context has it
	done  kind = "done"  // generation has read it
)

func (m message) pack() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("packing a message between engines: %v", err)) // every field can be marshalled
	}
	return b
}

func unpack(b []byte) (message, error) {
	var m message
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("reading a message between engines: %w", err)
	}
	return m, nil
}

// Queued implements core.Protocol.
func (t *transceiver) Queued(s *core.Sequence) {
	l := legOf(s)
	switch l.request.kind() {
	case ContextOnly:
		id, _ := l.request.Params.id() // the front end has checked it
		if _, wanted := t.asked[id]; l.request.Params.generationFirst() && !wanted {
			t.held[id] = s
			t.enter(l, unasked, time.Now().Add(t.cfg.Times.Transfer))
			return
		}
		t.enter(l, computing, time.Time{})
	case GenerationOnly:
		s.KV = core.Wanted
		t.enter(l, fetching, time.Time{})
	}
	t.core.Wait(s)
}

// enter notes that a leg has got to a stage, which ends at a deadline if that is not zero.
func (t *transceiver) enter(l *leg, st stage, deadline time.Time) {
	l.stage, l.deadline, t.changed = st, deadline, true
}

// Admitted implements core.Protocol.
func (t *transceiver) Admitted(s *core.Sequence) { s.Usage.Cached = s.Hit }

// answer takes the question of a generation engine. It runs outside of the loop.
func (t *transceiver) answer(question []byte) [][]byte {
	m, err := unpack(question)
	var peer transfer.Peer
	if err == nil {
		peer, err = t.transport.Load(context.Background(), m.Agent)
	}
	if err != nil {
		t.cfg.Logger.Warn("question of a generation engine", "error", err)
		return nil
	}
	if !t.core.Call(func() { t.asks(m.ID, asker{peer, time.Now().Add(m.Wait)}) }) {
		return nil
	}
	return [][]byte{message{Kind: ask, Agent: t.transport.Metadata()}.pack()}
}

// asks notes that a generation engine wants the KV of an id, which may not be there yet.
func (t *transceiver) asks(id int64, by asker) {
	now := time.Now()
	for other, a := range t.asked { // which were given up long ago
		if a.until.Before(now) {
			delete(t.asked, other)
		}
	}
	t.asked[id] = by
	s := t.held[id]
	if s == nil {
		return
	}
	switch l := legOf(s); l.stage {
	case unasked:
		delete(t.held, id)
		t.enter(l, computing, time.Time{})
		t.core.Wait(s)
	case kept:
		t.offers(id, s)
	}
}

// Finished implements core.Protocol. A context leg that ended by a stop token, or a stop string, hands nothing over.
func (t *transceiver) Finished(s *core.Sequence, last core.Output) {
	l := legOf(s)
	if l.request.kind() != ContextOnly || last.Finish != "length" {
		t.countFinished(s, last.Finish)
		t.core.End(s, last)
		t.free(s)
		return
	}
	id, _ := l.request.Params.id()
	last.Result = last.Token
	t.held[id] = s
	t.enter(l, kept, time.Now().Add(t.cfg.Times.Transfer))
	t.countFinished(s, last.Finish)
	t.core.End(s, last)
	if _, wanted := t.asked[id]; wanted {
		t.offers(id, s)
	}
}

// offers tells a generation engine which blocks have the KV of an id.
func (t *transceiver) offers(id int64, s *core.Sequence) {
	to := t.asked[id].peer
	delete(t.asked, id)
	m := message{Kind: offer, ID: id, Blocks: kv.IDs(s.Blocks), First: s.Tokens[s.Prompt], Cached: s.Usage.Cached}
	t.core.Spawn(func(ctx context.Context) {
		if err := t.transport.Notify(ctx, to, m.pack()); err != nil {
			t.cfg.Logger.Warn("offering KV", "id", id, "error", err)
		}
	})
}

// free frees the blocks of a sequence that has ended, as soon as no transfer writes to them.
func (t *transceiver) free(s *core.Sequence) {
	l := legOf(s)
	t.enter(l, alone, time.Time{})
	if !l.reading {
		t.core.Free(s)
	}
}

// Aborted implements core.Protocol: the client has left. A context leg that is kept has ended before. A generation leg that has asked for
// KV cannot withdraw: its blocks are free when the KV has come, or at the time-out.
func (t *transceiver) Aborted(s *core.Sequence) {
	l := legOf(s)
	switch {
	case l.stage == fetching && s.KV == core.Arriving:
		return
	case l.stage == unasked:
		id, _ := l.request.Params.id()
		delete(t.held, id)
	}
	t.free(s)
}

// Preempted implements core.Protocol.
func (t *transceiver) Preempted(*core.Sequence) {}

// Load implements core.Protocol: a generation leg has its blocks, and asks for the KV.
func (t *transceiver) Load(s *core.Sequence) {
	l := legOf(s)
	t.enter(l, fetching, time.Now().Add(t.cfg.Times.Transfer))
	id, _ := l.request.Params.id()
	from := l.request.Params.source()
	question := message{Kind: ask, ID: id, Agent: t.transport.Metadata(), Wait: t.cfg.Times.Transfer}.pack()
	t.core.Spawn(func(ctx context.Context) {
		err := t.meet(ctx, from, question)
		t.core.Post(func() {
			if l.stage != fetching {
				return
			}
			if l.met = true; err != nil {
				t.cfg.Logger.Warn("asking a context engine for KV", "id", id, "endpoint", from, "error", err)
				t.lose(s)
				return
			}
			if l.offered != nil {
				t.fetch(s, l.from, *l.offered)
			}
		})
	})
}

// maxAnswer bounds the answer of a context engine, in bytes.
const maxAnswer = 1 << 20

// meet asks the context engine at an address. It runs outside of the loop.
func (t *transceiver) meet(ctx context.Context, address string, question []byte) error {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Times.Transfer)
	defer cancel()
	parts, err := zmtp.Ask(ctx, &net.Dialer{}, address, question, maxAnswer)
	if err != nil {
		return err
	}
	m, err := unpack(parts[0])
	if err == nil {
		_, err = t.transport.Load(ctx, m.Agent)
	}
	return err
}

// Notified implements core.Protocol.
func (t *transceiver) Notified(n transfer.Notification) {
	m, err := unpack(n.Message)
	switch {
	case err != nil:
		t.cfg.Logger.Warn("notification", "from", n.From, "error", err)
	case m.Kind == offer:
		t.offered(n.From, m)
	case m.Kind == done:
		if s := t.held[m.ID]; s != nil && legOf(s).stage == kept {
			t.counts.kvBytesServed += int64(len(s.Blocks) * t.memory.BlockBytes())
			t.release(m.ID, s)
		}
	}
}

// release frees the blocks of a context leg.
func (t *transceiver) release(id int64, s *core.Sequence) {
	delete(t.held, id)
	t.free(s)
}

// offered takes the offer of a context engine. It may come before the answer to the question.
func (t *transceiver) offered(from transfer.Peer, m message) {
	for s := range t.core.Live() {
		l := legOf(s)
		if l.stage != fetching || l.reading || s.KV != core.Arriving {
			continue
		}
		if id, _ := l.request.Params.id(); id != m.ID {
			continue
		}
		if l.offered, l.from = &m, from; l.met {
			t.fetch(s, from, m)
		}
		return
	}
}

// fetch reads the KV of a generation leg.
func (t *transceiver) fetch(s *core.Sequence, from transfer.Peer, m message) {
	legOf(s).reading = true
	r := &reading{seq: s, offer: m, from: from, local: slices.Clone(s.Blocks), tokens: slices.Clone(s.Tokens[:s.Prompt])}
	t.core.Spawn(func(ctx context.Context) {
		r.err = t.read(ctx, r)
		t.core.Post(func() { t.readEnded(r) })
	})
}

// reading is one transfer of KV into blocks of this engine.
type reading struct {
	seq    *core.Sequence
	offer  message
	from   transfer.Peer
	local  []*kv.Block
	tokens []int // of the prompt, to verify the KV
	data   []byte
	good   bool // data is the KV of tokens
	err    error
}

// read reads the KV. It runs outside of the loop.
func (t *transceiver) read(ctx context.Context, r *reading) error {
	if err := core.Sleep(ctx, t.core.Scaled(t.cfg.Model.TransferTime(len(r.tokens)))); err != nil {
		return err
	}
	size := t.memory.BlockBytes()
	remote := r.offer.Blocks[:min(len(r.offer.Blocks), len(r.local))]
	r.data = make([]byte, len(remote)*size)
	spans, into := make([]transfer.Span, len(remote)), make([][]byte, len(remote))
	for i, id := range remote {
		spans[i] = transfer.Span{Offset: uint64(id) * uint64(size), Length: uint64(size)}
		into[i] = r.data[i*size : (i+1)*size]
	}
	if err := t.transport.Read(ctx, r.from, spans, into, message{Kind: done, ID: r.offer.ID}.pack()); err != nil {
		return err
	}
	r.good = len(remote) == len(r.local) && t.memory.Verify(r.tokens, 0, r.data)
	return nil
}

// readEnded takes the result of a transfer.
func (t *transceiver) readEnded(r *reading) {
	s, l := r.seq, legOf(r.seq)
	l.reading = false
	switch {
	case s.Done:
		t.free(s)
		return
	case r.err != nil:
		t.cfg.Logger.Warn("reading KV failed", "id", r.offer.ID, "error", r.err)
		t.lose(s)
		return
	}
	size := t.memory.BlockBytes()
	for i := range len(r.data) / size {
		if err := t.memory.Store(r.local[i], r.data[i*size:(i+1)*size]); err != nil {
			t.core.Die(err)
			return
		}
	}
	t.counts.kvBytesRead += int64(len(r.data))
	if !r.good {
		t.counts.foreign++
	}
	if s.Usage.Cached = 0; l.request.Params.CachedOfContext >= 0 {
		s.Usage.Cached = l.request.Params.CachedOfContext
	}
	t.enter(l, alone, time.Time{})
	t.core.Accept(s, r.offer.First)
	if !s.Done {
		t.core.Arrived(s, s.Prompt)
	}
}

// lose ends a generation leg that does not get its KV.
func (t *transceiver) lose(s *core.Sequence) {
	if !s.Done {
		t.core.Fail(s, ErrTransfer)
	}
	t.free(s)
}

// Deadline implements core.Protocol.
func (t *transceiver) Deadline() (next time.Time, ok, changed bool) {
	if !t.changed {
		return next, false, false
	}
	t.changed = false
	for s := range t.core.Live() {
		if at := legOf(s).deadline; !at.IsZero() && (!ok || at.Before(next)) {
			next, ok = at, true
		}
	}
	return next, ok, true
}

// Expired implements core.Protocol.
func (t *transceiver) Expired(now time.Time) {
	t.changed = true // the timer has fired, and has to be set again
	for s := range t.core.Live() {
		l := legOf(s)
		if l.deadline.IsZero() || l.deadline.After(now) {
			continue
		}
		id, _ := l.request.Params.id()
		switch l.stage {
		case kept:
			t.counts.expired++
			t.release(id, s)
		case unasked:
			delete(t.held, id)
			t.lose(s)
		case fetching:
			t.lose(s)
		}
	}
}
