package store_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/store"
	"github.com/tandem-serving/tandem/e2e/postgres"
)

// TestPostgres runs the tests of this package on a real PostgreSQL, and those of what several processes do there.
func TestPostgres(t *testing.T) {
	database = postgres.Start(t)
	defer func() { database = nil }()
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"Life", TestLife},
		{"LostLease", TestLostLease},
		{"CancelAndExpire", TestCancelAndExpire},
		{"FailedValidation", TestFailedValidation},
		{"Files", TestFiles},
		{"Pages", TestPages},
		{"Quota", TestQuota},
		{"EndedBatches", TestEndedBatches},
		{"Notices", TestNotices},
		{"OpenedByMany", testOpenedByMany},
		{"EachChunkOnce", testEachChunkOnce},
		{"CancelAndBegin", testCancelAndBegin},
		{"TextsThatCannotBe", testTextsThatCannotBe},
		{"Restart", testRestart},
	} {
		t.Run(c.name, c.test)
	}
}

// Processes that start together make the tables once.
func testOpenedByMany(t *testing.T) {
	address := database.Schema()
	var running sync.WaitGroup
	for range 6 {
		running.Go(func() {
			s, err := store.OpenPostgres(t.Context(), address)
			if err == nil {
				err = errors.Join(s.Ready(t.Context()), s.Close())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
}

// Of workers that lease at the same time, each gets another chunk, and none comes away empty-handed.
func testEachChunkOnce(t *testing.T) {
	s, ctx := open(t), t.Context()
	addBatch(t, s, "b")
	const chunks, workers = 24, 8
	begin(t, s, "b", chunks)
	var running sync.WaitGroup
	var mu sync.Mutex
	leased := map[int64]int{}
	for range workers {
		running.Go(func() {
			for range chunks / workers {
				c, err := s.Lease(ctx, "b")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				leased[c.Number]++
				mu.Unlock()
				c.Output = batch.Part{Blob: fmt.Sprint("out", c.Number), Bytes: 1}
				if err := s.Finish(ctx, c, batch.Counts{Completed: 2}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	for number, times := range leased {
		if times != 1 {
			t.Errorf("chunk %d was leased %d times", number, times)
		}
	}
	var ends sync.WaitGroup
	var ended, lost int
	for range workers {
		ends.Go(func() {
			b, err := s.End(ctx, "b", 30)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && b.Counts.Completed == 2*chunks:
				ended++
			case errors.Is(err, store.ErrLost):
				lost++
			default:
				t.Errorf("%+v, %v", b.Counts, err)
			}
		})
	}
	ends.Wait()
	if len(leased) != chunks || ended != 1 || lost != workers-1 {
		t.Errorf("%d chunks were leased; %d workers ended the batch, and %d were late", len(leased), ended, lost)
	}
	if files := must[[]batch.File](t)(s.Files(ctx, "t", batch.PurposeOutput, store.Page{Limit: 10})); len(files) != 1 || files[0].Bytes != chunks {
		t.Errorf("the output is %v", files)
	}
}

// A batch that is cancelled while it begins is either cancelled without chunks, or has its chunks closed.
func testCancelAndBegin(t *testing.T) {
	s, ctx := open(t), t.Context()
	for i := range 20 {
		id := fmt.Sprint("b", i)
		addBatch(t, s, id)
		epoch := must[int64](t)(s.LeaseValidation(ctx, id, 0))
		var running sync.WaitGroup
		var begun, cancelled error
		var as batch.Batch
		running.Go(func() { begun = s.Begin(ctx, id, epoch, "m", []store.Chunk{{Bytes: 10, Lines: 2}}, 11) })
		running.Go(func() { as, cancelled = s.Cancel(ctx, "t", id, 12) })
		running.Wait()
		got := must[batch.Batch](t)(s.Batch(ctx, "t", id))
		switch {
		case cancelled != nil:
			t.Error(cancelled)
		case begun == nil && (as.Status != batch.Cancelling || got.Status != batch.Cancelling):
			t.Errorf("it has begun, and is %s, told as %s", got.Status, as.Status)
		case begun != nil && (!errors.Is(begun, store.ErrLost) || got.Status != batch.Cancelled):
			t.Errorf("it has not begun (%v), and is %s", begun, got.Status)
		}
	}
}

// A client may ask for ids with characters that no text of the database can have.
func testTextsThatCannotBe(t *testing.T) {
	s := open(t)
	for _, id := range []string{"a\x00b", "\xff"} {
		_, fileErr := s.File(t.Context(), "t", id)
		_, batchErr := s.Batch(t.Context(), "t", id)
		addErr := s.AddBatch(t.Context(), batch.Batch{ID: "b", Tenant: "t", InputFile: id}, batch.Amounts{})
		if files, err := s.Files(t.Context(), "t", id, store.Page{Limit: 1}); err != nil || len(files) != 0 {
			t.Errorf("files of the purpose %q: %v, %v", id, files, err)
		}
		_, deleteErr := s.DeleteFile(t.Context(), "t", id)
		for _, err := range []error{fileErr, batchErr, addErr, deleteErr} {
			if !errors.Is(err, batch.ErrNotFound) {
				t.Errorf("%q: %v", id, err)
			}
		}
	}
}

// What was committed is there after a power failure of the database, and the store goes on by itself.
func testRestart(t *testing.T) {
	s := open(t)
	addBatch(t, s, "b")
	database.Kill()
	database.Restart()
	// Connections that the pool still has are broken: as many calls may fail, and the next one makes a connection.
	var b batch.Batch
	var err error
	for range 20 {
		if b, err = s.Batch(t.Context(), "t", "b"); err == nil {
			break
		}
	}
	if err != nil || b.Status != batch.Validating {
		t.Errorf("the batch is %s, %v", b.Status, err)
	}
}

// TestPostgresAddress: an address that cannot be is refused without showing the password in it.
func TestPostgresAddress(t *testing.T) {
	for _, address := range []string{"postgres://user:secret@host:port/name", "secret"} {
		_, err := store.OpenPostgres(t.Context(), address)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", address, err)
		}
	}
}
