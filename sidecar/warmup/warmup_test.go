package warmup

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
)

const first, second = "10.0.0.1:8000", "10.0.0.2:8000"

func TestPairIsWarmedUpOnceWhileListed(t *testing.T) {
	const broken = "10.0.0.3:8000"
	file := filepath.Join(t.TempDir(), "pods")
	list := "# prefill pods\n\n  " + first + " # the first\n8.8.8.8:80\n" + broken + "\n"
	r := newRig(t, func(context.Context) ([]pd.Target, error) { return readTargets(file) })
	r.handOff = func(t pd.Target, _ string) error {
		if t.String() == broken {
			return errors.New("connection refused")
		}
		return nil
	}
	r.step(t) // no file: nothing to warm up
	for _, step := range []struct {
		name, list    string
		first, second int // hand-offs by then
	}{
		{"listed", list, 1, 0}, {"still listed", list, 1, 0}, {"one more", list + second, 1, 1},
		{"unlisted", second, 1, 1}, {"listed again", list + second, 2, 1},
	} {
		write(t, file, step.list)
		r.step(t)
		if r.handoffs[first] != step.first || r.handoffs[second] != step.second {
			t.Errorf("%s: %v hand-offs, want %d and %d", step.name, r.handoffs, step.first, step.second)
		}
	}
	if want := map[string]int{"ok": 3, "failed": 2}; !maps.Equal(r.results, want) {
		t.Errorf("results %v, want %v", r.results, want)
	}
	if r.handoffs["8.8.8.8:80"] != 0 {
		t.Error("an engine that is not allowed was asked")
	}
	if got := r.log.lines("level=WARN"); got != 1 {
		t.Errorf("%d warnings within a moment", got)
	}
}

func TestHandOffFails(t *testing.T) {
	for _, c := range []struct {
		name, models string
		handOff      error
		err          string
		handoffs     int
	}{
		{"no model", `{"data":[]}`, nil, "serves none", 0},
		{"no list of models", "<", nil, "asking decode for its model", 0},
		{"hand-off", oneModel, errors.New("decode answered 500"), "decode answered 500", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, listed(t, first))
			r.decode.models = c.models
			r.handOff = func(pd.Target, string) error { return c.handOff }
			if r.step(t); r.warm(first) {
				t.Error("a pair whose hand-off failed is warm")
			}
			if !strings.Contains(r.log.String(), c.err) {
				t.Errorf("logged %s, want something with %q", &r.log, c.err)
			}
			if want := map[string]int{"failed": 1}; !maps.Equal(r.results, want) || r.handoffs[first] != c.handoffs {
				t.Errorf("results %v after %d hand-offs", r.results, r.handoffs[first])
			}
		})
	}
}

func TestFailedListingForgetsNoEngine(t *testing.T) {
	r := newRig(t, listed(t, first))
	r.step(t)
	r.Find = func(context.Context) ([]pd.Target, error) { return nil, errors.New("no such name") }
	if r.step(t); !r.warm(first) {
		t.Error("a list that could not be read made known engines unknown")
	}
}

// Engines that ask for a key are asked once, and one warning says so.
func TestWithoutKey(t *testing.T) {
	for _, c := range []struct {
		name         string
		modelsStatus int
		handOff      error
		handoffs     int
	}{
		{"decode", 401, nil, 0},
		{"decode forbids", 403, nil, 0},
		{"prefill", 200, ErrLocked, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, listed(t, first, second))
			r.decode.modelsStatus = c.modelsStatus
			r.handOff = func(pd.Target, string) error { return c.handOff }
			for range 3 {
				r.step(t)
				r.expire()
			}
			if got := r.handoffs[first] + r.handoffs[second]; got != c.handoffs {
				t.Errorf("%d hand-offs, want %d", got, c.handoffs)
			}
			if want := map[string]int{"refused": max(c.handoffs, 1)}; !maps.Equal(r.results, want) {
				t.Errorf("results %v, want %v", r.results, want)
			}
			if got := r.log.lines("level=WARN"); got != 1 || r.log.lines("--warm-up") != 1 {
				t.Errorf("%d warnings: %s", got, &r.log)
			}
		})
	}
}

// An engine that hands over whole blocks only gets longer prompts, up to some length.
func TestPromptGrows(t *testing.T) {
	for name, c := range map[string]struct {
		block      int // bytes of a body that make a block
		longEnough []bool
	}{
		"long blocks": {1000, []bool{false, false, true}},
		"no hand-off": {1 << 30, []bool{false, false, false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, listed(t, first))
			var got []bool
			r.handOff = func(_ pd.Target, body string) error {
				got = append(got, len(body) > c.block)
				if len(body) > c.block {
					return nil
				}
				return dialect.ErrNoHandoff
			}
			for range 10 {
				r.step(t)
			}
			if !slices.Equal(got, c.longEnough) {
				t.Errorf("long enough were %v, want %v", got, c.longEnough)
			}
			if hopeless := r.log.lines("--warm-up") == 1; r.warm(first) == hopeless {
				t.Errorf("logged %s", &r.log)
			}
		})
	}
}

// The warm-up waits silently for a decode engine that is not ready. One that was unhealthy was restarted: all pairs are cold.
func TestWaitsForDecode(t *testing.T) {
	r := newRig(t, listed(t, first))
	for i, step := range []struct {
		sick, warm bool
		handoffs   int // by then
	}{{true, false, 0}, {true, false, 0}, {false, true, 1}, {false, true, 1}, {true, false, 1}, {false, true, 2}} {
		r.decode.setSick(step.sick)
		r.expire()
		r.step(t)
		if got := r.handoffs[first]; got != step.handoffs || r.warm(first) != step.warm {
			t.Errorf("step %d: %d hand-offs, want %d; warm: %v", i, got, step.handoffs, r.warm(first))
		}
	}
	if r.log.lines("level=WARN") != 0 {
		t.Errorf("logged %s", &r.log)
	}
}

func TestNothingToDo(t *testing.T) {
	r := newRig(t, func(context.Context) ([]pd.Target, error) {
		t.Error("engines were listed")
		return nil, nil
	})
	r.HandOff = nil
	r.Run(context.Background()) // returns by itself
	if r.log.lines("not discovered") != 1 {
		t.Error("the log does not say that nothing is done")
	}
}

// While users' requests still run in a drain, nothing is begun.
func TestDrainingBeginsNothing(t *testing.T) {
	r := newRig(t, func(context.Context) ([]pd.Target, error) {
		t.Error("engines were listed")
		return nil, nil
	})
	drained := make(chan struct{})
	r.Draining, r.Drained = func() bool { return true }, drained
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(context.Background()) }()
	select {
	case <-ended:
		t.Error("the warm-up did not wait for the drain")
	default:
	}
	close(drained)
	wait(t, ended, "the end of the warm-up")
}
