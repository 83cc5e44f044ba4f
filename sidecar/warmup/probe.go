package warmup

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

// askSideChannels asks the side channels of all engines that are due, also of known ones, because only the side channel shows
// that an engine was restarted at its address. Engines that have not answered for longest come last, and wait for the next
// round if there are many.
func (w *Warmup) askSideChannels(ctx context.Context) {
	round, cancel := context.WithTimeout(ctx, 2*listInterval)
	defer cancel()
	forEach(round, w.dueHosts(), func(host string) {
		if w.Draining() {
			return
		}
		id, err := w.SideChannels.Connect(round, host, w.SideChannelPort)
		if ctx.Err() != nil {
			return
		}
		w.noteEngine(host, id)
		if err != nil {
			w.warnings.Warn("asking a prefill engine's side channel; it is retried, and until then the engine's first hand-offs may not be renewed", "error", err)
		}
	})
}

// dueHosts returns the hosts whose side channels are due. Of each host one side channel is known, until hand-offs name
// others.
func (w *Warmup) dueHosts() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	missed := make(map[string]int, len(w.pairs))
	for t, p := range w.pairs {
		if !time.Now().Before(p.ask) {
			missed[t.Host] = p.missed
		}
	}
	return slices.SortedFunc(maps.Keys(missed), func(a, b string) int { return cmp.Compare(missed[a], missed[b]) })
}

// noteEngine records which engine answered at a host, "" if none did. A pair whose engine was replaced is cold.
func (w *Warmup) noteEngine(host, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for t, p := range w.pairs {
		if t.Host != host {
			continue
		}
		p.ask = time.Now().Add(retryInterval)
		if id == "" {
			p.missed++
			continue
		}
		if p.engine != id {
			w.Log.Info("prefill engine can be notified", "target", t.String(), "engine", id, "before", p.engine)
			p.warm, p.hopeless, p.grown = p.warm && p.engine == "", false, 0
		}
		p.engine, p.missed = id, 0
	}
}

// probe finds pairs that are no longer warm although no side channel shows it. It assumes that an engine, also the decode
// engine, that does not answer /health is restarting; a restart takes longer than retryInterval.
func (w *Warmup) probe(ctx context.Context) {
	if w.healthy(ctx, w.Decode) != nil {
		w.markCold(func(pd.Target) bool { return true })
		return
	}
	forEach(ctx, w.unsureWarm(), func(t pd.Target) {
		if w.healthy(ctx, w.Prefill(t)) != nil {
			w.markCold(func(other pd.Target) bool { return other == t })
		}
	})
}

// unsureWarm returns the warm pairs whose prefill engine may have been replaced.
func (w *Warmup) unsureWarm() (targets []pd.Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for t, p := range w.pairs {
		if p.warm && (p.engine == "" || p.missed > 0) {
			targets = append(targets, t)
		}
	}
	return targets
}

// markCold marks the selected pairs to be warmed up again.
func (w *Warmup) markCold(selected func(pd.Target) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for t, p := range w.pairs {
		if selected(t) {
			p.warm = false
		}
	}
}

func (w *Warmup) healthy(ctx context.Context, e transport.Engine) error {
	ctx, cancel := context.WithTimeout(ctx, transport.ProbeTimeout)
	defer cancel()
	return e.Healthy(ctx)
}

// forEach runs f on every item, on maxProbes at a time, until ctx ends.
func forEach[T any](ctx context.Context, items []T, f func(T)) {
	var running sync.WaitGroup
	defer running.Wait()
	free := make(chan struct{}, maxProbes)
	for _, item := range items {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return
		}
		running.Go(func() {
			defer func() { <-free }()
			f(item)
		})
	}
}
