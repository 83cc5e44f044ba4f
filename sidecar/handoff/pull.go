package handoff

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/intake"
)

// Pulls configures from where engines fetch blocks that they lack.
type Pulls struct {
	// Dial makes a connection to the memory of an engine, if the engine's address is allowed.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Rank returns the data-parallel rank of an engine, by the port of its pod that the picker names.
	Rank func(port uint16) int
	// Self is the address of this pod; "" = not known. Its engine does not fetch from itself.
	Self string
	// Lease is how long the local engine keeps what a prefill engine is to read back.
	Lease time.Duration
}

// The results of a request whose route names an engine with blocks of its prompt; metric labels.
const (
	pullAsked       = "asked"       // the engine that computes the prompt is told to fetch
	pullUnreachable = "unreachable" // the named engine is not known to be alive
	pullNone        = "not-needed"  // the request cannot use it, or the named engine computes the prompt itself
)

const (
	// tierTrust is for how long an engine's memory is taken to accept connections because it did. An engine that is sent to one that has
	// died loses its sessions with others.
	tierTrust = time.Second
	// tierDoubt is for how long one that did not is not tried again.
	tierDoubt = 5 * time.Second
	// tierTimeout is how long a request waits for the connection.
	tierTimeout = 200 * time.Millisecond
	// maxTiers bounds how many are remembered. Where no shared secret is required, clients may name any address that is allowed.
	maxTiers = 1024
)

// tierList knows which engines' memories accept connections. It is safe for concurrent use.
type tierList struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	now  func() time.Time

	mu    sync.Mutex // guards the rest, with the tiers
	tiers map[pd.Target]*tier
}

// tier is the memory of one engine.
type tier struct {
	until  time.Time     // when it is tried again
	tried  chan struct{} // closed when the try has ended
	accept bool          // it did
}

func newTierList(c Config) *tierList {
	return &tierList{dial: c.Pulls.Dial, now: c.Now, tiers: map[pd.Target]*tier{}}
}

// accepts reports whether a memory accepts connections. Of several requests one tries, and the others wait for it.
func (l *tierList) accepts(ctx context.Context, at pd.Target) bool {
	l.mu.Lock()
	t := l.tiers[at]
	if t == nil || t.ended() && !l.now().Before(t.until) {
		if t == nil && len(l.tiers) >= maxTiers {
			clear(l.tiers)
		}
		t = &tier{tried: make(chan struct{})}
		l.tiers[at] = t
		l.mu.Unlock()
		accept := l.try(at)
		l.mu.Lock()
		t.accept, t.until = accept, l.now().Add(tierDoubt)
		if accept {
			t.until = l.now().Add(tierTrust)
		}
		close(t.tried)
	}
	l.mu.Unlock()
	select {
	case <-t.tried:
		return t.accept
	case <-ctx.Done():
		return false
	}
}

// ended reports whether the try has ended.
func (t *tier) ended() bool {
	select {
	case <-t.tried:
		return true
	default:
		return false
	}
}

// try connects. It does not end with its request, because others wait for it.
func (l *tierList) try(at pd.Target) bool {
	ctx, cancel := context.WithTimeout(context.Background(), tierTimeout)
	defer cancel()
	c, err := l.dial(ctx, "tcp", at.String())
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// tier returns the memory from which the engine at an address, zero for the local one, is to fetch blocks of a request's prompt, if there
// is one.
func (x *Exchange) tier(req *intake.Request, at pd.Target) (memory pd.Target, ok bool) {
	source := x.Route.Source
	p, able := x.legs.Dialect.(dialect.Puller)
	if source == (pd.Target{}) || !able {
		return memory, false
	}
	memory, ok = p.Tier(source, x.legs.Pulls.Rank(source.Port))
	result := pullNone
	switch {
	case !ok:
		return memory, false
	case req.AsIs || req.Fit != request.FitSplit || source == at || at == (pd.Target{}) && source.Host == x.legs.Pulls.Self:
	case x.legs.down.has(source) || x.legs.hung.has(source) || !x.legs.tiers.accepts(x.Context, memory):
		result = pullUnreachable
	default:
		result = pullAsked
	}
	x.legs.Metrics.Pulls.WithLabelValues(result).Inc()
	return memory, result == pullAsked
}

// pull tells an attempt's prefill engine from where to fetch blocks.
func (x *Exchange) pull(a dialect.Attempt, req *intake.Request, target pd.Target) {
	if p, ok := a.(dialect.PullAttempt); ok {
		if memory, ok := x.tier(req, target); ok {
			p.PullFrom(memory)
		}
	}
}

// localPayload returns the body of a leg to the local engine.
func (x *Exchange) localPayload(req *intake.Request) (request.Payload, error) {
	if memory, ok := x.tier(req, pd.Target{}); ok {
		return x.legs.Dialect.(dialect.Puller).Pull(req.Request, memory)
	}
	return req.Local()
}
