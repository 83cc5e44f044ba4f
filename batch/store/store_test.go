package store_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/store"
	"github.com/tandem-serving/tandem/e2e/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// database is the PostgreSQL on which the tests run, if TestPostgres runs them; nil: SQLite.
var database *postgres.Server

func open(t *testing.T) *store.Store {
	t.Helper()
	var s *store.Store
	var err error
	if database != nil {
		s, err = store.OpenPostgres(t.Context(), database.Schema())
	} else {
		s, err = store.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "odd #name?.db"))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func must[T any](t *testing.T) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func mustDo(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// addBatch stores an input file and a batch of it, which expires at 1000.
func addBatch(t *testing.T, s *store.Store, id string) batch.Batch {
	t.Helper()
	f := batch.File{ID: "file-" + id, Tenant: "t", Purpose: batch.PurposeInput, Name: "in.jsonl", Bytes: 30, Lines: 3, Created: 1}
	b := batch.Batch{ID: id, Tenant: "t", Endpoint: "/v1/embeddings", InputFile: f.ID, Window: "24h", Metadata: map[string]string{"a": "b"}}
	b.Times.Created, b.Times.Expires = 2, 1000
	mustDo(t, s.AddFile(t.Context(), f, batch.Amounts{}, batch.Part{Blob: "in", Bytes: 30}), s.AddBatch(t.Context(), b, batch.Amounts{}))
	return b
}

// begin has a batch run, in chunks of two lines.
func begin(t *testing.T, s *store.Store, id string, chunks int) {
	t.Helper()
	epoch := must[int64](t)(s.LeaseValidation(t.Context(), id, 0))
	var cut []store.Chunk
	for i := range chunks {
		cut = append(cut, store.Chunk{Start: int64(10 * i), Bytes: 10, First: int64(2 * i), Lines: 2})
	}
	mustDo(t, s.Begin(t.Context(), id, epoch, "m", cut, 11))
}

// The life of a batch, as its tenant and its workers see it.
func TestLife(t *testing.T) {
	s, ctx := open(t), t.Context()
	addBatch(t, s, "b")
	begin(t, s, "b", 2)

	first := must[store.Chunk](t)(s.Lease(ctx, "b"))
	second := must[store.Chunk](t)(s.Lease(ctx, "b"))
	if first.Number != 0 || second.Number != 1 || second.Start != 10 || second.First != 2 {
		t.Fatalf("leased %+v and %+v", first, second)
	}
	if _, err := s.Lease(ctx, "b"); !errors.Is(err, batch.ErrNotFound) {
		t.Fatalf("a third chunk: %v", err)
	}

	status := must[batch.Status](t)(s.Save(ctx, first, []store.Result{{Line: 1, OK: true, Text: []byte("one\n")}}, batch.Counts{Completed: 1}))
	if status != batch.InProgress {
		t.Errorf("the status is %s", status)
	}
	must[batch.Status](t)(s.Save(ctx, first, []store.Result{{Line: 0, Text: []byte("zero\n")}}, batch.Counts{Failed: 1}))
	var seen []string
	mustDo(t, s.EachSaved(ctx, first, func(r store.Result) error {
		seen = append(seen, fmt.Sprintf("%d %t %s", r.Line, r.OK, r.Text))
		return nil
	}))
	if want := []string{"0 false zero\n", "1 true one\n"}; !slices.Equal(seen, want) {
		t.Errorf("saved %q, want %q", seen, want)
	}
	if lines := must[map[int64]bool](t)(s.SavedLines(ctx, first)); !lines[0] || !lines[1] || len(lines) != 2 {
		t.Errorf("saved lines %v", lines)
	}
	first.Output, first.ErrorOutput = batch.Part{Blob: "o0", Bytes: 4}, batch.Part{Blob: "e0", Bytes: 5}
	mustDo(t, s.Finish(ctx, first, batch.Counts{}))
	if lines := must[map[int64]bool](t)(s.SavedLines(ctx, first)); len(lines) != 0 {
		t.Errorf("saved lines %v beside the segment that has them", lines)
	}
	if _, err := s.End(ctx, "b", 30); !errors.Is(err, store.ErrLost) {
		t.Errorf("it ended with an open chunk: %v", err)
	}
	second.Output = batch.Part{Blob: "o1", Bytes: 6}
	mustDo(t, s.Finish(ctx, second, batch.Counts{Completed: 2}))
	must[batch.Batch](t)(s.End(ctx, "b", 30))
	if _, err := s.End(ctx, "b", 31); !errors.Is(err, store.ErrLost) {
		t.Errorf("it ended twice: %v", err)
	}

	b := must[batch.Batch](t)(s.Batch(ctx, "t", "b"))
	if b.Status != batch.Completed || b.Counts != (batch.Counts{Total: 4, Completed: 3, Failed: 1}) || b.Model != "m" || b.Times.Completed != 30 || b.Metadata["a"] != "b" {
		t.Errorf("the batch is %+v", b)
	}
	if parts := must[[]batch.Part](t)(s.Parts(ctx, b.OutputFile)); !slices.Equal(parts, []batch.Part{{Blob: "o0", Bytes: 4}, {Blob: "o1", Bytes: 6}}) {
		t.Errorf("the output is %v", parts)
	}
	if f := must[batch.File](t)(s.File(ctx, "t", b.ErrorFile)); f.Bytes != 5 || f.Purpose != batch.PurposeOutput {
		t.Errorf("the error file is %+v", f)
	}
	if _, err := s.Batch(ctx, "another", "b"); !errors.Is(err, batch.ErrNotFound) {
		t.Errorf("another tenant: %v", err)
	}
	if open := must[[]store.Open](t)(s.OpenBatches(ctx)); len(open) != 0 {
		t.Errorf("%d open batches", len(open))
	}
}

// mustRevoke fails unless the only lease is want, and can be revoked as it is, but not as it was.
func mustRevoke(t *testing.T, s *store.Store, want store.Lease) {
	t.Helper()
	if leases := must[[]store.Lease](t)(s.Leases(t.Context())); len(leases) != 1 || leases[0] != want {
		t.Fatalf("leases %+v, want %+v", leases, want)
	}
	before := want
	before.Renewals--
	if err := s.Revoke(t.Context(), before); !errors.Is(err, store.ErrLost) {
		t.Errorf("revoking a lease that was renewed: %v", err)
	}
	mustDo(t, s.Revoke(t.Context(), want))
	if leases := must[[]store.Lease](t)(s.Leases(t.Context())); len(leases) != 0 {
		t.Errorf("leases %+v are left", leases)
	}
}

// What a worker does after its lease has passed to another one has no effect.
func TestLostLease(t *testing.T) {
	s, ctx := open(t), t.Context()
	addBatch(t, s, "b")
	begin(t, s, "b", 1)
	slow := must[store.Chunk](t)(s.Lease(ctx, "b"))
	must[batch.Status](t)(s.Save(ctx, slow, []store.Result{{Line: 0, OK: true, Text: []byte("a\n")}}, batch.Counts{Completed: 1}))
	if _, err := s.Lease(ctx, "b"); !errors.Is(err, batch.ErrNotFound) {
		t.Errorf("a leased chunk: %v", err)
	}
	mustRevoke(t, s, store.Lease{Batch: "b", Epoch: 1, Renewals: 1})
	next := must[store.Chunk](t)(s.Lease(ctx, "b"))
	if next.Number != slow.Number || next.Epoch != slow.Epoch+1 {
		t.Fatalf("leased %+v after %+v", next, slow)
	}
	if _, err := s.Save(ctx, slow, []store.Result{{Line: 1, OK: true, Text: []byte("b\n")}}, batch.Counts{Completed: 1}); !errors.Is(err, store.ErrLost) {
		t.Errorf("Save: %v", err)
	}
	if err := s.Finish(ctx, slow, batch.Counts{Completed: 1}); !errors.Is(err, store.ErrLost) {
		t.Errorf("Finish: %v", err)
	}
	mustDo(t, s.Release(ctx, slow))
	if _, err := s.Lease(ctx, "b"); !errors.Is(err, batch.ErrNotFound) {
		t.Errorf("the release of a lost lease freed the chunk: %v", err)
	}
	if lines := must[map[int64]bool](t)(s.SavedLines(ctx, next)); len(lines) != 1 || !lines[0] {
		t.Errorf("saved lines %v", lines)
	}
	mustDo(t, s.Release(ctx, next))
	third := must[store.Chunk](t)(s.Lease(ctx, "b"))
	mustDo(t, s.Recover(ctx))
	fourth := must[store.Chunk](t)(s.Lease(ctx, "b"))
	if third.Epoch != 3 || fourth.Epoch != 4 {
		t.Errorf("epochs %d and %d", third.Epoch, fourth.Epoch)
	}
	if b := must[batch.Batch](t)(s.Batch(ctx, "t", "b")); b.Counts.Completed != 1 {
		t.Errorf("counted %+v", b.Counts)
	}
}

func TestCancelAndExpire(t *testing.T) {
	s, ctx := open(t), t.Context()
	addBatch(t, s, "new")
	if b := must[batch.Batch](t)(s.Cancel(ctx, "t", "new", 5)); b.Status != batch.Cancelled || b.Times.Cancelled != 5 {
		t.Errorf("a batch that is not validated: %+v", b)
	}
	if _, err := s.Cancel(ctx, "t", "new", 6); !errors.Is(err, batch.ErrEnded) {
		t.Errorf("once more: %v", err)
	}
	if _, err := s.LeaseValidation(ctx, "new", 0); !errors.Is(err, store.ErrLost) {
		t.Errorf("its validation: %v", err)
	}

	addBatch(t, s, "runs")
	begin(t, s, "runs", 1)
	c := must[store.Chunk](t)(s.Lease(ctx, "runs"))
	for range 2 {
		if b := must[batch.Batch](t)(s.Cancel(ctx, "t", "runs", 50)); b.Status != batch.Cancelling {
			t.Errorf("a batch that runs: %+v", b)
		}
	}
	if status := must[batch.Status](t)(s.Save(ctx, c, nil, batch.Counts{})); status.Closes() != batch.CodeCancelled {
		t.Errorf("a worker learns %s", status)
	}
	mustDo(t, s.Finish(ctx, c, batch.Counts{}))
	if b := must[batch.Batch](t)(s.End(ctx, "runs", 60)); b.Status != batch.Cancelled || b.OutputFile != "" || b.Times.Completed != 0 {
		t.Errorf("in the end: %+v", b)
	}

	addBatch(t, s, "late")
	begin(t, s, "late", 1)
	mustDo(t, s.Expire(ctx, "late", 999))
	if b := must[batch.Batch](t)(s.Batch(ctx, "t", "late")); b.Status != batch.InProgress {
		t.Errorf("before its time: %s", b.Status)
	}
	mustDo(t, s.Expire(ctx, "late", 1000))
	c = must[store.Chunk](t)(s.Lease(ctx, "late"))
	mustDo(t, s.Finish(ctx, c, batch.Counts{}))
	if b := must[batch.Batch](t)(s.End(ctx, "late", 1001)); b.Status != batch.Expired || b.Times.Expired != 1001 || b.Times.Finalizing != 1000 {
		t.Errorf("in the end: %+v", b)
	}
	addBatch(t, s, "never")
	mustDo(t, s.Expire(ctx, "never", 1000))
	if b := must[batch.Batch](t)(s.Batch(ctx, "t", "never")); b.Status != batch.Expired {
		t.Errorf("a batch that was never validated: %s", b.Status)
	}
}

func TestFailedValidation(t *testing.T) {
	s, ctx := open(t), t.Context()
	addBatch(t, s, "b")
	epoch := must[int64](t)(s.LeaseValidation(ctx, "b", 0))
	if _, err := s.LeaseValidation(ctx, "b", epoch); !errors.Is(err, store.ErrLost) {
		t.Errorf("a leased validation: %v", err)
	}
	mustRevoke(t, s, store.Lease{Batch: "b", Chunk: store.Validation, Epoch: 1, Renewals: 1})
	if err := s.RenewValidation(ctx, "b", epoch); !errors.Is(err, store.ErrLost) {
		t.Errorf("Renew of what was revoked: %v", err)
	}
	next := must[int64](t)(s.LeaseValidation(ctx, "b", epoch))
	if err := s.RenewValidation(ctx, "b", epoch); !errors.Is(err, store.ErrLost) {
		t.Errorf("Renew: %v", err)
	}
	if err := s.Fail(ctx, "b", epoch, nil, 40); !errors.Is(err, store.ErrLost) {
		t.Errorf("Fail: %v", err)
	}
	mustDo(t, s.RenewValidation(ctx, "b", next), s.Fail(ctx, "b", next, []batch.Problem{{Code: "x", Message: "y", Line: 3}}, 41))
	if b := must[batch.Batch](t)(s.Batch(ctx, "t", "b")); b.Status != batch.Failed || len(b.Problems) != 1 || b.Problems[0].Line != 3 || b.Times.Failed != 41 {
		t.Errorf("got %+v", b)
	}
}

func TestFiles(t *testing.T) {
	s, ctx := open(t), t.Context()
	addBatch(t, s, "b")
	if _, err := s.DeleteFile(ctx, "t", "file-b"); !errors.Is(err, batch.ErrInUse) {
		t.Errorf("the input of an open batch: %v", err)
	}
	if _, err := s.DeleteFile(ctx, "another", "file-b"); !errors.Is(err, batch.ErrNotFound) {
		t.Errorf("the input of an open batch of another tenant: %v", err)
	}
	must[batch.Batch](t)(s.Cancel(ctx, "t", "b", 5))
	if _, err := s.DeleteFile(ctx, "another", "file-b"); !errors.Is(err, batch.ErrNotFound) {
		t.Errorf("another tenant: %v", err)
	}
	if used := must[bool](t)(s.HasBlob(ctx, "in")); !used {
		t.Error("the blob is not used")
	}
	if parts := must[[]batch.Part](t)(s.DeleteFile(ctx, "t", "file-b")); len(parts) != 1 || parts[0].Blob != "in" {
		t.Errorf("parts %v", parts)
	}
	if used := must[bool](t)(s.HasBlob(ctx, "in")); used {
		t.Error("the blob is still used")
	}
	b := batch.Batch{ID: "c", Tenant: "t", InputFile: "file-b"}
	if err := s.AddBatch(ctx, b, batch.Amounts{}); !errors.Is(err, batch.ErrNotFound) {
		t.Errorf("a batch of a deleted file: %v", err)
	}
	mustDo(t, s.AddFile(ctx, batch.File{ID: "short", Tenant: "t", Expires: 10}, batch.Amounts{}))
	mustDo(t, s.AddFile(ctx, batch.File{ID: "shorter", Tenant: "t", Expires: 9}, batch.Amounts{}), s.AddFile(ctx, batch.File{ID: "input", Tenant: "t", Expires: 1}, batch.Amounts{}),
		s.AddBatch(ctx, batch.Batch{ID: "open", Tenant: "t", InputFile: "input"}, batch.Amounts{}))
	if found := must[[]batch.File](t)(s.ExpiredFiles(ctx, 10, 1)); len(found) != 1 || found[0].ID != "shorter" {
		t.Errorf("first expires %v, want shorter: the input of an open batch does not count", found)
	}
	for now, want := range map[int64]int{8: 0, 9: 1, 10: 2} {
		if found := must[[]batch.File](t)(s.ExpiredFiles(ctx, now, 5)); len(found) != want {
			t.Errorf("%d files have expired at %d", len(found), now)
		}
	}
}

// Pages are whole and without repetition, also of files that were made in the same millisecond.
func TestPages(t *testing.T) {
	s, ctx := open(t), t.Context()
	var all []string
	for i := range 7 {
		id := fmt.Sprint("f", i)
		all = append(all, id)
		purpose := "batch"
		if i == 3 {
			purpose = "batch_output"
		}
		mustDo(t, s.AddFile(ctx, batch.File{ID: id, Tenant: "t", Purpose: purpose, Created: int64(i / 3)}, batch.Amounts{}), s.AddFile(ctx, batch.File{ID: "other" + id, Tenant: "u"}, batch.Amounts{}))
	}
	for _, old := range []bool{true, false} {
		var got []string
		for p := (store.Page{Limit: 2, Old: old}); ; p.After = got[len(got)-1] {
			page := must[[]batch.File](t)(s.Files(ctx, "t", "", p))
			if len(page) == 0 {
				break
			}
			for _, f := range page {
				got = append(got, f.ID)
			}
		}
		want := slices.Clone(all)
		if !old {
			slices.Reverse(want)
		}
		if !slices.Equal(got, want) {
			t.Errorf("oldest first %t: %q", old, got)
		}
	}
	if page := must[[]batch.File](t)(s.Files(ctx, "t", "batch_output", store.Page{Limit: 5, After: "f5"})); len(page) != 1 || page[0].ID != "f3" {
		t.Errorf("of one purpose: %v", page)
	}
	addBatch(t, s, "b")
	if page := must[[]batch.Batch](t)(s.Batches(ctx, "t", store.Page{Limit: 5})); len(page) != 1 || page[0].ID != "b" {
		t.Errorf("batches: %v", page)
	}
	if counts := must[map[batch.Status]int](t)(s.Count(ctx)); counts[batch.Validating] != 1 || len(counts) != 1 {
		t.Errorf("counts %v", counts)
	}
}

// BenchmarkSave is what the durability of a result costs while its chunk runs.
func BenchmarkSave(b *testing.B) {
	s, err := store.OpenSQLite(b.Context(), filepath.Join(b.TempDir(), "batch.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	text := []byte(strings.Repeat("x", 600))
	bt := batch.Batch{ID: "b", InputFile: "f"}
	if err := errors.Join(s.AddFile(b.Context(), batch.File{ID: "f"}, batch.Amounts{}), s.AddBatch(b.Context(), bt, batch.Amounts{})); err != nil {
		b.Fatal(err)
	}
	epoch, err := s.LeaseValidation(b.Context(), "b", 0)
	if err == nil {
		err = s.Begin(b.Context(), "b", epoch, "m", []store.Chunk{{Lines: 1 << 40}}, 1)
	}
	chunk, leaseErr := s.Lease(b.Context(), "b")
	if err := errors.Join(err, leaseErr); err != nil {
		b.Fatal(err)
	}
	const lines = 256
	results := make([]store.Result, lines)
	line := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		for i := range results {
			results[i] = store.Result{Line: line, OK: true, Text: text}
			line++
		}
		if _, err := s.Save(b.Context(), chunk, results, batch.Counts{Completed: lines}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(line), "ns/line")
}
