package sidecar

import (
	"fmt"
	"slices"
	"strings"
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
			w.alive()
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
			w.alive()
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

func TestReactions(t *testing.T) {
	for s := range stateCount {
		for trouble := range troubleCount {
			act := s.on(trouble)
			name := fmt.Sprintf("%s, trouble %d: %b", s, trouble, act)
			switch {
			case s == done && act != nothing:
				t.Errorf("%s: what is done needs nothing", name)
			case s == handedOff && !act.has(releaseHandoff):
				t.Errorf("%s: a hand-off that decode does not know must be released", name)
			case s == streaming && act.has(redo|next|refuse):
				t.Errorf("%s: nothing is redone, and no status sent, once a token has gone out", name)
			case s < handedOff && act.has(releaseHandoff|redo) && s != prefilling:
				t.Errorf("%s: there is nothing to release yet", name)
			case trouble == clientGone && act.has(refuse|endStream|redo|next):
				t.Errorf("%s: no client is left to answer", name)
			case trouble == cutOff && act.has(redo|next):
				t.Errorf("%s: no time for another try", name)
			case trouble == cutOff && s < streaming && !act.has(refuse):
				t.Errorf("%s: the client needs an answer", name)
			case s == streaming && trouble != clientGone && !act.has(endStream):
				t.Errorf("%s: the stream must end", name)
			}
		}
		if s.String() == "" {
			t.Errorf("state %d has no name", s)
		}
	}
	for _, c := range []struct {
		s    state
		t    trouble
		want action
	}{
		{prefilling, failed, next}, {prefilling, timedOut, cancelLeg | next}, {prefilling, clientGone, cancelLeg},
		{decoding, clientGone, releaseHandoff}, {decoding, failed, releaseHandoff | redo}, {decoding, timedOut, cancelLeg | releaseHandoff | redo},
		{received, failed, refuse}, {streaming, failed, endStream},
	} {
		if got := c.s.on(c.t); got != c.want {
			t.Errorf("%s, trouble %d: %b, want %b", c.s, c.t, got, c.want)
		}
	}
}

func TestConfigProblems(t *testing.T) {
	problems := func(c Config) (flags []string) {
		c.Problems(func(flag, format string, args ...any) {
			if text := fmt.Errorf(format, args...).Error(); text == "" || strings.Contains(text, "%!") {
				t.Errorf("%s: message %q", flag, text)
			}
			flags = append(flags, flag)
		})
		return flags
	}
	if got := problems(Defaults()); len(got) != 0 {
		t.Errorf("the defaults have problems: %v", got)
	}
	cases := []struct {
		flag   string
		change func(*Config)
	}{
		{"kv-connector", func(c *Config) { c.Engine.Connector = "pigeon" }},
		{"prefill-discovery", func(c *Config) { c.Prefill.Discovery = "http://x" }},
		{"model-server-host", func(c *Config) { c.Engine.Host = "" }},
		{"model-server-port", func(c *Config) { c.Engine.Port = 0 }},
		{"model-server-port", func(c *Config) { c.Engine.Port = 65536 }},
		{"first-event-timeout", func(c *Config) { c.Engine.FirstEvent = 0 }},
		{"prefill-timeout", func(c *Config) { c.Prefill.Timeout = -time.Second }},
		{"lease", func(c *Config) { c.Fallback.Lease = 0 }},
		{"drain-timeout", func(c *Config) { c.Fallback.Drain = 0 }},
		{"max-idle-conns-per-host", func(c *Config) { c.Engine.IdleConns = -1 }},
		{"prefill-max-retries", func(c *Config) { c.Prefill.MaxRetries = -1 }},
		{"fallback-burst", func(c *Config) { c.Fallback.Burst = -1 }},
		{"prefill-block-size", func(c *Config) { c.Prefill.BlockSize = -1 }},
		{"prefill-retry-backoff", func(c *Config) { c.Prefill.RetryBackoff = -1 }},
		{"fallback-ratio", func(c *Config) { c.Fallback.Ratio = -0.1 }},
		{"fallback-ratio", func(c *Config) { c.Fallback.Ratio = 1.1 }},
		{"fallback-ratio", func(c *Config) { var zero float64; c.Fallback.Ratio = zero / zero }},
		{"body-limit", func(c *Config) { c.Trust.BodyLimit = 0 }},
		{"buffer-limit", func(c *Config) { c.Trust.BufferLimit = 2*c.Trust.BodyLimit - 1 }},
		{"body-timeout", func(c *Config) { c.Trust.BodyPause = 0 }},
		{"pd-header", func(c *Config) { c.Trust.PDHeader = "maybe" }},
	}
	for _, c := range cases {
		cfg := Defaults()
		c.change(&cfg)
		if got := problems(cfg); !slices.Equal(got, []string{c.flag}) {
			t.Errorf("problems %v, want one with %s", got, c.flag)
		}
	}
	if got := problems(Config{}); len(got) < 8 {
		t.Errorf("an empty configuration has only the problems %v", got)
	}
}

// A late hangup must not touch a connection that another leg may use by now.
func TestHangupAfterItsLeg(t *testing.T) {
	cancelled := 0
	h := &hangup{cancel: func() { cancelled++ }}
	h.done()
	h.soon()
	h.up()
	if h.timer != nil {
		t.Error("a finished leg was hung up on")
	}
	if cancelled == 0 {
		t.Error("a finished leg's context was not ended")
	}
}
