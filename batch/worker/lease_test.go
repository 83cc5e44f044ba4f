package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/store"
)

func TestWatch(t *testing.T) {
	held := store.Lease{Batch: "b", Chunk: 1, Epoch: 2, Renewals: 3}
	renewed, passed := held, held
	renewed.Renewals++
	passed.Epoch++
	begun := time.Now()
	for _, c := range []struct {
		name  string
		looks []store.Lease // one a second
		gap   time.Duration // before the last look, instead of a second
		want  bool          // the last look finds it stale
	}{
		{"not renewed", repeat(held, 31), 0, true},
		{"not renewed for a shorter time", repeat(held, 30), 0, false},
		{"renewed", append(repeat(held, 20), repeat(renewed, 20)...), 0, false},
		{"of another worker", append(repeat(held, 20), repeat(passed, 20)...), 0, false},
		{"not seen for a while", repeat(held, 25), time.Hour, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v watch
			var stale []store.Lease
			at := begun
			for i, l := range c.looks {
				if at = at.Add(time.Second); i == len(c.looks)-1 {
					at = at.Add(c.gap)
				}
				stale = v.stale([]store.Lease{l, {Batch: "other", Renewals: int64(i)}}, at)
			}
			if got := slices.Contains(stale, held); got != c.want || len(stale) > 1 {
				t.Errorf("stale are %+v", stale)
			}
		})
	}
}

func repeat(l store.Lease, n int) []store.Lease { return slices.Repeat([]store.Lease{l}, n) }

// TestClockIsSet sets the clock of one of two workers that share a store, while it has a chunk: no line is sent twice, and each has a result.
func TestClockIsSet(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(fmt.Sprint(jump), func(t *testing.T) {
			const n = 10
			release := make(chan struct{})
			var first atomic.Int64 // requests of the first batch
			b := newBench(t, func(w http.ResponseWriter, r *http.Request, prompt string) {
				if prompt != "second" && first.Add(1) > n/2 {
					select {
					case <-release:
					case <-r.Context().Done():
						return
					}
				}
				echo(w, r, prompt)
			})
			var ahead atomic.Int64
			jumps := b.newWorker()
			jumps.wall = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
			b.run(jumps)
			id := b.create(lines(n), 24*time.Hour)
			b.wait(id, func(got batch.Batch) bool { return got.Counts.Completed == n/2 })
			ahead.Store(int64(jump))
			b.work()
			// Both workers look for chunks until a later batch has ended.
			b.wait(b.create(line("1", "second"), 24*time.Hour), ended)
			before := b.leases(id)
			b.awaitRenewals(id, before.Renewals+2)
			close(release)
			got := b.wait(id, ended)
			if got.Status != batch.Completed || got.Counts.Completed != n {
				t.Errorf("the batch is %+v", got)
			}
			b.mustHaveAll(got, n)
			if before.Epoch != 1 || first.Load() != n {
				t.Errorf("%d requests for %d lines, and the lease %+v", first.Load(), n, before)
			}
		})
	}
}

// away is a store of blobs that cannot be read.
type away struct{ batch.Blobs }

func (away) Open(context.Context, string, int64) (io.ReadCloser, error) {
	return nil, errors.New("the store is away")
}

// TestStoreAway: a worker that cannot read an input file leaves neither its validation nor its chunks to the end of their leases.
func TestStoreAway(t *testing.T) {
	b := newBench(t, echo)
	w := b.newWorker()
	const n = 3
	id := b.create(lines(n), time.Hour)
	open, err := b.store.OpenBatches(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mustHaveNone := func(of string) {
		t.Helper()
		if left, err := b.store.Leases(t.Context()); err != nil || len(left) != 0 {
			t.Errorf("after the %s the leases are %+v, %v", of, left, err)
		}
	}
	w.blobs = away{b.blobs}
	if err := w.validate(t.Context(), open[0]); err == nil {
		t.Error("an input file that cannot be read was validated")
	}
	mustHaveNone("validation")
	if open, err = b.store.OpenBatches(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.blobs = b.blobs
	if err := w.validate(t.Context(), open[0]); err != nil {
		t.Fatal(err)
	}
	w.blobs = away{b.blobs}
	run := w.next(t.Context())
	if run == nil {
		t.Fatal("there is no chunk")
	}
	if run.load(t.Context()) {
		t.Error("a chunk that cannot be read was")
	}
	w.end(run)
	mustHaveNone("chunk")
	w.blobs = b.blobs
	b.run(w)
	b.mustHaveAll(b.wait(id, ended), n)
}

// leases returns the lease of the only chunk of a batch.
func (b *bench) leases(id string) store.Lease {
	b.t.Helper()
	all, err := b.store.Leases(b.t.Context())
	i := slices.IndexFunc(all, func(l store.Lease) bool { return l.Batch == id })
	if err != nil || i < 0 {
		b.t.Fatalf("the leases are %+v, %v", all, err)
	}
	return all[i]
}

// awaitRenewals waits until the lease of the only chunk of a batch has been renewed so often.
func (b *bench) awaitRenewals(id string, n int64) {
	b.t.Helper()
	b.wait(id, func(batch.Batch) bool { return b.leases(id).Renewals >= n })
}

// TestClockIsSetBackBeforeTheWindowEnds: the window was about to end when a chunk began, and is long again since the clock was set back. The
// lines run.
func TestClockIsSetBackBeforeTheWindowEnds(t *testing.T) {
	release := make(chan struct{})
	b := newBench(t, hold(0, release))
	w := b.newWorker()
	const n = 3
	id := b.create(lines(n), time.Hour)
	open, err := b.store.OpenBatches(t.Context())
	if err == nil {
		err = w.validate(t.Context(), open[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	run := w.next(t.Context())
	if run == nil {
		t.Fatal("there is no chunk")
	}
	if !run.load(t.Context()) {
		t.Fatal("the chunk cannot be read")
	}
	var asked atomic.Bool
	w.wall = func() time.Time {
		if asked.CompareAndSwap(false, true) {
			return time.UnixMilli(run.batch.Times.Expires - 10) // the timer of the window is set by this
		}
		return time.Now()
	}
	done := make(chan error)
	go func() { done <- run.run(t.Context(), t.Context(), func() {}) }()
	b.awaitRenewals(id, 2)
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.end(run)
	b.work()
	got := b.wait(id, ended)
	if got.Status != batch.Completed || got.Counts.Completed != n {
		t.Errorf("the batch is %+v", got)
	}
	b.mustHaveAll(got, n)
}
