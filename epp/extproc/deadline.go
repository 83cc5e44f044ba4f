package extproc

import (
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// deadline is what a request waits for, and since when. Envoy has no time limit for any of it. The timer's goroutine answers
// in place of the handler, which may be blocked: in Recv, or in the scheduler. All of it is guarded by the stream's mu.
type deadline struct {
	state   waiting
	since   time.Time   // when the wait began
	last    time.Time   // when the last frame came
	bytes   int64       // of the body that have come
	timer   *time.Timer // nil if no wait was limited so far
	overdue *pd.Refusal // what the timer answered; nil if it did not
}

type waiting uint8

const (
	waitNothing waiting = iota
	waitBody
	waitDecision
)

// stop ends the wait.
func (w *deadline) stop() {
	w.state = waitNothing
	if w.timer != nil {
		w.timer.Stop()
	}
}

// left is how long the wait may still last; limited is false if it may last for ever.
func (w *deadline) left(c *Config, now time.Time) (left time.Duration, limited bool) {
	shorten := func(limit time.Duration, since time.Time) {
		if rest := limit - now.Sub(since); limit > 0 && (!limited || rest < left) {
			left, limited = rest, true
		}
	}
	switch w.state {
	case waitBody:
		shorten(c.BodyPause, w.last)
		if c.BodyRate > 0 && c.BodyPause > 0 {
			shorten(c.BodyPause+time.Duration(w.bytes/c.BodyRate)*time.Second, w.since)
		}
	case waitDecision:
		shorten(c.DecisionTimeout, w.since)
	}
	return left, limited
}

func (w *deadline) refusal() *pd.Refusal {
	if w.state == waitBody {
		return pd.Refuse(pd.SlowBody, "The request body did not arrive in time. Send it again without pauses.")
	}
	return pd.Refuse(pd.Deadline, "No model server could be chosen in time. Try again later.")
}

// await begins a wait.
func (st *stream) await(state waiting, now time.Time) {
	st.mu.Lock()
	defer st.mu.Unlock()
	w := &st.deadline
	w.stop()
	w.state, w.since, w.last = state, now, now
	left, limited := w.left(&st.s.cfg, now)
	switch {
	case limited && w.timer == nil:
		w.timer = time.AfterFunc(left, st.expire)
	case limited:
		w.timer.Reset(left)
	}
}

// came notes that a frame came, with n bytes of the body: the sender is not silent.
func (st *stream) came(now time.Time, n int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.deadline.last = now
	st.deadline.bytes += int64(n)
}

// claim ends the wait and takes the right to answer. It reports false if the timer has answered.
func (st *stream) claim() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.deadline.stop()
	return st.deadline.overdue == nil
}

// expire answers a request that has waited too long. The timer does not run anew with every frame, so it may come early.
func (st *stream) expire() {
	st.mu.Lock()
	defer st.mu.Unlock()
	w := &st.deadline
	now := time.Now()
	left, limited := w.left(&st.s.cfg, now)
	switch {
	case !limited:
	case left > 0:
		w.timer.Reset(left)
	default:
		w.overdue = w.refusal()
		if w.state == waitBody { // of one that is being picked for, the span is the handler's
			st.noteUnpicked(w.overdue)
		}
		w.state = waitNothing
		took := now.Sub(w.last)
		st.s.metrics.answered(pd.Refused, took)
		// It cannot be sent only if the stream is over.
		_ = st.grpc.Send(immediateAnswer(w.overdue, st.request.head.api, took))
		finish(st.grpc)
	}
}
