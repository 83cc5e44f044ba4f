package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// pull is one transfer of KV into blocks of this engine.
type pull struct {
	seq    *sequence
	from   source
	remote []int // block ids at the owner, as many as local ones are to be filled
	local  []*block
	tokens []int // of the prompt, for verifying
	start  int   // first token to arrive
	data   []byte
	good   bool // data is the KV of tokens
	err    error
}

// startLoad begins the transfer of what a sequence's blocks lack. It has its blocks, and holds them meanwhile.
func (e *Engine) startLoad(s *sequence) {
	ids, err := s.params.blockIDs()
	if err != nil {
		e.die(fmt.Errorf("loading KV for %s: %w", s.id, err))
		return
	}
	from, ok := s.params.source()
	if !ok {
		s.load = loadStuck
		e.log.Warn("hand-off lacks remote_* members: its request will wait for ever", "request", s.id)
		return
	}
	local := s.blocks[s.computed/e.cfg.KV.BlockSize:]
	if len(ids) < len(local) {
		e.die(fmt.Errorf("loading KV for %s: %d remote blocks for %d local ones", s.id, len(ids), len(local)))
		return
	}
	s.load = loadRunning
	p := &pull{seq: s, from: from, local: local, start: s.computed, tokens: slices.Clone(s.tokens[:s.prompt])}
	p.remote = ids[len(ids)-len(local):] // what is too many is cut off in front, where the local prefix is
	e.spawn(func(ctx context.Context) {
		p.err = e.transferKV(ctx, p)
		e.post(func() { e.loaded(p) })
	})
}

// transferKV runs beside the loop. There is no deadline once the peer is known: a peer that hangs, hangs the request.
func (e *Engine) transferKV(ctx context.Context, p *pull) error {
	peer, fresh, err := e.peers.get(ctx, p.from)
	if err != nil {
		return err
	}
	wait := e.cfg.Model.transferTime(len(p.tokens) - p.start)
	if fresh {
		wait += e.cfg.Model.handshakeTime()
	}
	begun := time.Now()
	if err := sleep(ctx, e.scaled(wait)); err != nil {
		return err
	}
	blockBytes := e.kv.blockBytes()
	p.data = make([]byte, len(p.remote)*blockBytes)
	spans, into := make([]transfer.Span, len(p.remote)), make([][]byte, len(p.remote))
	for i, id := range p.remote {
		if id < 0 {
			return fmt.Errorf("reading remote block %d: %w", id, transfer.ErrRange)
		}
		spans[i] = transfer.Span{Offset: uint64(id) * uint64(blockBytes), Length: uint64(blockBytes)}
		into[i] = p.data[i*blockBytes : (i+1)*blockBytes]
	}
	if err := e.transport.Read(ctx, peer, spans, into, []byte(p.from.requestID+":1")); err != nil {
		e.peers.forgetLost(p.from.engineID, err)
		return fmt.Errorf("reading KV from %s: %w", p.from.engineID, err)
	}
	p.good = verifyKV(e.kv.seed, e.kv.slot, p.tokens, p.start, p.data)
	e.metrics.transferred(time.Since(begun), len(p.data), descriptors(p.remote))
	return nil
}

// descriptors counts the runs of consecutive blocks, which a transfer merges into one.
func descriptors(ids []int) int {
	n := 0
	for i, id := range ids {
		if i == 0 || id != ids[i-1]+1 {
			n++
		}
	}
	return n
}

// sleep returns the context's error if it ends first. The link is busy, whoever leaves.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// loaded takes the result of a transfer, in the loop.
func (e *Engine) loaded(p *pull) {
	s := p.seq
	if p.err != nil {
		e.metrics.add(failedTransfers, 1)
		e.log.Warn("loading KV failed", "request", s.id, "error", p.err)
	}
	if s.done { // its client has left; the owner has been told by the read, or keeps its lease
		e.free(s)
		return
	}
	if p.err != nil {
		e.loadFailed(s)
		return
	}
	if err := e.storeKV(p); err != nil {
		e.die(err)
		return
	}
	s.external = s.prompt - p.start
	s.usage.cached = s.params.cachedTokens(s.prompt)
	s.load = loaded
	s.computed = s.prompt
	e.cacheBlocks(s)
	s.computed = s.prompt - 1 // the last token is computed here, because the next one is drawn from it
	e.waiting = slices.Insert(e.waiting, 0, s)
}

func (e *Engine) storeKV(p *pull) error {
	n := e.kv.blockBytes()
	for i, b := range p.local {
		if err := e.kv.store(b, p.data[i*n:(i+1)*n]); err != nil {
			return err
		}
	}
	e.counts.kvBytesRead += int64(len(p.data))
	if !p.good {
		e.counts.foreign++
	}
	return nil
}

// loadFailed applies the kv_load_failure_policy.
func (e *Engine) loadFailed(s *sequence) {
	s.load = noLoad
	if e.cfg.KV.LoadFailure == RecomputeLoad {
		e.pool.release(s.blocks)
		s.blocks, s.computed = nil, 0
		e.waiting = slices.Insert(e.waiting, 0, s)
		return
	}
	s.done = true
	e.metrics.finished(s, "error", time.Now())
	s.out.put(output{index: s.index, token: -1, err: errInternal})
	e.free(s)
}

// rejectLoad tells the owner of KV that nobody will read it: the request was refused, or left, before it had blocks.
// Params that name no owner kill the engine here, because it looks the members up unchecked.
func (e *Engine) rejectLoad(p transferParams) {
	if !p.remotePrefill {
		return
	}
	from, ok := p.source()
	if !ok {
		e.die(errors.New("releasing a hand-off that lacks remote_* members"))
		return
	}
	e.release(from)
}

func (e *Engine) release(from source) { e.tell(from, from.requestID+":1", func() {}) }

// notifyTimeout bounds a notification, and with it the goroutines that peers without an answer can hold.
const notifyTimeout = 5 * time.Second

// tell sends a message beside the loop, which then runs done.
func (e *Engine) tell(to source, message string, done func()) {
	e.spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
		defer cancel()
		peer, _, err := e.peers.get(ctx, to)
		if err == nil {
			if err = e.transport.Notify(ctx, peer, []byte(message)); err != nil {
				e.peers.forgetLost(to.engineID, err)
			}
		}
		if err != nil {
			e.metrics.add(failedNotifications, 1)
			e.metrics.add(failedTransfers, 1)
			e.log.Warn("notifying the owner of KV failed", "engine", to.engineID, "error", err)
		}
		e.post(done)
	})
}

// heartbeat keeps the leases of everything alive that has not arrived here.
func (e *Engine) heartbeat() {
	var pending []*sequence
	for s := range e.live {
		if !s.done && (s.load == loadWanted || s.load == loadRunning) {
			pending = append(pending, s)
		}
	}
	e.beat(pending)
}

// beat sends one heartbeat per owner. An owner that has not taken the last one is left out.
func (e *Engine) beat(pending []*sequence) {
	owners := make(map[source][]string)
	for _, s := range pending {
		if from, ok := s.params.source(); ok && s.params.heartbeats() {
			id := from.requestID
			from.requestID = ""
			owners[from] = append(owners[from], id)
		}
	}
	for owner, ids := range owners {
		if e.peers.startBeat(owner.engineID) {
			e.tell(owner, "HB:"+strings.Join(ids, ","), func() { e.peers.endBeat(owner.engineID) })
		}
	}
}

// peers are the engines this one knows, by engine id. The address counts at first contact only.
type peers struct {
	transport transfer.Transport
	fetch     func(context.Context, string) ([]byte, error)
	timeout   time.Duration

	mu      sync.Mutex
	known   map[string]*peer
	beating map[string]bool
}

type peer struct {
	ready chan struct{} // closed once name or err is there
	name  transfer.Peer
	err   error
}

// get returns the peer, after a handshake if it is not known yet: then fresh is true for the one who waited first.
// All who ask during a handshake wait for the same one.
func (ps *peers) get(ctx context.Context, from source) (name transfer.Peer, fresh bool, err error) {
	ps.mu.Lock()
	p, ok := ps.known[from.engineID]
	if !ok {
		p = &peer{ready: make(chan struct{})}
		ps.known[from.engineID] = p
	}
	ps.mu.Unlock()
	if ok {
		select {
		case <-p.ready:
			return p.name, false, p.err
		case <-ctx.Done():
			return "", false, ctx.Err()
		}
	}
	p.name, p.err = ps.handshake(ctx, from)
	if p.err != nil {
		ps.mu.Lock()
		delete(ps.known, from.engineID)
		ps.mu.Unlock()
	}
	close(p.ready)
	return p.name, true, p.err
}

// handshakeRetry is the pause between two attempts to reach an unknown peer.
const handshakeRetry = 200 * time.Millisecond

func (ps *peers) handshake(ctx context.Context, from source) (transfer.Peer, error) {
	ctx, cancel := context.WithTimeout(ctx, ps.timeout)
	defer cancel()
	metadata, err := ps.fetch(ctx, from.address)
	for err != nil {
		// Like the socket of the real side channel, which keeps trying a closed port until its time is up.
		if sleep(ctx, handshakeRetry) != nil {
			return "", fmt.Errorf("handshake with %s: %w", from.address, err)
		}
		metadata, err = ps.fetch(ctx, from.address)
	}
	name, err := ps.transport.Load(ctx, metadata)
	if err != nil {
		return "", fmt.Errorf("handshake with %s: %w", from.address, err)
	}
	if string(name) != from.engineID {
		return "", fmt.Errorf("handshake with %s: engine ID mismatch: it is %s, not %s", from.address, name, from.engineID)
	}
	return name, nil
}

// forgetLost makes the next request meet the peer anew, if err says that it is not what it was.
func (ps *peers) forgetLost(engineID string, err error) {
	if !errors.Is(err, transfer.ErrGone) && !errors.Is(err, transfer.ErrRestarted) && !errors.Is(err, transfer.ErrUnknownPeer) {
		return
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.known, engineID)
	ps.transport.Forget(transfer.Peer(engineID))
}

func (ps *peers) startBeat(engineID string) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.beating[engineID] {
		return false
	}
	if ps.beating == nil {
		ps.beating = make(map[string]bool)
	}
	ps.beating[engineID] = true
	return true
}

func (ps *peers) endBeat(engineID string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.beating, engineID)
}

func joinAddress(host, port string) string {
	if _, err := strconv.Atoi(port); err != nil {
		port = "0"
	}
	return net.JoinHostPort(host, port)
}
