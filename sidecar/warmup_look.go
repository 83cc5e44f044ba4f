package sidecar

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// join has the book meet engines at their side channels, also those that it knows: only so does one show that was started
// again at its address. Those that have not answered for longest come last, and wait for the next round if they are many.
func (w *warmup) join(ctx context.Context) {
	round, cancel := context.WithTimeout(ctx, 2*listEvery)
	defer cancel()
	together(round, w.hosts(), func(host string) {
		if w.s.life.draining.Load() {
			return
		}
		id, err := w.s.leases.Meet(round, host, w.s.cfg.Keep.SideChannel)
		if ctx.Err() != nil {
			return
		}
		w.joined(host, id)
		if err != nil {
			w.warn("a prefill engine could not be met, which is tried again: its first hand-offs may not be held", "error", err)
		}
	})
}

// hosts are where partners are to be met. Before a hand-off names others, one side channel is known on each.
func (w *warmup) hosts() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	missed := make(map[string]int, len(w.known))
	for t, p := range w.known {
		if !time.Now().Before(p.ask) {
			missed[t.Host] = p.missed
		}
	}
	return slices.SortedFunc(maps.Keys(missed), func(a, b string) int { return cmp.Compare(missed[a], missed[b]) })
}

// joined notes which engine is at a host; "" is none that says so. The pair with another one than before is cold.
func (w *warmup) joined(host, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for t, p := range w.known {
		if t.Host != host {
			continue
		}
		p.ask = time.Now().Add(lookEvery)
		if id == "" {
			p.missed++
			continue
		}
		if p.engine != id {
			w.s.log.Info("prefill engine is met", "target", t.String(), "engine", id, "before", p.engine)
			p.warm, p.hopeless, p.grown = p.warm && p.engine == "", false, 0
		}
		p.engine, p.missed = id, 0
	}
}

// look finds what is not warm any more although no side channel tells. An engine that does not answer to /health is taken
// for one that is being started again, the decode engine too; they take longer for that than lookEvery.
func (w *warmup) look(ctx context.Context) {
	if w.healthy(ctx, w.s.decodeEngine()) != nil {
		w.cool(func(pd.Target) bool { return true })
		return
	}
	together(ctx, w.unsure(), func(t pd.Target) {
		if w.healthy(ctx, w.s.prefillEngine(t)) != nil {
			w.cool(func(other pd.Target) bool { return other == t })
		}
	})
}

// unsure are the warm partners that could be others by now.
func (w *warmup) unsure() (targets []pd.Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for t, p := range w.known {
		if p.warm && (p.engine == "" || p.missed > 0) {
			targets = append(targets, t)
		}
	}
	return targets
}

// cool has pairs warmed up again.
func (w *warmup) cool(which func(pd.Target) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for t, p := range w.known {
		if which(t) {
			p.warm = false
		}
	}
}

func (w *warmup) healthy(ctx context.Context, e transport.Engine) error {
	ctx, cancel := context.WithTimeout(ctx, transport.ProbeTimeout)
	defer cancel()
	return e.Healthy(ctx)
}

// together runs f on everything, on a few at a time, until ctx ends.
func together[T any](ctx context.Context, all []T, f func(T)) {
	var running sync.WaitGroup
	defer running.Wait()
	free := make(chan struct{}, looksAtOnce)
	for _, one := range all {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return
		}
		running.Go(func() {
			defer func() { <-free }()
			f(one)
		})
	}
}
