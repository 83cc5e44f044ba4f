package extproc

import (
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// deadline bounds what a request waits for, because Envoy does not. When it expires, the timer's goroutine answers in place of the
// handler, which may be blocked in Recv or in the scheduler. Ending the stream cancels its context, and with it the pick. The
// stream's mu guards all fields.
type deadline struct {
	state   waiting
	since   time.Time     // start of the wait
	last    time.Time     // arrival of the last frame
	bytes   int64         // of the body that have arrived
	queue   time.Duration // for which a request may wait for capacity, beyond the limit of a decision
	timer   *time.Timer   // nil if no wait was limited so far
	refusal *pd.Refusal   // the timer's answer; nil if it has not answered
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

// left returns how long the wait may still last. limited is false if there is no limit.
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
		if c.DecisionTimeout > 0 {
			shorten(c.DecisionTimeout+w.queue, w.since)
		}
	}
	return left, limited
}

// newRefusal returns the answer for a wait that took too long.
func (w *deadline) newRefusal() *pd.Refusal {
	if w.state == waitBody {
		return pd.Refuse(pd.SlowBody, "The request body did not arrive in time. Send it again without pauses.")
	}
	return pd.Refuse(pd.Deadline, "No model server could be chosen in time. Try again later.")
}

// startWait begins a wait.
func (st *stream) startWait(state waiting, now time.Time) {
	st.mu.Lock()
	defer st.mu.Unlock()
	w := &st.deadline
	w.stop()
	w.state, w.since, w.last = state, now, now
	if state == waitDecision {
		w.queue = st.s.deps.Scheduler.Wait()
	}
	left, limited := w.left(&st.s.cfg, now)
	switch {
	case limited && w.timer == nil:
		w.timer = time.AfterFunc(left, st.expire)
	case limited:
		w.timer.Reset(left)
	}
}

// noteFrame notes the arrival of a frame with n bytes of the body: the sender is not silent.
func (st *stream) noteFrame(now time.Time, n int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.deadline.last = now
	st.deadline.bytes += int64(n)
}

// claim ends the wait and claims the right to answer for the handler. It reports false if the timer has answered.
func (st *stream) claim() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.deadline.stop()
	return st.deadline.refusal == nil
}

// expire answers a request that has waited too long. Frames do not restart the timer, so it may fire early.
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
		w.refusal = w.newRefusal()
		if w.state == waitBody { // during a pick, the handler makes the span
			st.noteUnpicked(w.refusal)
		}
		w.state = waitNothing
		took := now.Sub(w.last)
		st.s.metrics.answered(pd.Refused, took)
		// Sending fails only if the stream has ended.
		_ = st.grpc.Send(immediateAnswer(w.refusal, &st.request.head, took))
		finish(st.grpc)
	}
}
