package worker

import (
	"context"
	"time"

	"github.com/tandem-serving/tandem/batch/store"
)

const (
	// leaseTime is how long a lease may stay without a renewal, of which there is one each saveEvery: a worker that has saved nothing for so long
	// was killed, or is of no use.
	leaseTime = 30 * time.Second
	// lookEvery is how often leases are looked at.
	lookEvery = time.Second
	// mostBlind is the longest pause between two looks: after a longer one, or if the database was away, leases may be old because no worker could
	// renew them.
	mostBlind = leaseTime / 3
)

// watch tells which leases are not renewed. It goes by the time that passes in this process, so clocks that are set, or that differ between
// machines, neither end a lease nor prolong it.
type watch struct {
	seen map[store.Lease]time.Time // when each was first seen as it is
	last time.Time                 // look
}

// stale returns the leases that were not renewed for leaseTime. all are those of the store at a time, whose monotonic reading counts.
func (v *watch) stale(all []store.Lease, now time.Time) (stale []store.Lease) {
	blind := now.Sub(v.last) > mostBlind
	seen := make(map[store.Lease]time.Time, len(all))
	for _, l := range all {
		since, known := v.seen[l]
		if blind || !known {
			since = now
		}
		seen[l] = since
		if now.Sub(since) >= leaseTime {
			stale = append(stale, l)
		}
	}
	v.seen, v.last = seen, now
	return stale
}

// watchLeases revokes leases that are not renewed, until ctx ends.
func (w *Worker) watchLeases(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var v watch
	for {
		leases, err := w.store.Leases(ctx)
		if err != nil {
			w.report(ctx, err)
			v = watch{}
		} else {
			w.revoke(ctx, v.stale(leases, time.Now()))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// revoke revokes leases, but those of chunks that this worker has: it knows that they run, and that the store does not take its results.
func (w *Worker) revoke(ctx context.Context, stale []store.Lease) {
	for _, l := range stale {
		w.mu.Lock()
		own := w.active[chunkID{l.Batch, l.Chunk, l.Epoch}]
		w.mu.Unlock()
		if own {
			continue
		}
		err := w.store.Revoke(ctx, l)
		if err == nil {
			w.log.Info("a lease was not renewed: its lines run again", "batch", l.Batch, "chunk", l.Chunk)
			w.Wake()
		}
		w.report(ctx, err)
	}
}
