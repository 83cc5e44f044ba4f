package handoff

import (
	"testing"
	"time"
)

// clock is a time that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time       { return c.at }
func (c *clock) pass(d time.Duration) { c.at = c.at.Add(d) }

func TestStallWatch(t *testing.T) {
	start := time.Unix(1000, 0)
	live := func(c *clock, w *stallWatch, n int) {
		for range n {
			c.pass(stallTick)
			w.tick()
		}
	}
	cases := []struct {
		name string
		run  func(c *clock, w *stallWatch) (sent time.Time)
		want func(c *clock, sent time.Time) time.Time
	}{
		{"no stall", func(c *clock, w *stallWatch) time.Time {
			sent := c.at
			live(c, w, 40)
			return sent
		}, func(c *clock, _ time.Time) time.Time { return c.at }},
		{"late ticks are no stall", func(c *clock, w *stallWatch) time.Time {
			sent := c.at
			c.pass(stallAfter)
			return sent
		}, func(c *clock, _ time.Time) time.Time { return c.at }},
		{"a stall just before the read", func(c *clock, w *stallWatch) time.Time {
			sent := c.at
			live(c, w, 4)
			c.pass(25 * time.Second)
			return sent
		}, func(_ *clock, sent time.Time) time.Time { return sent.Add(4 * stallTick) }},
		{"a stall that the watch saw before the read", func(c *clock, w *stallWatch) time.Time {
			sent := c.at
			live(c, w, 4)
			c.pass(25 * time.Second)
			live(c, w, 1)
			return sent
		}, func(_ *clock, sent time.Time) time.Time { return sent.Add(4 * stallTick) }},
		{"a stall that began before the leg was sent", func(c *clock, w *stallWatch) time.Time {
			live(c, w, 4)
			c.pass(25 * time.Second)
			return c.at.Add(-time.Second)
		}, func(_ *clock, sent time.Time) time.Time { return sent }},
		{"an old stall", func(c *clock, w *stallWatch) time.Time {
			c.pass(25 * time.Second)
			w.tick()
			sent := c.at
			live(c, w, int(stallAfter/stallTick)+1)
			return sent
		}, func(c *clock, _ time.Time) time.Time { return c.at }},
		{"a clock that goes back", func(c *clock, w *stallWatch) time.Time {
			c.pass(-time.Hour)
			return c.at
		}, func(c *clock, _ time.Time) time.Time { return c.at }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			k := &clock{start}
			w := newStallWatch(k.now)
			sent := c.run(k, w)
			if got, want := w.arrived(sent), c.want(k, sent); !got.Equal(want) {
				t.Errorf("arrived %v after the start, want %v", got.Sub(start), want.Sub(start))
			}
		})
	}
}
