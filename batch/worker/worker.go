package worker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/store"
	"github.com/tandem-serving/tandem/batch/upstream"
)

// Config is what a Worker needs to know.
type Config struct {
	MaxLines  int64         // of an input file
	Drain     time.Duration // in which requests in flight may end when the worker stops
	Retention time.Duration // after which ended batches are deleted; 0: never
}

// Telemetry is where a Worker reports. No field may be nil.
type Telemetry struct {
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

const (
	// poll is how often a worker looks for work of which it was not told.
	poll = time.Second
	// feeding is how many chunks send lines at a time: while one reads its lines, the other keeps the upstream busy.
	feeding = 2
	// activeBytes and activeChunks bound the chunks that have not ended, of which the last lines may take long.
	activeBytes  = 32 << 20
	activeChunks = 64
)

// Worker works on the open batches of a store. Make it with New, and Run it once.
type Worker struct {
	cfg     Config
	store   *store.Store
	blobs   batch.Blobs
	log     *slog.Logger
	metrics *metrics
	wake    chan struct{} // there may be work; holds one
	feeds   chan struct{} // holds one for each chunk that sends lines

	upstream    *upstream.Client
	validations chan store.Open // to the goroutine that validates

	wall func() time.Time // for what clients are told, and may be set; leases do not depend on it

	mu     sync.Mutex
	active map[chunkID]bool // chunks that have not ended
	bytes  int64            // of their lines
}

// chunkID names a lease of a chunk.
type chunkID struct {
	batch         string
	number, epoch int64
}

// New makes a Worker.
func New(cfg Config, s *store.Store, blobs batch.Blobs, to *upstream.Client, t Telemetry) *Worker {
	return &Worker{cfg: cfg, store: s, blobs: blobs, upstream: to, log: t.Log, metrics: newMetrics(t.Metrics, s),
		wake: make(chan struct{}, 1), feeds: make(chan struct{}, feeding), validations: make(chan store.Open), wall: time.Now, active: map[chunkID]bool{}}
}

func (w *Worker) now() int64 { return w.wall().UnixMilli() }

// Wake has the worker look for work now.
func (w *Worker) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends. Then it sends no further requests, gives those in flight the drain time, stores their results, and releases its leases.
func (w *Worker) Run(ctx context.Context) {
	cut, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var running sync.WaitGroup
	defer running.Wait()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(w.cfg.Drain, end) })
	defer stop()
	running.Go(func() { w.validateAll(ctx) })
	running.Go(func() { w.tidy(ctx) })
	running.Go(func() { w.watchLeases(ctx) })
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case w.feeds <- struct{}{}:
		}
		run := w.next(ctx)
		if run == nil {
			<-w.feeds
			w.idle(ctx)
			continue
		}
		running.Go(func() {
			defer w.end(run)
			var once sync.Once
			sent := func() { once.Do(func() { <-w.feeds }) }
			defer sent()
			if !run.load(cut) {
				return
			}
			if err := run.run(ctx, cut, sent); err != nil {
				w.log.Warn("a chunk has not ended", "batch", run.batch.ID, "chunk", run.chunk.Number, "error", err)
				w.upstream.Pause(saveEvery)
			}
		})
	}
}

// idle waits for work.
func (w *Worker) idle(ctx context.Context) {
	timer := time.NewTimer(poll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-w.wake:
	case <-timer.C:
	}
}

// validateAll validates one batch at a time, until ctx ends.
func (w *Worker) validateAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-w.validations:
			w.report(ctx, w.validate(ctx, o))
			w.Wake()
		}
	}
}

// giveBack releases a lease of work that cannot be done now, so that it does not stay for leaseTime. It tries until the database answers or ctx
// ends, and takes saveEvery at least: the caller would most likely fail again at once.
func (w *Worker) giveBack(ctx context.Context, release func(ctx context.Context) error) {
	for {
		err := release(ctx)
		if !batch.Sleep(ctx, saveEvery) || err == nil {
			return
		}
	}
}

const (
	// tidyEvery is how often expired files, and old batches, are deleted.
	tidyEvery = time.Minute
	// tidyRows is how many files are read at a time.
	tidyRows = 100
)

// tidy deletes expired files and old batches now and then, until ctx ends.
func (w *Worker) tidy(ctx context.Context) {
	ticker := time.NewTicker(tidyEvery)
	defer ticker.Stop()
	for {
		w.report(ctx, w.deleteExpired(ctx))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// deleteExpired deletes files whose time has passed, and then batches that ended before the retention time. Input files of open batches wait for
// these to end.
func (w *Worker) deleteExpired(ctx context.Context) error {
	for {
		files, err := w.store.ExpiredFiles(ctx, w.now(), tidyRows)
		for _, f := range files {
			err = errors.Join(err, w.deleteFile(ctx, f))
		}
		if err != nil {
			return err // what could not be deleted is read again the next time
		}
		if len(files) < tidyRows {
			break
		}
	}
	if w.cfg.Retention == 0 {
		return nil
	}
	deleted, err := w.store.DeleteBatches(ctx, w.now()-w.cfg.Retention.Milliseconds())
	if deleted > 0 {
		w.log.Info("deleted old batches", "batches", deleted)
	}
	return err
}

// deleteFile deletes a file, unless a batch was made of it just now, or another worker has deleted it.
func (w *Worker) deleteFile(ctx context.Context, f batch.File) error {
	parts, err := w.store.DeleteFile(ctx, f.Tenant, f.ID)
	if errors.Is(err, batch.ErrInUse) || errors.Is(err, batch.ErrNotFound) {
		return nil
	}
	for _, part := range parts {
		err = errors.Join(err, w.blobs.Delete(ctx, part.Blob))
	}
	return err
}

// next looks after all open batches, and leases a chunk. nil: there is none, or enough are active.
func (w *Worker) next(ctx context.Context) *chunkRun {
	open, err := w.store.OpenBatches(ctx)
	if err != nil {
		w.report(ctx, err)
		return nil
	}
	for i := range open {
		w.report(ctx, w.advance(ctx, &open[i]))
	}
	w.mu.Lock()
	busy := len(w.active) >= activeChunks || w.bytes >= activeBytes
	w.mu.Unlock()
	if busy {
		return nil
	}
	chosen := choose(open, w.now())
	if chosen == nil {
		return nil
	}
	chunk, err := w.store.Lease(ctx, chosen.ID)
	if err != nil {
		w.report(ctx, err)
		return nil
	}
	w.mu.Lock()
	w.active[chunkID{chunk.Batch, chunk.Number, chunk.Epoch}] = true
	w.bytes += chunk.Bytes
	w.mu.Unlock()
	return &chunkRun{w: w, chunk: chunk, batch: chosen.Batch, full: make(chan struct{}, 1), done: map[int64]bool{}}
}

// end ends a chunk: there is space for others, and its batch may have ended.
func (w *Worker) end(run *chunkRun) {
	w.mu.Lock()
	delete(w.active, chunkID{run.chunk.Batch, run.chunk.Number, run.chunk.Epoch})
	w.bytes -= run.chunk.Bytes
	w.mu.Unlock()
	w.Wake()
}

// report logs an error that is not the end of the process, or of a race with another worker.
func (w *Worker) report(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrLost) && !errors.Is(err, batch.ErrNotFound) {
		w.log.Warn("working on batches", "error", err)
	}
}

// advance has a batch validated, expire or end, if it is time.
func (w *Worker) advance(ctx context.Context, o *store.Open) error {
	now := w.now()
	if o.Times.Expires <= now && (o.Status == batch.Validating || o.Status == batch.InProgress) {
		if err := w.store.Expire(ctx, o.ID, now); err != nil {
			return err
		}
		if o.Status == batch.Validating {
			o.Waiting = 0
			return nil
		}
		o.Status = batch.Finalizing
	}
	switch {
	case o.Status == batch.Validating && o.Renewals == 0:
		select {
		case w.validations <- *o:
		default: // another batch is being validated
		}
	case o.Status != batch.Validating && o.Chunks == 0:
		ended, err := w.store.End(ctx, o.ID, now)
		if err != nil {
			return err
		}
		w.log.Info("a batch has ended", "batch", o.ID, "status", ended.Status, "lines", ended.Counts.Total, "completed", ended.Counts.Completed, "failed", ended.Counts.Failed)
		w.metrics.seconds.WithLabelValues(string(ended.Status)).Observe(float64(now-o.Times.Created) / 1000)
	}
	return nil
}

// choose returns the batch whose chunk is next: one that only closes lines, one that is behind its window, else the one with the fewest
// chunks that run, so that each batch gets its turn.
func choose(open []store.Open, now int64) *store.Open {
	open = slices.DeleteFunc(slices.Clone(open), func(o store.Open) bool { return o.Waiting == 0 || o.Status == batch.Validating })
	if len(open) == 0 {
		return nil
	}
	first := slices.MinFunc(open, func(a, b store.Open) int {
		return cmp.Or(cmp.Compare(rank(a, now), rank(b, now)), compareUrgent(a, b, now), cmp.Compare(a.Leased, b.Leased), cmp.Compare(a.Times.Created, b.Times.Created))
	})
	return &first
}

func rank(o store.Open, now int64) int {
	switch {
	case o.Status.Closes() != "":
		return 0
	case behind(o, now):
		return 1
	}
	return 2
}

// compareUrgent orders batches that are behind by the end of their windows.
func compareUrgent(a, b store.Open, now int64) int {
	if !behind(a, now) || !behind(b, now) {
		return 0
	}
	return cmp.Compare(a.Times.Expires, b.Times.Expires)
}

// behind reports whether a batch whose window is half over would not end in time at the pace that it had so far.
func behind(o store.Open, now int64) bool {
	window, passed := o.Times.Expires-o.Times.InProgress, now-o.Times.InProgress
	done := o.Counts.Completed + o.Counts.Failed
	return 2*passed > window && float64(done)*float64(window) < float64(o.Counts.Total)*float64(passed)
}
