package sidecar

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/sim"
	"github.com/tandem-serving/tandem/pd"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A pod is met once for as long as it is listed, and leaves nothing behind.
func TestWarmupMeetsOnce(t *testing.T) {
	prefill, decode := startSim(t, sim.Config{}), startSim(t, sim.Config{})
	file := filepath.Join(t.TempDir(), "pods")
	listed := "# prefill pods\n\n  " + addrOf(prefill) + " # the first\n8.8.8.8:80\n" + refusingAddr(t) + "\n"
	s := startRig(t, addrOf(decode))
	w := &warmup{s: s.Server, find: func(context.Context) ([]pd.Target, error) { return readTargets(file) }}
	requests := func() int64 { return prefill.Engine.State().Requests }

	w.round(within(t)) // no file: nothing to meet
	if got := requests(); got != 0 {
		t.Errorf("%d requests without a list", got)
	}
	for _, step := range []struct {
		name, list string
		want       int64 // requests by then
	}{{"listed", listed, 1}, {"still listed", listed, 1}, {"gone", "", 1}, {"back", listed, 2}} {
		write(t, file, step.list)
		w.round(within(t))
		if got := requests(); got != step.want {
			t.Errorf("%s: %d requests, want %d", step.name, got, step.want)
		}
	}
	mustFree(t, prefill, decode)
	if st := decode.Engine.State(); st.KVBytesRead == 0 {
		t.Error("decode has read nothing: the pair is as cold as before")
	}
}

func TestWarmupFails(t *testing.T) {
	target := pd.Target{Host: "127.0.0.1", Port: 1}
	models := says(200, "application/json", `{"data":[{"id":"m"}]}`)
	cases := []struct {
		name    string
		prefill act
		decode  []act
		err     string
		forgot  int // releases, one for each of two tries
	}{
		{"no model", offering(handoff), []act{says(200, "application/json", `{"data":[]}`)}, "serves none", 0},
		{"no list of models", offering(handoff), []act{says(200, "text/html", "<")}, "asking decode for its model", 0},
		{"prefill", says(500, "text/plain", ""), []act{models}, "500", 0},
		{"hand-off", offering("null"), []act{models}, "kv_transfer_params", 0},
		{"decode", offering(handoff), []act{models, says(500, "text/plain", ""), models, says(500, "text/plain", "")}, "decode answered 500", 2},
		// A leg that meets a used connection is sent a second time by itself.
		{"decode gone", offering(handoff), []act{models, resets, resets, models, resets, resets}, "reset", 2},
		{"decode full", offering(handoff), []act{models, says(503, "text/plain", ""), models, says(503, "text/plain", "")}, "decode answered 503", 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			prefill, decode := startEngine(t, c.prefill), startEngine(t, c.decode...)
			targets, err := pd.ParseTargets([]string{prefill.addr})
			if err != nil {
				t.Fatal(err)
			}
			target = targets[0]
			w := &warmup{s: startRig(t, decode.addr).Server}
			if err := w.meet(within(t), target); err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want something with %q", err, c.err)
			}
			w.find = func(context.Context) ([]pd.Target, error) { return targets, nil }
			if w.round(within(t)); w.met[target] {
				t.Error("a pod that failed was taken for warm")
			}
			if got := len(decode.releases()); got != c.forgot {
				t.Errorf("%d hand-offs were given back, want %d", got, c.forgot)
			}
		})
	}
	t.Run("nothing found", func(t *testing.T) {
		w := &warmup{s: startRig(t, refusingAddr(t)).Server, met: map[pd.Target]bool{target: true},
			find: func(context.Context) ([]pd.Target, error) { return nil, errors.New("no such name") }}
		if w.round(within(t)); !w.met[target] {
			t.Error("a list that could not be read made known pods unknown")
		}
	})
}

// New starts the warm-up, Close ends it.
func TestWarmupRuns(t *testing.T) {
	prefill, decode := startSim(t, sim.Config{}), startSim(t, sim.Config{})
	file := filepath.Join(t.TempDir(), "pods")
	write(t, file, addrOf(prefill))
	startRig(t, addrOf(decode), set(func(c *Config) { c.Prefill.Discovery = "file:" + file }))
	mustState(t, prefill, "the warm-up", func(st sim.State) bool { return st.Released == 1 })
}

func TestDiscovery(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pods")
	write(t, file, "10.0.0.1:80\n[fd00::1]:81,pod-1:82\n")
	cases := []struct{ source, want string }{
		{"file:" + file, "10.0.0.1:80 [fd00::1]:81 pod-1:82"},
		{"dns://127.0.0.1:8000", "127.0.0.1:8000"},
		{"dns://[::1]:8000", "[::1]:8000"},
	}
	for _, c := range cases {
		find, err := parseDiscovery(c.source)
		if err != nil {
			t.Errorf("%s: %v", c.source, err)
			continue
		}
		targets, err := find(within(t))
		var got []string
		for _, target := range targets {
			got = append(got, target.String())
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, %v", c.source, got, err)
		}
	}
	for _, source := range []string{"file:", "dns://", "dns://host", "dns://host:0", "dns://a:1,b:2", "http://host:80", "host:80", file} {
		if _, err := parseDiscovery(source); err == nil {
			t.Errorf("%q was taken", source)
		}
	}
	write(t, file, "10.0.0.1:80\nnonsense\n")
	if targets, err := readTargets(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("%v, %v of a file with nonsense", targets, err)
	}
	write(t, file, strings.Repeat("x", 1<<17))
	if targets, err := readTargets(file); err == nil {
		t.Errorf("%v of a file with an endless line", targets)
	}
	if _, err := readTargets(filepath.Join(file, "absent")); err == nil {
		t.Error("an absent file was read")
	}
}
