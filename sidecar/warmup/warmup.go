package warmup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/loglimit"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// Config says which engines a Warmup prepares, and how it reaches them.
type Config struct {
	// Find lists the prefill engines that exist now. Those that Allowed rejects are ignored.
	Find    Finder
	Allowed func(pd.Target) bool

	// SideChannels asks prefill engines for their NIXL agents, at SideChannelPort of their hosts. nil: it is not used.
	SideChannels    SideChannels
	SideChannelPort int

	// HandOff runs one hand-off. nil: pairs are not warmed up.
	HandOff HandOff
	Decode  transport.Engine
	Prefill func(pd.Target) transport.Engine

	// Draining reports whether the sidecar drains; Drained is closed when no request runs any more.
	Draining func() bool
	Drained  <-chan struct{}

	Log *slog.Logger
	// Count counts a hand-off by its result: ok, failed (another try follows) or refused (none does).
	Count func(result string)
}

// SideChannels asks a prefill engine's side channel which engine it belongs to, and prepares to notify that engine.
type SideChannels interface {
	Connect(ctx context.Context, host string, port int) (engineID string, err error)
}

// HandOff runs one completion with these headers and this body, prefilled at target and decoded by the local engine. The
// error wraps ErrLocked or dialect.ErrNoHandoff where they apply.
type HandOff func(ctx context.Context, target pd.Target, header http.Header, body []byte) error

// Warmup prepares the prefill engines that Config.Find lists. Make it with New.
type Warmup struct {
	Config
	warnings *loglimit.Limiter

	probed time.Time // when warm pairs were last probed

	mu     sync.Mutex // guards the fields below
	pairs  map[pd.Target]*pair
	locked bool // the decode engine requires an API key
	warned bool // the log says that some pair is never warmed up
}

// pair is the local decode engine and one listed prefill engine.
type pair struct {
	engine string    // the prefill engine's id, from its side channel; "" = not known
	missed int       // how many times in a row its side channel did not answer
	ask    time.Time // when its side channel is due
	warm   bool      // a hand-off succeeded
	again  time.Time // when the next hand-off is due
	grown  int       // how many times the prompt was too short

	hopeless bool // no further hand-off is tried
}

const (
	// listInterval is how often new engines are looked for: pickers send users' requests to them at once.
	listInterval = 5 * time.Second
	// retryInterval is how often known engines are probed, and failures retried.
	retryInterval = 30 * time.Second
	// pace is the time between two hand-offs, which run one at a time. A decode engine shakes hands with one peer after the
	// other, so a user's first hand-off waits for ours; and all decode engines contact a new prefill engine at once.
	pace = time.Second
	// maxProbes bounds how many engines are probed at a time. One that does not answer takes up to 5 s.
	maxProbes = 4
)

// New makes a Warmup. Run starts it.
func New(c Config) *Warmup {
	return &Warmup{Config: c, warnings: loglimit.New(c.Log, retryInterval)}
}

// Run works until ctx ends or the sidecar has drained. When a drain begins it starts nothing new; a running hand-off
// continues while users' requests do.
func (w *Warmup) Run(ctx context.Context) {
	if w.SideChannels == nil && w.HandOff == nil {
		w.Log.Info("prefill engines are not discovered: there is no NIXL agent process that could notify them, nor --warm-up")
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var loops sync.WaitGroup
	loops.Go(func() { w.every(ctx, listInterval, w.round) })
	if w.HandOff != nil {
		loops.Go(func() { w.every(ctx, pace, w.warmNext) })
	}
	select {
	case <-w.Drained:
	case <-ctx.Done():
	}
	cancel()
	loops.Wait()
}

// every runs f at once and then at an interval, until the sidecar drains.
func (w *Warmup) every(ctx context.Context, interval time.Duration, f func(context.Context)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !w.Draining() {
		f(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// round lists the engines, asks side channels, and probes warm pairs.
func (w *Warmup) round(ctx context.Context) {
	targets, err := w.Find(ctx)
	switch {
	case err == nil:
		w.list(targets)
	case ctx.Err() == nil:
		w.warnings.Warn("listing prefill engines; it is retried", "error", err)
	}
	if w.SideChannels != nil {
		w.askSideChannels(ctx)
	}
	if w.HandOff != nil && time.Since(w.probed) >= retryInterval {
		w.probe(ctx)
		w.probed = time.Now()
	}
}

// list makes pairs for the listed engines, and drops the others, because another engine may get the address.
func (w *Warmup) list(targets []pd.Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pairs := make(map[pd.Target]*pair, len(targets))
	for _, t := range targets {
		if w.Allowed(t) {
			pairs[t] = cmp.Or(w.pairs[t], &pair{})
		}
	}
	w.pairs = pairs
}

// warmNext runs one hand-off, if there is a cold pair and the decode engine is healthy.
func (w *Warmup) warmNext(ctx context.Context) {
	t, ok := w.nextCold()
	if !ok || w.healthy(ctx, w.Decode) != nil {
		return // the sidecar's readiness reports an unhealthy decode engine
	}
	begun := time.Now()
	err := w.warmUp(ctx, t)
	if ctx.Err() != nil {
		return
	}
	w.Count(w.note(t, err))
	if err == nil {
		w.Log.Info("prefill engine is warm", "target", t.String(), "took", time.Since(begun))
	}
}

// nextCold returns the prefill engine of a cold pair, in random order, so that decode engines begin with different ones.
func (w *Warmup) nextCold() (t pd.Target, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.locked {
		return t, false
	}
	for t, p := range w.pairs {
		if !p.warm && !p.hopeless && !time.Now().Before(p.again) {
			return t, true
		}
	}
	return t, false
}

// note records how a hand-off ended, and returns the result to count.
func (w *Warmup) note(t pd.Target, err error) (result string) {
	w.mu.Lock()
	p := cmp.Or(w.pairs[t], &pair{}) // it may have been dropped meanwhile
	p.warm, p.again = err == nil, time.Now().Add(retryInterval)
	if errors.Is(err, dialect.ErrNoHandoff) {
		p.again = time.Time{}
		if p.grown++; p.grown > maxGrowths {
			err = fmt.Errorf("%w: %w", errNoHandoff, err)
		}
	}
	p.hopeless = errors.Is(err, ErrLocked) || errors.Is(err, errNoHandoff)
	w.locked = errors.Is(err, errDecodeLocked)
	hopeless, warned := p.hopeless || w.locked, w.warned
	w.warned = warned || hopeless
	w.mu.Unlock()
	switch {
	case err == nil:
		return "ok"
	case !hopeless:
		w.warnings.Warn("warming up a pair of engines; it is retried", "target", t.String(), "error", err)
		return "failed"
	case !warned:
		w.Log.Warn("pairs of engines are not warmed up: run the sidecar without --warm-up", "target", t.String(), "error", err)
	}
	return "refused"
}
