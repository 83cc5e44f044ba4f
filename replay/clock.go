package replay

import (
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// epoch is when every replay begins: a Monday, as the weeks do that loads are spaced in.
var epoch = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

// clock runs events in the order of their times, and of those at the same time the one that was added first. It is an epp.Clock.
type clock struct {
	now    time.Duration
	added  uint64
	events []event // a heap
}

// event is a function that runs at a moment, or the end of a node's steps.
type event struct {
	at   time.Duration
	seq  uint64
	run  func()
	node *node
	turn int // of the node: the event is outdated if the node has had another one since
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// after runs f after d.
func (c *clock) after(d time.Duration, f func()) { c.add(event{at: c.now + max(0, d), run: f}) }

func (c *clock) add(e event) {
	c.added++
	e.seq = c.added
	c.events = append(c.events, e)
	for i := len(c.events) - 1; i > 0; {
		parent := (i - 1) / 2
		if !c.events[i].before(&c.events[parent]) {
			break
		}
		c.events[i], c.events[parent] = c.events[parent], c.events[i]
		i = parent
	}
}

// next removes the first event, and makes its time the present.
func (c *clock) next() (first event, ok bool) {
	if len(c.events) == 0 {
		return event{}, false
	}
	first = c.events[0]
	last := len(c.events) - 1
	c.events[0] = c.events[last]
	c.events[last] = event{}
	c.events = c.events[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if c.events[child].before(&c.events[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		c.events[i], c.events[least] = c.events[least], c.events[i]
		i = least
	}
	c.now = first.at
	return first, true
}

// Now implements epp.Clock.
func (c *clock) Now() time.Time { return epoch.Add(c.now) }

// Since implements epp.Clock.
func (c *clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// AfterFunc implements epp.Clock.
func (c *clock) AfterFunc(d time.Duration, f func()) epp.Timer {
	t := &timer{}
	c.after(d, func() {
		if !t.over {
			t.over = true
			f()
		}
	})
	return t
}

type timer struct{ over bool }

// Stop implements epp.Timer.
func (t *timer) Stop() bool {
	stopped := !t.over
	t.over = true
	return stopped
}
