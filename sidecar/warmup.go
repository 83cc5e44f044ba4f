package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// warmup gets acquainted with prefill engines before traffic does. Those that --prefill-discovery finds are met at their
// side channels, if there is a keeper, so that their first hand-offs can be held and given back. With --warm-up they are
// made to meet the decode engine as well: one tiny hand-off is run through each new pair, so that no user's request pays for
// the engines' own handshake (measured on loopback 60 to 200 ms, more over a network).
//
// Nothing is routed by what is found, nobody waits for it, and all of it may fail.
type warmup struct {
	s    *Server
	find func(context.Context) ([]pd.Target, error)

	looked time.Time // at engines that are known, last

	mu       sync.Mutex // guards what follows
	known    map[pd.Target]*partner
	hopeless bool      // the decode engine takes no requests of ours
	told     bool      // that something is hopeless
	warned   time.Time // of anything else, last
}

// partner is a prefill engine that is listed.
type partner struct {
	engine string    // its id, by its side channel; "" = not known
	missed int       // times in a row that its side channel did not say
	ask    time.Time // its side channel, not before
	warm   bool      // a hand-off went through
	again  time.Time // no hand-off is tried before
	grown  int       // how often the prompt was too short

	hopeless bool // there will be no hand-off
}

const (
	// listEvery is how often new engines are looked for: pickers hear of them at once, and users come with that.
	listEvery = 5 * time.Second
	// lookEvery is how often those that are known are looked at, and what failed is tried again.
	lookEvery = 30 * time.Second
	// warmupPace is the time between two hand-offs, which go one by one. A decode engine shakes hands with one peer after the
	// other, so that a user's first hand-off waits for ours; and a new prefill engine hears from all decode engines at once.
	warmupPace = time.Second
	// looksAtOnce bounds the engines that are looked at at a time. One that does not answer takes up to 5 s.
	looksAtOnce = 4
)

// run goes on until ctx ends or the sidecar has drained. What is under way when a drain begins may go on while users'
// requests do; nothing else is begun.
func (w *warmup) run(ctx context.Context) {
	if w.s.leases == nil && !w.s.cfg.Keep.WarmUp {
		w.s.log.Info("prefill engines are not looked for: there is no keeper to meet them, nor --warm-up")
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var loops sync.WaitGroup
	loops.Go(func() { w.every(ctx, listEvery, w.round) })
	if w.s.cfg.Keep.WarmUp {
		loops.Go(func() { w.every(ctx, warmupPace, w.send) })
	}
	select {
	case <-w.s.life.idle:
	case <-ctx.Done():
	}
	cancel()
	loops.Wait()
}

// every runs f at once and then at an interval, until the sidecar drains.
func (w *warmup) every(ctx context.Context, interval time.Duration, f func(context.Context)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !w.s.life.draining.Load() {
		f(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// round finds out who is there.
func (w *warmup) round(ctx context.Context) {
	targets, err := w.find(ctx)
	switch {
	case err == nil:
		w.list(targets)
	case ctx.Err() == nil:
		w.warn("looking for prefill engines, which is tried again", "error", err)
	}
	if w.s.leases != nil {
		w.join(ctx)
	}
	if w.s.cfg.Keep.WarmUp && time.Since(w.looked) >= lookEvery {
		w.look(ctx)
		w.looked = time.Now()
	}
}

// list notes who is listed, and forgets who is not: another engine may come at the address.
func (w *warmup) list(targets []pd.Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := make(map[pd.Target]*partner, len(targets))
	for _, t := range targets {
		if w.s.allow.check(t) == nil {
			known[t] = cmp.Or(w.known[t], &partner{})
		}
	}
	w.known = known
}

// send runs one hand-off, if there is a cold pair and the decode engine is ready.
func (w *warmup) send(ctx context.Context) {
	t, ok := w.next()
	if !ok || w.healthy(ctx, w.s.decodeEngine()) != nil {
		return // who waits for the decode engine says so
	}
	begun := time.Now()
	err := w.meet(ctx, t)
	if ctx.Err() != nil {
		return
	}
	w.s.metrics.warmups.WithLabelValues(w.sent(t, err)).Inc()
	if err == nil {
		w.s.log.Info("prefill engine is warm", "target", t.String(), "took", time.Since(begun))
	}
}

// next is a cold pair's prefill engine, in no order: not all decode engines should begin with the same one.
func (w *warmup) next() (t pd.Target, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hopeless {
		return t, false
	}
	for t, p := range w.known {
		if !p.warm && !p.hopeless && !time.Now().Before(p.again) {
			return t, true
		}
	}
	return t, false
}

// sent notes what came of a hand-off, and gives the name of the result.
func (w *warmup) sent(t pd.Target, err error) (result string) {
	w.mu.Lock()
	p := cmp.Or(w.known[t], &partner{}) // it may have been forgotten meanwhile
	p.warm, p.again = err == nil, time.Now().Add(lookEvery)
	if errors.Is(err, dialect.ErrNoOffer) {
		p.again = time.Time{}
		if p.grown++; p.grown > warmupGrowths {
			err = fmt.Errorf("%w: %w", errNothing, err)
		}
	}
	p.hopeless = errors.Is(err, errPrefillLocked) || errors.Is(err, errNothing)
	w.hopeless = errors.Is(err, errDecodeLocked)
	hopeless, told := p.hopeless || w.hopeless, w.told
	w.told = told || hopeless
	w.mu.Unlock()
	switch {
	case err == nil:
		return "ok"
	case !hopeless:
		w.warn("warming up a pair, which is tried again", "target", t.String(), "error", err)
		return "failed"
	case !told:
		w.s.log.Warn("pairs of engines are not warmed up: run the sidecar without --warm-up", "target", t.String(), "error", err)
	}
	return "refused"
}

// warn logs once in a while what can happen with hundreds of engines, again and again.
func (w *warmup) warn(msg string, args ...any) {
	w.mu.Lock()
	level, now := slog.LevelDebug, time.Now()
	if now.Sub(w.warned) >= lookEvery {
		level, w.warned = slog.LevelWarn, now
	}
	w.mu.Unlock()
	w.s.log.Log(context.Background(), level, msg, args...)
}
