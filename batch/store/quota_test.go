package store_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/batch"
)

// What a tenant uses is counted exactly, also when it adds much at a time.
func TestQuota(t *testing.T) {
	s, ctx := open(t), t.Context()
	quota := batch.Amounts{Bytes: 100, Batches: 3, Lines: 12}
	var over *batch.QuotaError
	add := func(id string, bytes int64) error {
		return s.AddFile(ctx, batch.File{ID: id, Tenant: "t", Purpose: batch.PurposeInput, Bytes: bytes, Lines: 4}, quota, batch.Part{Blob: id, Bytes: bytes})
	}
	mustDo(t, s.AddFile(ctx, batch.File{ID: "other", Tenant: "u", Bytes: 1000}, batch.Amounts{}), add("a", 60))
	if err := add("b", 41); !errors.As(err, &over) || *over != (batch.QuotaError{What: "bytes of files", Used: 60, Added: 41, Quota: 100}) {
		t.Fatalf("%v, want a refusal for its bytes", err)
	}
	mustDo(t, add("c", 40))

	var running sync.WaitGroup
	var taken, refused atomic.Int64
	for i := range 8 {
		running.Go(func() {
			err := s.AddBatch(ctx, batch.Batch{ID: fmt.Sprint(i), Tenant: "t", InputFile: "a"}, quota)
			var over *batch.QuotaError
			switch {
			case err == nil:
				taken.Add(1)
			case errors.As(err, &over):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	running.Wait()
	if taken.Load() != 3 || refused.Load() != 5 {
		t.Errorf("%d batches were taken and %d refused, want 3 and 5", taken.Load(), refused.Load())
	}
	if used := must[batch.Amounts](t)(s.Usage(ctx, "t")); used != quota {
		t.Errorf("it uses %+v, want %+v", used, quota)
	}
	err := s.AddBatch(ctx, batch.Batch{ID: "more", Tenant: "t", InputFile: "a"}, batch.Amounts{Lines: 15})
	if !errors.As(err, &over) || *over != (batch.QuotaError{What: "unfinished lines", Used: 12, Added: 4, Quota: 15}) {
		t.Errorf("%v, want a refusal for its lines", err)
	}
}

// Lines with a result, and batches that have ended, are not in the way of further ones. Old batches are deleted, once their files are.
func TestEndedBatches(t *testing.T) {
	s, ctx := open(t), t.Context()
	addBatch(t, s, "b")
	if used := must[batch.Amounts](t)(s.Usage(ctx, "t")); used != (batch.Amounts{Bytes: 30, Batches: 1, Lines: 3}) {
		t.Errorf("while it is validated it uses %+v", used)
	}
	begin(t, s, "b", 1)
	c, err := s.Lease(ctx, "b")
	mustDo(t, err)
	if used := must[batch.Amounts](t)(s.Usage(ctx, "t")); used != (batch.Amounts{Bytes: 30, Batches: 1, Lines: 2}) {
		t.Errorf("it uses %+v", used)
	}
	c.Output = batch.Part{Blob: "out", Bytes: 5}
	mustDo(t, s.Finish(ctx, c, batch.Counts{Completed: 2}))
	ended := must[batch.Batch](t)(s.End(ctx, "b", 50))
	if used := must[batch.Amounts](t)(s.Usage(ctx, "t")); used != (batch.Amounts{Bytes: 35}) {
		t.Errorf("after its end it uses %+v", used)
	}
	for _, step := range []struct {
		name   string
		before int64
		want   int64
	}{{"not old enough", 50, 0}, {"its output file is kept", 51, 0}, {"old, and without files", 51, 1}} {
		if step.want > 0 {
			_, err := s.DeleteFile(ctx, "t", ended.OutputFile)
			mustDo(t, err)
		}
		if got := must[int64](t)(s.DeleteBatches(ctx, step.before)); got != step.want {
			t.Errorf("%s: %d batches were deleted, want %d", step.name, got, step.want)
		}
	}
	mustDo(t, s.AddBatch(ctx, batch.Batch{ID: "open", Tenant: "t", InputFile: "file-b"}, batch.Amounts{}))
	if got := must[int64](t)(s.DeleteBatches(ctx, 1<<40)); got != 0 {
		t.Error("a batch that has not ended was deleted")
	}
}
