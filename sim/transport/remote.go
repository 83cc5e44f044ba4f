package transport

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/tandem-serving/tandem/transfer"
)

// partsUnderWay is how many parts of a read are requested at once on each connection.
const partsUnderWay = 4

// remote is one generation of a loaded peer of a TCP agent, with the connections to it.
type remote struct {
	agent *TCP
	notes *slot   // for notifications
	data  []*slot // for reads

	mu  sync.Mutex
	md  metadata
	err error // why it was closed
}

// slot is the place of one connection, which is opened when it is first needed, and again after a loss.
type slot struct {
	load    atomic.Int64  // bytes that callers wait for
	dialing chan struct{} // held by the caller that dials; others wait for the result

	// remote.mu guards what follows.
	lane     *lane
	failures int   // of dialling; tells a failure during a wait from an earlier one
	failure  error // the last of them
}

func newRemote(agent *TCP, md metadata) *remote {
	r := &remote{agent: agent, md: md, notes: newSlot()}
	for range agent.config.Connections {
		r.data = append(r.data, newSlot())
	}
	return r
}

func newSlot() *slot { return &slot{dialing: make(chan struct{}, 1)} }

// refresh uses newer metadata of the same generation. It returns false if the generation differs.
func (r *remote) refresh(md metadata) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.md.identity != md.identity {
		return false
	}
	r.md = md
	return true
}

func (r *remote) known() metadata {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.md
}

// close ends all connections; calls under way and later ones fail with why.
func (r *remote) close(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = why
	for _, s := range append([]*slot{r.notes}, r.data...) {
		if s.lane != nil {
			s.lane.fail(why)
		}
	}
}

// lane returns an open connection in the slot. It dials if there is none.
func (r *remote) lane(ctx context.Context, s *slot) (*lane, error) {
	l, seen, err := r.live(s)
	if l != nil || err != nil {
		return l, err
	}
	select {
	case s.dialing <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.dialing }()
	l, failures, err := r.live(s)
	if l != nil || err != nil {
		return l, err
	}
	if failures != seen {
		return nil, r.failure(s) // of a dial that began after this call
	}
	conn, err := dialSession(ctx, r.known(), r.agent.self, r.agent.config.DialTimeout)
	if err != nil {
		return nil, r.dialFailed(ctx, s, err)
	}
	return r.install(s, conn)
}

func (r *remote) live(s *slot) (l *lane, failures int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil, 0, r.err
	}
	if s.lane != nil && s.lane.cause() != nil {
		s.lane = nil
	}
	return s.lane, s.failures, nil
}

func (r *remote) failure(s *slot) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.failure
}

// dialFailed stores the failure for callers that waited for this dial, unless only this caller's time was over.
func (r *remote) dialFailed(ctx context.Context, s *slot, err error) error {
	if ctx.Err() != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.failures++
	s.failure = err
	return err
}

// install stores a connection in its slot. It starts the receiver while it holds the lock that close takes, so that Close does
// not begin to wait for goroutines while one starts.
func (r *remote) install(s *slot, conn *net.TCPConn) (*lane, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.err
	var l *lane
	if err == nil {
		l, err = newLane(conn, &r.agent.config)
	}
	if err != nil {
		_ = conn.Close() // nothing was sent on it
		return nil, err
	}
	s.lane = l
	r.agent.work.Go(l.run)
	return l, nil
}

// attempt is a call and the lane that it was sent on.
type attempt struct {
	call
	slot *slot
	lane *lane
}

// start sends the call on one of the slots. If a lane has ended before anything was sent, it is replaced once.
func (r *remote) start(ctx context.Context, a *attempt, s *slot) error {
	a.slot, a.state, a.err, a.done = s, waiting, nil, make(chan struct{})
	for try := 0; ; try++ {
		l, err := r.lane(ctx, s)
		if err != nil {
			return err
		}
		a.lane = l
		err = l.send(ctx, &a.call)
		if err == nil {
			s.load.Add(int64(a.total))
		}
		if !errors.Is(err, errLost) || try > 0 {
			return err
		}
	}
}

func (a *attempt) wait(ctx context.Context) error {
	defer a.slot.load.Add(-int64(a.total))
	return a.lane.wait(ctx, &a.call)
}

// notify is not repeated after a loss: the peer may have got the message.
func (r *remote) notify(ctx context.Context, message []byte) error {
	a := &attempt{call: call{op: opNotify, message: message}}
	if err := r.start(ctx, a, r.notes); err != nil {
		return err
	}
	return a.wait(ctx)
}

// read keeps a few parts requested per connection: enough that the peer always has a next request, and few enough that other
// reads get their turn.
func (r *remote) read(ctx context.Context, spans []transfer.Span, into [][]byte) error {
	if err := r.known().check(spans, into); err != nil {
		return err
	}
	window := partsUnderWay * len(r.data)
	var under []*attempt
	for cut := (cutter{spans: spans, into: into}); ; {
		for len(under) < window && cut.more() {
			a := cut.next()
			if err := r.start(ctx, a, r.idlest()); err != nil {
				return giveUp(under, err)
			}
			under = append(under, a)
		}
		if len(under) == 0 {
			return nil
		}
		if err := r.finish(ctx, under[0]); err != nil {
			return giveUp(under[1:], err)
		}
		under = under[1:]
	}
}

// finish waits for a part, and reads it once more if its connection was lost.
func (r *remote) finish(ctx context.Context, a *attempt) error {
	err := a.wait(ctx)
	if !errors.Is(err, errLost) {
		return err
	}
	if err := r.start(ctx, a, r.idlest()); err != nil {
		return err
	}
	return a.wait(ctx)
}

// giveUp returns err when no part can write to its buffers any more.
func giveUp(under []*attempt, err error) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, a := range under {
		_ = a.wait(ctx) // the first error is the one that matters
	}
	return err
}

// idlest returns the slot with the fewest outstanding bytes.
func (r *remote) idlest() *slot {
	best := r.data[0]
	for _, s := range r.data[1:] {
		if s.load.Load() < best.load.Load() {
			best = s
		}
	}
	return best
}
