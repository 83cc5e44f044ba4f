package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/store"
	"github.com/tandem-serving/tandem/batch/upstream"
)

const (
	// saveEvery is how much of what engines have computed a killed worker loses at most, and how long a cancellation takes to be seen.
	saveEvery = time.Second
	// saveBytes of results are saved without waiting for saveEvery, so that they do not fill the memory.
	saveBytes = 1 << 20
)

// job is a line to send.
type job struct {
	batch.Line
	number int64 // in the file, from 0
}

// chunkRun is a leased chunk while it runs.
type chunkRun struct {
	w     *Worker
	chunk store.Chunk
	batch batch.Batch

	jobs []job         // that had no stored result when the chunk was loaded
	full chan struct{} // there is much to save; holds one

	mu    sync.Mutex
	done  map[int64]bool // lines of jobs that have a result
	rows  bool           // results are stored as rows
	fresh []store.Result // not stored yet
	bytes int            // of fresh
	ran   batch.Counts   // of fresh, without the lines that did not run
}

// load reads the chunk. If the database or the input file cannot be read, it releases the lease and returns false.
func (r *chunkRun) load(ctx context.Context) bool {
	err := r.read(ctx)
	if err != nil {
		r.w.log.Warn("a chunk cannot be read now", "batch", r.batch.ID, "chunk", r.chunk.Number, "error", err)
		r.w.giveBack(ctx, func(ctx context.Context) error { return r.w.store.Release(ctx, r.chunk) })
	}
	return err == nil
}

// read reads the lines of the chunk that have no result yet, in the order of their prompts.
func (r *chunkRun) read(ctx context.Context) error {
	parts, err := r.w.store.Parts(ctx, r.batch.InputFile)
	if err == nil && len(parts) != 1 {
		err = fmt.Errorf("the input file %s has %d parts", r.batch.InputFile, len(parts))
	}
	if err != nil {
		return err
	}
	from, err := r.w.blobs.Open(ctx, parts[0].Blob, r.chunk.Start)
	if err != nil {
		return err
	}
	defer from.Close()
	text := make([]byte, r.chunk.Bytes)
	if _, err := io.ReadFull(from, text); err != nil {
		return fmt.Errorf("reading a chunk of %s: %w", r.batch.InputFile, err)
	}
	var saved map[int64]bool
	if r.chunk.Epoch > 1 {
		if saved, err = r.w.store.SavedLines(ctx, r.chunk); err != nil {
			return err
		}
		r.rows = len(saved) > 0
	}
	if r.chunk.Start == 0 {
		text = bytes.TrimPrefix(text, byteOrderMark)
	}
	var parser batch.Parser
	number := r.chunk.First
	for text := range bytes.SplitSeq(text, []byte("\n")) {
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		line, problem := parser.Parse(text)
		if problem != nil {
			return fmt.Errorf("line %d of %s has changed since its validation: %s", number, r.batch.InputFile, problem.Code)
		}
		if !saved[number] {
			r.jobs = append(r.jobs, job{line, number})
		}
		number++
	}
	slices.SortStableFunc(r.jobs, func(a, b job) int { return bytes.Compare(a.Prompt, b.Prompt) })
	return nil
}

// requestID names a line to the upstream, on every try.
func (r *chunkRun) requestID(number int64) string {
	return "batch_req_" + strings.TrimPrefix(r.batch.ID, "batch_") + "_" + strconv.FormatInt(number, 10)
}

// run has the lines computed, and finishes the chunk. stop has it send no further lines, cut has it wait for none. sent is called when all
// lines are sent, or none will be.
func (r *chunkRun) run(stop, cut context.Context, sent func()) error {
	defer sent()
	closing := r.batch.Status.Closes()
	if closing == "" {
		var err error
		if closing, err = r.compute(stop, cut, sent); err != nil {
			return err
		}
	}
	switch left := r.left(); {
	case closing != "":
		for _, j := range left {
			r.add(j, batch.Result{CustomID: j.CustomID, RequestID: r.requestID(j.number), Code: closing}, false)
		}
	case len(left) > 0:
		return r.release()
	}
	return r.finish(cut)
}

// compute sends the lines, and stores their results now and then. It returns the code of the lines without a result if the batch runs no more of
// them.
func (r *chunkRun) compute(stop, cut context.Context, sent func()) (closing string, err error) {
	call, end := context.WithCancel(cut)
	defer end()
	start, endStart := context.WithCancel(stop)
	defer endStart()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.dispatch(start, call, sent)
	}()
	defer func() { <-done }()
	closeFor := func(code string) { closing = code; endStart(); end() }
	ticker := time.NewTicker(saveEvery)
	defer ticker.Stop()
	expiry := time.NewTimer(max(time.Millisecond, r.untilExpiry()))
	defer expiry.Stop()
	for {
		select {
		case <-done:
			return closing, nil
		case <-expiry.C:
			if err := r.w.store.Expire(cut, r.batch.ID, r.w.now()); err != nil {
				r.w.log.Warn("a batch that has expired goes on", "error", err)
			}
			// If the clock was set back meanwhile, the window has not ended: the status that save returns says so.
			expiry.Reset(max(saveEvery, r.untilExpiry()))
		case <-ticker.C:
		case <-r.full:
		}
		status, err := r.save(cut)
		switch {
		case errors.Is(err, store.ErrLost):
			endStart()
			end()
			return "", err
		case err != nil:
			r.w.log.Warn("results are kept in memory, and no lines are sent, until they can be saved", "error", err)
			r.w.upstream.Pause(2 * saveEvery)
		case closing == "" && status.Closes() != "":
			closeFor(status.Closes())
		}
	}
}

// untilExpiry returns how long the window of the batch lasts by the clock.
func (r *chunkRun) untilExpiry() time.Duration {
	return time.Duration(r.batch.Times.Expires-r.w.now()) * time.Millisecond
}

// dispatch sends all lines at the worker's pace, and waits for their results.
func (r *chunkRun) dispatch(start, call context.Context, sent func()) {
	var running sync.WaitGroup
	defer running.Wait()
	defer sent()
	for _, j := range r.jobs {
		if r.w.upstream.Acquire(start) != nil {
			return
		}
		running.Go(func() { r.runLine(start, call, j) })
	}
}

// runLine sends a line, for which the caller has acquired a slot, until it has a result.
func (r *chunkRun) runLine(start, call context.Context, j job) {
	req := upstream.Request{ID: r.requestID(j.number), Endpoint: j.Endpoint, Tenant: r.batch.Tenant, Body: j.Body}
	if a, ok := r.w.upstream.Do(start, call, req); ok {
		r.add(j, batch.Result{CustomID: j.CustomID, RequestID: req.ID, Status: a.Status, Body: a.Body, Code: a.Code}, true)
	}
}

// add adds the result of a line; ran says that the line ran.
func (r *chunkRun) add(j job, result batch.Result, ran bool) {
	text := result.Append(make([]byte, 0, len(result.Body)+len(result.CustomID)+256))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fresh = append(r.fresh, store.Result{Line: j.number, OK: result.OK(), Text: text})
	r.bytes += len(text)
	switch {
	case ran && result.OK():
		r.ran.Completed++
		r.w.metrics.lines.WithLabelValues("completed").Inc()
	case ran:
		r.ran.Failed++
		r.w.metrics.lines.WithLabelValues("failed").Inc()
	default:
		r.w.metrics.lines.WithLabelValues("not-run").Inc()
	}
	r.done[j.number] = true
	if r.bytes >= saveBytes {
		select {
		case r.full <- struct{}{}:
		default:
		}
	}
}

// left returns the lines without a result.
func (r *chunkRun) left() []job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.jobs), func(j job) bool { return r.done[j.number] })
}

// save stores the results since the last time, and renews the lease.
func (r *chunkRun) save(ctx context.Context) (batch.Status, error) {
	r.mu.Lock()
	fresh, ran := r.fresh, r.ran
	r.mu.Unlock()
	status, err := r.w.store.Save(ctx, r.chunk, fresh, ran)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = r.rows || len(fresh) > 0
	r.fresh = slices.Clone(r.fresh[len(fresh):])
	r.ran.Completed -= ran.Completed
	r.ran.Failed -= ran.Failed
	r.bytes = 0
	for _, result := range r.fresh {
		r.bytes += len(result.Text)
	}
	return status, nil
}

// release stores what there is, and leaves the chunk to another worker.
func (r *chunkRun) release() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // that of the worker has ended
	defer cancel()
	if _, err := r.save(ctx); err != nil {
		return err
	}
	return r.w.store.Release(ctx, r.chunk)
}

// finish writes the segments of the chunk, all of whose lines have a result. If the disk is full, or the database away, it tries again.
func (r *chunkRun) finish(cut context.Context) error {
	for {
		err := r.tryFinish(cut)
		if err == nil || errors.Is(err, store.ErrLost) {
			return err
		}
		r.w.log.Warn("a chunk cannot be stored now", "batch", r.batch.ID, "error", err)
		r.w.upstream.Pause(2 * saveEvery)
		if !batch.Sleep(cut, 2*saveEvery) {
			return r.release()
		}
	}
}

func (r *chunkRun) tryFinish(ctx context.Context) error {
	r.mu.Lock()
	rows := r.rows
	r.mu.Unlock()
	if rows {
		if _, err := r.save(ctx); err != nil {
			return err
		}
	}
	segments := segmentWriters{blobs: r.w.blobs}
	defer segments.abort()
	err := r.each(ctx, rows, func(result store.Result) error { return segments.write(ctx, result) })
	if err != nil {
		return err
	}
	chunk := r.chunk
	if chunk.Output, chunk.ErrorOutput, err = segments.commit(); err == nil {
		err = r.w.store.Finish(ctx, chunk, r.ran)
	}
	if err != nil {
		for _, part := range []batch.Part{chunk.Output, chunk.ErrorOutput} {
			r.w.discard(context.WithoutCancel(ctx), part)
		}
	}
	return err
}

// discard deletes a segment that was not stored. An error of a commit does not tell whether it took place, so the database is asked.
func (w *Worker) discard(ctx context.Context, segment batch.Part) {
	if segment.Blob == "" {
		return
	}
	if used, err := w.store.HasBlob(ctx, segment.Blob); err == nil && !used {
		_ = w.blobs.Delete(ctx, segment.Blob) // the next start deletes it otherwise
	}
}

// each calls f with all results of the chunk, in the order of the input file.
func (r *chunkRun) each(ctx context.Context, rows bool, f func(store.Result) error) error {
	if rows {
		return r.w.store.EachSaved(ctx, r.chunk, f)
	}
	slices.SortFunc(r.fresh, func(a, b store.Result) int { return cmp.Compare(a.Line, b.Line) })
	for _, result := range r.fresh {
		if err := f(result); err != nil {
			return err
		}
	}
	return nil
}

// segmentWriters write the output and the error segment of a chunk.
type segmentWriters struct {
	blobs   batch.Blobs
	writers [2]batch.BlobWriter // nil: nothing was written
	buffers [2][]byte
}

// segmentBuffer is how many bytes are written at a time.
const segmentBuffer = 64 << 10

func (s *segmentWriters) write(ctx context.Context, r store.Result) error {
	i := 1
	if r.OK {
		i = 0
	}
	if s.writers[i] == nil {
		w, err := s.blobs.Create(ctx)
		if err != nil {
			return err
		}
		s.writers[i] = w
	}
	if s.buffers[i] = append(s.buffers[i], r.Text...); len(s.buffers[i]) < segmentBuffer {
		return nil
	}
	return s.flush(i)
}

func (s *segmentWriters) flush(i int) error {
	_, err := s.writers[i].Write(s.buffers[i])
	s.buffers[i] = s.buffers[i][:0]
	return err
}

// commit makes both segments durable, and returns them; a segment without lines is empty.
func (s *segmentWriters) commit() (output, errorOutput batch.Part, err error) {
	for i, part := range []*batch.Part{&output, &errorOutput} {
		if s.writers[i] == nil {
			continue
		}
		if err := s.flush(i); err != nil {
			return output, errorOutput, err
		}
		if *part, err = s.writers[i].Commit(); err != nil {
			return output, errorOutput, err
		}
	}
	return output, errorOutput, nil
}

func (s *segmentWriters) abort() {
	for _, w := range s.writers {
		if w != nil {
			w.Abort()
		}
	}
}
