package store_test

import (
	"errors"
	"testing"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/store"
)

// A batch that has ended has one notice, until it is sent. One process takes it at a time.
func TestNotices(t *testing.T) {
	s, ctx := open(t), t.Context()
	addBatch(t, s, "open")
	addBatch(t, s, "b")
	must[batch.Batch](t)(s.Cancel(ctx, "t", "b", 50))
	due := must[[]store.Notice](t)(s.Notices(ctx, 60, 0, 10))
	if len(due) != 1 || due[0].Batch != "b" || due[0].Status != batch.Cancelled || due[0].Ended != 50 || due[0].Tries != 0 {
		t.Fatalf("%+v are due", due)
	}
	if old := must[[]store.Notice](t)(s.Notices(ctx, 60, 51, 10)); len(old) != 0 {
		t.Errorf("%+v are due, which ended too long ago", old)
	}
	mustDo(t, s.TakeNotice(ctx, due[0], 100))
	if err := s.TakeNotice(ctx, due[0], 100); !errors.Is(err, store.ErrLost) {
		t.Errorf("it is taken twice: %v", err)
	}
	if early := must[[]store.Notice](t)(s.Notices(ctx, 99, 0, 10)); len(early) != 0 {
		t.Errorf("%+v are due too early", early)
	}
	again := must[[]store.Notice](t)(s.Notices(ctx, 100, 0, 10))
	if len(again) != 1 || again[0].Tries != 1 {
		t.Fatalf("%+v are due", again)
	}
	mustDo(t, s.TakeNotice(ctx, again[0], 200), s.EndNotice(ctx, "b"))
	if sent := must[[]store.Notice](t)(s.Notices(ctx, 1000, 0, 10)); len(sent) != 0 {
		t.Errorf("%+v are due, which were sent", sent)
	}
}
