package leaving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp/scale"
)

// pool is sizes, pods and a cluster of a test.
type pool struct {
	sizes   []scale.Size
	err     error // why sizes are not known
	changed chan struct{}
	now     time.Time
	pods    []Pod
	costs   map[string]string
	writes  []string // pod=cost
	refuse  error
}

func (p *pool) Sizes() ([]scale.Size, error)     { return p.sizes, p.err }
func (p *pool) Changed() <-chan struct{}         { return p.changed }
func (p *pool) DeletionCosts() map[string]string { return maps.Clone(p.costs) }

func (p *pool) SetDeletionCost(_ context.Context, pod, cost string) error {
	p.writes = append(p.writes, pod+"="+cost)
	if p.refuse != nil {
		return p.refuse
	}
	if p.costs[pod] = cost; cost == "" {
		delete(p.costs, pod)
	}
	return nil
}

// startMarker returns a marker of three decode pods and a prefill pod: decode should have one pod less.
func startMarker(log *slog.Logger) (*Marker, *pool) {
	p := &pool{now: time.Unix(1000, 0), costs: map[string]string{}, changed: make(chan struct{}),
		sizes: []scale.Size{{Role: "decode", Current: 3, Desired: 2, Soon: 2}, {Role: "prefill", Current: 1, Desired: 1, Soon: 1}},
		pods:  []Pod{{"decode", "a", 9, 0, ""}, {"decode", "b", 2, 0, ""}, {"decode", "c", 9, 0, ""}, {"prefill", "p", 0, 0, ""}}}
	return New(Options{Sizes: p, Pods: func() []Pod { return p.pods }, Cluster: p, Now: func() time.Time { return p.now }, Log: log}), p
}

// look has a marker look some time after the last time, and returns what it has written.
func (p *pool) look(t *testing.T, m *Marker, after time.Duration) string {
	p.writes = nil
	p.now = p.now.Add(after)
	m.look(t.Context())
	return strings.Join(p.writes, " ")
}

func TestChoose(t *testing.T) {
	for _, test := range []struct {
		name  string
		pods  []Pod
		costs map[string]string
		many  int
		want  []string
	}{
		{"the fewest requests", []Pod{{"decode", "a", 40, 0, ""}, {"decode", "b", 3, 9e6, ""}, {"decode", "c", 40, 0, ""}}, nil, 1, []string{"b"}},
		{"of about as many, the coldest cache", []Pod{{"decode", "a", 4, 9e6, ""}, {"decode", "b", 7, 2000, ""}, {"decode", "c", 5, 9e6, ""}}, nil, 1, []string{"b"}},
		{"of equal ones, those that were chosen before", []Pod{{"decode", "a", 5, 0, ""}, {"decode", "b", 7, 0, ""}}, map[string]string{"b": Cost}, 1, []string{"b"}},
		{"of equal ones, the first by name", []Pod{{"decode", "b", 5, 0, ""}, {"decode", "a", 7, 0, ""}}, nil, 1, []string{"a"}},
		{"several", []Pod{{"decode", "a", 5, 0, ""}, {"decode", "b", 0, 0, ""}, {"decode", "c", 90, 0, ""}}, nil, 2, []string{"b", "a"}},
		{"none", []Pod{{"decode", "a", 5, 0, ""}}, nil, 0, nil},
		{"the role has grown meanwhile", []Pod{{"decode", "a", 5, 0, ""}}, nil, -2, nil},
		{"no more than there are", []Pod{{"decode", "a", 5, 0, ""}}, nil, 3, []string{"a"}},
		{"none of another role", []Pod{{"prefill", "a", 0, 0, ""}, {"decode", "b", 5, 0, ""}}, nil, 1, []string{"b"}},
		{"none of another variant", []Pod{{"decode", "a", 0, 0, "h100"}, {"decode", "b", 5, 0, ""}}, nil, 1, []string{"b"}},
		{"none that a user has given a cost", []Pod{{"decode", "a", 0, 0, ""}, {"decode", "b", 5, 0, ""}}, map[string]string{"a": "7"}, 1, []string{"b"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := choose(test.pods, test.costs, &scale.Size{Role: "decode"}, test.many); !slices.Equal(got, test.want) {
				t.Errorf("chosen %v, want %v", got, test.want)
			}
		})
	}
}

// TestMarkerFollowsSizes: the pod to go is annotated once, keeps that while it is to go, and loses it when it is to stay.
func TestMarkerFollowsSizes(t *testing.T) {
	m, p := startMarker(slog.New(slog.DiscardHandler))
	p.sizes[0].Desired, p.sizes[0].Soon = 3, 3
	if got := p.look(t, m, 0); got != "" {
		t.Errorf("%s is written while the role has its size", got)
	}
	p.sizes[0].Soon = 2
	if got, want := p.look(t, m, scale.Interval), "b="+Cost; got != want {
		t.Errorf("%q is written before the size falls, want %q", got, want)
	}
	p.sizes[0].Desired = 2
	if got := p.look(t, m, scale.Interval); got != "" {
		t.Errorf("%s is written again", got)
	}
	p.err = errors.New("not known")
	p.sizes[0].Desired, p.sizes[0].Soon = 3, 3
	if got := p.look(t, m, 2*Pace); got != "" {
		t.Errorf("%s is written while sizes are not known", got)
	}
	p.err = nil
	if got, want := p.look(t, m, scale.Interval), "b="; got != want {
		t.Errorf("%q is written when the pod is to stay, want %q", got, want)
	}
}

// TestMarkerKeepsPace: a pod is written to once in a minute, by this picker or by another one.
func TestMarkerKeepsPace(t *testing.T) {
	m, p := startMarker(slog.New(slog.DiscardHandler))
	p.look(t, m, 0)
	p.pods[1].Requests, p.pods[2].Requests = 50, 1
	if got, want := p.look(t, m, scale.Interval), "c="+Cost; got != want {
		t.Errorf("%q is written 15 seconds later, want %q: b was written to just now", got, want)
	}
	if got, want := p.look(t, m, Pace-scale.Interval), "b="; got != want {
		t.Errorf("%q is written a minute later, want %q", got, want)
	}
	p.costs["b"] = Cost // by another picker
	if got := p.look(t, m, 2*Pace); got != "" {
		t.Errorf("%s is written just after another picker has written", got)
	}
	if got, want := p.look(t, m, Pace), "b="; got != want {
		t.Errorf("%q is written a minute later, want %q", got, want)
	}
}

// TestMarkersAgree: a second picker writes nothing that the first has written.
func TestMarkersAgree(t *testing.T) {
	m, p := startMarker(slog.New(slog.DiscardHandler))
	other, _ := startMarker(slog.New(slog.DiscardHandler))
	other.options.Sizes, other.options.Cluster, other.options.Pods = p, p, m.options.Pods
	p.look(t, m, 0)
	if got := p.look(t, other, time.Second); got != "" {
		t.Errorf("the second picker writes %s", got)
	}
}

// TestMarkerIsRefused: a refusal is logged with what to do, and tried again a minute later.
func TestMarkerIsRefused(t *testing.T) {
	var log strings.Builder
	m, p := startMarker(slog.New(slog.NewTextHandler(&log, nil)))
	p.refuse = errors.New("forbidden")
	p.look(t, m, 0)
	if text := log.String(); !strings.Contains(text, "right to patch pods") || !strings.Contains(text, "pod=b") {
		t.Errorf("logged %q", text)
	}
	if got := p.look(t, m, scale.Interval); got != "" {
		t.Errorf("%s is tried again at once", got)
	}
	if got, want := p.look(t, m, Pace), "b="+Cost; got != want {
		t.Errorf("%q is tried a minute later, want %q", got, want)
	}
}

// TestMarkerRuns: it looks at once and whenever sizes change, until its context ends.
func TestMarkerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, p := startMarker(slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); m.Run(ctx) }()
		synctest.Wait()
		if got, want := fmt.Sprint(p.writes), "[b="+Cost+"]"; got != want {
			t.Errorf("%s is written at the start, want %s", got, want)
		}
		p.sizes[0].Desired, p.sizes[0].Soon, p.now, p.writes = 3, 3, p.now.Add(2*Pace), nil
		changed := p.changed
		p.changed = make(chan struct{})
		close(changed)
		synctest.Wait()
		if got, want := fmt.Sprint(p.writes), "[b=]"; got != want {
			t.Errorf("%s is written after a change, want %s", got, want)
		}
		cancel()
		<-ended
	})
}
