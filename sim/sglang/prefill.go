package sglang

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/transfer"
)

// rendezvous is where the legs of a prefill rank wait for those of decode.
type rendezvous struct {
	waiting   map[Room][]*core.Sequence
	ready     map[Room]transfer.Peer // decode engines that have pages for a bootstrap room, until its prefill legs have ended
	withdrawn map[Room]bool          // decode legs that ended before a prefill leg came
	order     []Room                 // of withdrawn, oldest first
}

func newRendezvous() rendezvous {
	return rendezvous{waiting: make(map[Room][]*core.Sequence), ready: make(map[Room]transfer.Peer), withdrawn: make(map[Room]bool)}
}

// maxWithdrawn bounds how many withdrawals are remembered.
const maxWithdrawn = 4096

// bootstrap has a prefill leg wait for decode.
func (r *rank) bootstrap(s *core.Sequence) {
	l := legOf(s)
	room := *l.req.Rendezvous.Room
	r.enter(l, bootstrapping, time.Now().Add(r.cfg.Times.Bootstrap))
	// The real check compares with the rank among those that share attention, which is 0 here on all ranks.
	if implied := room.rank(r.cfg.Ranks); implied != 0 && l.req.Rendezvous.PrefillRank == nil {
		r.lose(s, conflict(room, implied))
		return
	}
	if r.isFake(s) {
		r.begin(s, "")
		return
	}
	if r.withdrawn[room] {
		delete(r.withdrawn, room)
		r.lose(s, causeDecodeAbort)
		return
	}
	r.waiting[room] = append(r.waiting[room], s)
	if peer, ok := r.ready[room]; ok {
		r.beginRoom(room, peer)
	}
}

// beginRoom has the prefill legs of a bootstrap room computed.
func (r *rank) beginRoom(room Room, to transfer.Peer) {
	for _, s := range r.waiting[room] {
		r.page.Observe(transferBootstrap, milliseconds(time.Since(s.Times.Queued)))
		r.page.Observe(transferAlloc, 0) // decode has taken the pages
		r.begin(s, to)
	}
	delete(r.waiting, room)
}

func (r *rank) begin(s *core.Sequence, to transfer.Peer) {
	l := legOf(s)
	l.peer = to
	r.enter(l, prefilling, time.Time{})
	r.core.Wait(s)
}

// leave takes a leg out of its bootstrap room.
func (r *rank) leave(s *core.Sequence) {
	room := *legOf(s).req.Rendezvous.Room
	rest := r.waiting[room][:0]
	for _, other := range r.waiting[room] {
		if other != s {
			rest = append(rest, other)
		}
	}
	if r.waiting[room] = rest; len(rest) == 0 {
		delete(r.waiting, room)
	}
}

// answer answers a message of a decode engine. It runs outside of the loop.
func (r *rank) answer(question []byte) [][]byte {
	m, err := unpack(question)
	if err != nil {
		r.cfg.Logger.Warn("message of a decode engine", "error", err)
		return nil
	}
	alive := true
	switch m.Kind {
	case pages:
		var peer transfer.Peer
		if peer, err = r.transport.Load(context.Background(), m.Agent); err != nil {
			r.cfg.Logger.Warn("pages of a decode engine", "room", m.Room, "error", err)
			return nil
		}
		alive = r.core.Call(func() {
			r.ready[m.Room] = peer
			r.beginRoom(m.Room, peer)
		})
	case withdrawal:
		alive = r.core.Call(func() { r.withdraw(m.Room) })
	}
	if !alive {
		return nil
	}
	return [][]byte{message{Kind: greeting, Agent: r.transport.Metadata()}.pack()}
}

// withdraw ends the prefill legs of a bootstrap room whose decode leg has ended.
func (r *rank) withdraw(room Room) {
	delete(r.ready, room)
	found := false
	for s := range r.core.Live() {
		l := legOf(s)
		if s.Done || l.req.Rendezvous.Room == nil || *l.req.Rendezvous.Room != room {
			continue
		}
		found = true
		r.lose(s, causeDecodeAbort)
	}
	if found || r.withdrawn[room] {
		return
	}
	if len(r.order) == maxWithdrawn {
		delete(r.withdrawn, r.order[0])
		r.order = r.order[1:]
	}
	r.withdrawn[room] = true
	r.order = append(r.order, room)
}

// watchInterval is how often prefill looks whether the decode engine that reads its KV is there.
const watchInterval = time.Second

// handOver offers the KV of a prompt to decode. The prefill leg is answered when decode has it.
func (r *rank) handOver(s *core.Sequence, last core.Output) {
	l := legOf(s)
	r.enter(l, inflight, time.Time{})
	l.last = last
	l.last.Finish, l.last.StopReason = "length", nil
	room := *l.req.Rendezvous.Room
	m := message{Kind: offer, Room: room, Blocks: kv.IDs(s.Blocks), First: last.Token, Cached: s.Usage.Cached}
	watch, over := context.WithCancel(context.Background())
	l.over = over
	r.core.Spawn(func(ctx context.Context) {
		defer context.AfterFunc(ctx, over)()
		err := r.watchDecode(watch, l.peer, m)
		if err == nil || watch.Err() != nil {
			return
		}
		r.core.Post(func() {
			if l.stage == inflight {
				r.cfg.Logger.Warn("handing KV over failed", "room", room, "error", err)
				delete(r.ready, room)
				r.lose(s, causeDisconnect)
			}
		})
	})
}

// watchDecode offers KV, and returns an error if the decode engine is gone before ctx ends. It runs outside of the loop.
func (r *rank) watchDecode(ctx context.Context, to transfer.Peer, m message) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		if err := r.transport.Notify(ctx, to, m.pack()); err != nil {
			return err
		}
		select {
		case <-tick.C:
			m = message{Kind: ping}
		case <-ctx.Done():
			return nil
		}
	}
}

// handedOver answers the prefill legs of a bootstrap room: decode has the KV.
func (r *rank) handedOver(room Room) {
	delete(r.ready, room)
	for s := range r.core.Live() {
		l := legOf(s)
		if s.Done || l.stage != inflight || *l.req.Rendezvous.Room != room {
			continue
		}
		l.over()
		r.countTransfer(time.Since(l.since), len(s.Blocks)*r.memory.BlockBytes())
		r.end(s, l.last)
	}
}

func conflict(room Room, implied int) string {
	return fmt.Sprintf("follow_bootstrap_room conflict: dispatched to dp_rank 0 but bootstrap_room %s implies dp_rank %d. "+
		"Set SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1 to allow mixed routing.", room, implied)
}
