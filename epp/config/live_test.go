package config

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
)

const liveHeader = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"

// live is a configuration file that is followed, on a fake clock.
type live struct {
	t      *testing.T
	path   string
	reg    *prometheus.Registry
	j      journal
	log    bytes.Buffer
	refuse error // what Swap answers
	live   *Live
}

// write replaces the file, as editors and Kubernetes do, and waits until that must have been seen.
func (l *live) write(text string) {
	l.t.Helper()
	next := l.path + ".next"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(next, l.path); err != nil {
		l.t.Fatal(err)
	}
	l.wait()
}

func (l *live) wait() {
	<-time.After(4 * epp.WatchInterval)
	synctest.Wait()
}

// follow starts with a file and runs test while it is followed.
func follow(t *testing.T, text string, test func(l *live)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := &live{t: t, path: filepath.Join(dir, "config.yaml"), reg: prometheus.NewRegistry()}
		l.write(liveHeader + text)
		var err error
		l.live, err = Start([]byte(liveHeader+text), Options{
			Table: parts(&l.j), Log: slog.New(slog.NewTextHandler(&l.log, nil)), Keep: &epp.Keep{}, Metrics: l.reg,
			Swap: func(_ *Config, b *Built) error {
				if l.refuse != nil {
					return l.refuse
				}
				l.j.add("swap %s", b.Instances[0].Name)
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { l.live.Follow(ctx, l.path); close(done) }()
		test(l)
		cancel()
		<-done
		if err := l.live.Close(); err != nil {
			t.Error(err)
		}
	})
}

// last is what happened after the last look at plugins in Parse: builds, the swap, closes.
func (l *live) last() string {
	events := strings.Join(l.j.events, ", ")
	return events[strings.LastIndex(events, "build "+l.live.built.Instances[0].Name):]
}

// metric returns the value of a metric, with its label if it has one.
func (l *live) metric(name, label string) float64 {
	l.t.Helper()
	families, err := l.reg.Gather()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name && (len(m.Label) == 0 || m.Label[0].GetValue() == label) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	l.t.Fatalf("there is no %s{%s}", name, label)
	return 0
}

func (l *live) check(generation int, problem string, successful float64) {
	l.t.Helper()
	s := l.live.State()
	if s.Generation != generation || errorText(s.Err) != problem || s.ErrAt.IsZero() != (problem == "") {
		l.t.Errorf("state %+v, want generation %d, problem %q", s, generation, problem)
	}
	if got := l.metric("tandem_config_last_reload_successful", ""); got != successful {
		l.t.Errorf("last reload successful: %v", got)
	}
	if !strings.Contains(s.Detail(), oneLine(errors.New(problem))) {
		l.t.Errorf("detail %q lacks %q", s.Detail(), problem)
	}
}

func TestReload(t *testing.T) {
	follow(t, "plugins: [{name: one, type: scorer}]", func(l *live) {
		l.check(1, "", 1)
		l.write(liveHeader + "plugins: [{name: two, type: scorer}]")
		l.check(2, "", 1)
		const want = "build two, build max-score-picker, build metrics-data-source, build core-metrics-extractor, " +
			"build single-profile-handler, swap two, close single-profile-handler, close core-metrics-extractor, " +
			"close metrics-data-source, close max-score-picker, close one"
		if got := l.last(); got != want {
			t.Errorf("happened %s, want %s", got, want)
		}
		if got := l.metric("tandem_config_reloads_total", resultOK); got != 1 {
			t.Errorf("%v reloads", got)
		}
	})
}

// TestReloadBadFile: the last good configuration stays in use, until the file is good again, be it the same as before.
func TestReloadBadFile(t *testing.T) {
	const good = "plugins: [{name: one, type: scorer}]"
	follow(t, good, func(l *live) {
		before := l.live.State().Since
		l.write(liveHeader + "plugins: [{name: two, type: scoer}]")
		const problem = `line 3: plugins[0].type: there is no plugin type "scoer"; did you mean "scorer"?`
		l.check(1, problem, 0)
		if l.live.built.Instances[0].Name != "one" || !l.live.State().Since.Equal(before) {
			t.Errorf("in use: %+v, state %+v", l.live.built.Instances, l.live.State())
		}
		if got := l.metric("tandem_config_reloads_total", resultInvalid); got != 1 {
			t.Errorf("%v invalid", got)
		}
		if !strings.Contains(l.log.String(), "level=ERROR") || !strings.Contains(l.log.String(), "scoer") {
			t.Errorf("log: %s", &l.log)
		}
		swaps := strings.Count(strings.Join(l.j.events, ","), "swap")
		l.write(liveHeader + good)
		l.check(1, "", 1)
		if got := strings.Count(strings.Join(l.j.events, ","), "swap"); got != swaps {
			t.Error("the same configuration was built again")
		}
		l.write(liveHeader + "plugins: [{name: three, type: scorer}]")
		l.check(2, "", 1)
	})
}

func TestReloadUnreadable(t *testing.T) {
	follow(t, "plugins: [{name: one, type: scorer}]", func(l *live) {
		if err := os.Remove(l.path); err != nil {
			t.Fatal(err)
		}
		l.wait()
		l.check(1, "reading the configuration: stat "+l.path+": no such file or directory", 0)
		if got := l.metric("tandem_config_reloads_total", resultUnreadable); got != 1 {
			t.Errorf("%v unreadable", got)
		}
		l.write(liveHeader + "plugins: [{name: two, type: scorer}]")
		l.check(2, "", 1)
	})
}

// TestReloadRefused: what cannot be put to use is closed again.
func TestReloadRefused(t *testing.T) {
	follow(t, "plugins: [{name: one, type: scorer}]", func(l *live) {
		l.refuse = errors.New("no room")
		l.j.events = nil
		l.write(liveHeader + "plugins:\n  - {name: two, type: scorer}\n  - {name: sticky, type: filter, parameters: {sticks: true}}")
		l.check(1, "putting the configuration to use: no room\nclosing plugin sticky: it sticks", 0)
		all := strings.Join(l.j.events, ",")
		if strings.Count(all, "build two") != 2 || strings.Count(all, "close two") != 2 || strings.Contains(all, "close one") {
			t.Errorf("happened %s", all)
		}
	})
}

// TestReloadIsTriedAgain: the cause of a failure may go away without a change of the file. The failure is reported once.
func TestReloadIsTriedAgain(t *testing.T) {
	follow(t, "plugins: [{name: one, type: scorer}]", func(l *live) {
		l.refuse = errors.New("no endpoints yet")
		l.write(liveHeader + "plugins: [{name: two, type: scorer}]")
		for range 10 {
			l.wait()
		}
		l.check(1, "putting the configuration to use: no endpoints yet", 0)
		if n := l.metric("tandem_config_reloads_total", resultInvalid); n != 1 || strings.Count(l.log.String(), "no endpoints yet") != 1 {
			t.Errorf("%v failures told, log: %s", n, &l.log)
		}
		l.refuse = nil
		for range 3 {
			l.wait()
		}
		l.check(2, "", 1)
		if got := l.metric("tandem_config_reloads_total", resultOK); got != 1 {
			t.Errorf("%v reloads", got)
		}
	})
}

// TestReloadIsNotTriedAgain: a file that was deleted, or has the content in use again, is not retried.
func TestReloadIsNotTriedAgain(t *testing.T) {
	const good = "plugins: [{name: one, type: scorer}]"
	for name, away := range map[string]func(*live){
		"gone": func(l *live) {
			if err := os.Remove(l.path); err != nil {
				l.t.Fatal(err)
			}
		},
		"good again": func(l *live) { l.write(liveHeader + good) },
	} {
		t.Run(name, func(t *testing.T) {
			follow(t, good, func(l *live) {
				l.refuse = errors.New("not now")
				l.write(liveHeader + "plugins: [{name: two, type: scorer}]")
				away(l)
				l.wait()
				l.refuse = nil
				for range 10 {
					l.wait()
				}
				if got := l.live.State().Generation; got != 1 {
					t.Errorf("generation %d", got)
				}
			})
		})
	}
}

// TestReloadWarns: warnings are logged, and so is a replaced plugin that cannot be closed, which is no reason to go back.
func TestReloadWarns(t *testing.T) {
	follow(t, "plugins: [{name: one, type: scorer, parameters: {sticks: true}}]", func(l *live) {
		l.write(liveHeader + "plugins: [{name: two, type: scorer}]\nfeatureGates: [prepareDataPlugins]")
		l.check(2, "", 1)
		for _, want := range []string{"what plugins read is always prepared", "it sticks", "generation=2"} {
			if !strings.Contains(l.log.String(), want) {
				t.Errorf("log lacks %q: %s", want, &l.log)
			}
		}
	})
}

func TestStartFails(t *testing.T) {
	swap := func(*Config, *Built) error { return errors.New("no room") }
	opt := Options{Table: parts(&journal{}), Log: quiet, Keep: &epp.Keep{}, Swap: swap}
	tests := []struct{ name, text, want string }{
		{"invalid", "", "the configuration is empty"},
		{"refused", liveHeader + "plugins: [{type: scorer}]", "putting the configuration to use: no room"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Start([]byte(test.text), opt); errorText(err) != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}
