package sglang

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/transfer"
)

// Load implements core.Protocol: a decode leg has its pages.
func (r *rank) Load(s *core.Sequence) {
	l := legOf(s)
	if r.isFake(s) {
		r.enter(l, transferring, time.Time{})
		r.core.Spawn(func(context.Context) {
			r.core.Post(func() {
				if l.stage == transferring {
					r.commit(s, fakeToken(l.req.RID, r.cfg.Model.Vocabulary), s.Prompt)
				}
			})
		})
		return
	}
	r.page.Observe(transferBootstrap, milliseconds(l.since.Sub(s.Times.Queued)))
	r.page.Observe(transferAlloc, milliseconds(time.Since(l.since)))
	room := *l.req.Rendezvous.Room
	var deadline time.Time
	if r.answers(s) {
		deadline = time.Now().Add(r.cfg.Times.Waiting)
	}
	r.enter(l, transferring, deadline)
	l.sent = make(chan struct{})
	m := message{Kind: pages, Room: room, Agent: r.transport.Metadata()}
	address, sent := l.endpoint.address, l.sent
	r.core.Spawn(func(ctx context.Context) {
		defer close(sent)
		if _, err := r.ask(ctx, address, m, askTime); err != nil { // the real engine's message gets lost without an error
			r.cfg.Logger.Warn("telling prefill the pages", "room", room, "error", err)
		}
	})
}

// answers reports whether a decode leg can get an answer: its bootstrap room is not 0, and no later leg has its bootstrap room.
func (r *rank) answers(s *core.Sequence) bool {
	room := *legOf(s).req.Rendezvous.Room
	return !room.mute() && r.receiving[room] == s
}

// Notified implements core.Protocol.
func (r *rank) Notified(n transfer.Notification) {
	m, err := unpack(n.Message)
	switch {
	case err != nil:
		r.cfg.Logger.Warn("notification", "from", n.From, "error", err)
	case m.Kind == offer:
		r.offered(n.From, m)
	case m.Kind == done:
		r.handedOver(m.Room)
	}
}

// offered takes the KV of a bootstrap room from prefill.
func (r *rank) offered(from transfer.Peer, m message) {
	confirmed := message{Kind: done, Room: m.Room}.pack()
	s := r.receiving[m.Room]
	if s == nil || legOf(s).stage != transferring || legOf(s).reading || !r.answers(s) {
		// Prefill has written to pages of which nothing waits, as far as it knows with success.
		r.core.Spawn(func(ctx context.Context) {
			if err := r.transport.Notify(ctx, from, confirmed); err != nil {
				r.cfg.Logger.Warn("confirming a transfer", "room", m.Room, "error", err)
			}
		})
		return
	}
	legOf(s).reading = true
	t := &transferOf{seq: s, offer: m, from: from, local: slices.Clone(s.Blocks), tokens: slices.Clone(s.Tokens[:s.Prompt])}
	r.core.Spawn(func(ctx context.Context) {
		t.err = r.read(ctx, t, confirmed)
		r.core.Post(func() { r.readEnded(t) })
	})
}

// transferOf is one transfer of KV into pages of this rank.
type transferOf struct {
	seq    *core.Sequence
	offer  message
	from   transfer.Peer
	local  []*kv.Block
	tokens []int // of the prompt, to verify the KV
	data   []byte
	good   bool // data is the KV of tokens
	err    error
}

// read reads the KV: as many pages as both sides have. It runs outside of the loop.
func (r *rank) read(ctx context.Context, t *transferOf, confirmed []byte) error {
	if err := core.Sleep(ctx, r.core.Scaled(r.cfg.Model.TransferTime(len(t.tokens)))); err != nil {
		return err
	}
	size := r.memory.BlockBytes()
	remote := t.offer.Blocks[:min(len(t.offer.Blocks), len(t.local))]
	t.data = make([]byte, len(remote)*size)
	spans, into := make([]transfer.Span, len(remote)), make([][]byte, len(remote))
	for i, id := range remote {
		spans[i] = transfer.Span{Offset: uint64(id) * uint64(size), Length: uint64(size)}
		into[i] = t.data[i*size : (i+1)*size]
	}
	if err := r.transport.Read(ctx, t.from, spans, into, confirmed); err != nil {
		return err
	}
	t.good = len(remote) == len(t.local) && len(t.offer.Blocks) == len(t.local) && r.memory.Verify(t.tokens, 0, t.data)
	return nil
}

// readEnded takes the result of a transfer. After a failed one decode waits on: the real engine learns nothing of it, either.
func (r *rank) readEnded(t *transferOf) {
	s, l := t.seq, legOf(t.seq)
	l.reading = false
	switch {
	case l.freed:
		r.core.Free(s)
		return
	case t.err != nil:
		r.cfg.Logger.Warn("reading KV failed", "room", t.offer.Room, "error", t.err)
		return
	case s.Done:
		return
	}
	size := r.memory.BlockBytes()
	for i := range len(t.data) / size {
		if err := r.memory.Store(t.local[i], t.data[i*size:(i+1)*size]); err != nil {
			r.core.Die(err)
			return
		}
	}
	r.counts.kvBytesRead += int64(len(t.data))
	if !t.good {
		r.counts.foreign++
	}
	s.Usage.Cached = t.offer.Cached
	r.commit(s, t.offer.First, len(t.tokens))
}

// commit continues a decode leg whose KV has arrived, with the first token of prefill.
func (r *rank) commit(s *core.Sequence, first, tokens int) {
	r.depart(s)
	r.enter(legOf(s), alone, time.Time{})
	r.core.Accept(s, first)
	if !s.Done {
		r.core.Arrived(s, tokens)
	}
}

// fakeToken is the first token of a request without a prefill engine.
func fakeToken(rid string, vocabulary int) int {
	sum := sha256.Sum256([]byte(rid))
	return model.FirstByte + int(binary.LittleEndian.Uint64(sum[:])%uint64(vocabulary-model.FirstByte))
}

// release ends a decode leg that has told prefill its pages, or was about to. The pages are free when prefill has confirmed that it
// does not write to them, or at the deadline.
func (r *rank) release(s *core.Sequence) {
	l := legOf(s)
	r.depart(s)
	if r.isFake(s) {
		r.free(s)
		return
	}
	r.enter(l, releasing, time.Now().Add(r.cfg.Times.Release))
	address, sent, room := l.endpoint.address, l.sent, *l.req.Rendezvous.Room
	r.core.Spawn(func(ctx context.Context) {
		if sent != nil {
			select {
			case <-sent:
			case <-ctx.Done():
				return
			}
		}
		_, err := r.ask(ctx, address, message{Kind: withdrawal, Room: room}, r.cfg.Times.Release)
		if err != nil {
			r.cfg.Logger.Warn("withdrawing from prefill", "room", room, "error", err)
			return
		}
		r.core.Post(func() {
			if l.stage == releasing {
				r.free(s)
			}
		})
	})
	if s.Blocks == nil { // it waited for pages
		r.free(s)
	}
}
