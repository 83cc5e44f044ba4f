package autoscale

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/replay"
)

// TestMetric: the sizes are those that the documentation and the unit tests of Kubernetes' controller say.
func TestMetric(t *testing.T) {
	for _, test := range []struct {
		name    string
		current int
		metric  Metric
		want    int
	}{
		{"twice the target", 3, Metric{Target: 10, Sum: 60, Ready: 3}, 6},
		{"rounds up", 3, Metric{Target: 10, Sum: 41, Ready: 3}, 5},
		{"half the target", 4, Metric{Target: 10, Sum: 20, Ready: 4}, 2},
		{"within the tolerance", 10, Metric{Target: 10, Sum: 109, Ready: 10}, 10},
		{"just above the tolerance", 10, Metric{Target: 10, Sum: 111, Ready: 10}, 12},
		{"no load", 4, Metric{Target: 10, Sum: 0, Ready: 4}, 0},
		{"those that start have no load yet", 5, Metric{Target: 10, Sum: 40, Ready: 2}, 5},
		{"even with those that start it is too little", 5, Metric{Target: 10, Sum: 80, Ready: 2}, 8},
		{"what starts does not hold up a scale-down", 5, Metric{Target: 10, Sum: 10, Ready: 2}, 1},
		{"none is ready", 5, Metric{Target: 10}, 5},
		{"none is there", 0, Metric{Target: 10, Sum: 10}, 0},
		{"external", 3, Metric{Target: 1, Sum: 5, External: true}, 5},
		{"external, however many are ready", 5, Metric{Target: 1, Sum: 7, Ready: 2, External: true}, 7},
		{"external, within the tolerance", 10, Metric{Target: 1, Sum: 10.9, External: true}, 10},
	} {
		if got := test.metric.replicas(test.current, 0.1); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

// steps has an HPA follow wanted sizes, one every 15 seconds, and returns the sizes.
func steps(b Behavior, from int, wanted ...int) (sizes []int) {
	h := NewHPA(b)
	for i, w := range wanted {
		from = h.Size(time.Duration(i)*15*time.Second, from, Metric{Target: 1, Sum: float64(w), External: true})
		sizes = append(sizes, from)
	}
	return sizes
}

func repeated(v, n int) (all []int) {
	for range n {
		all = append(all, v)
	}
	return all
}

func TestBehavior(t *testing.T) {
	slow := Defaults()
	slow.Up = Rules{Pods: 1, Period: time.Minute}
	slow.Down = Rules{Percent: 50, Period: time.Minute}
	careful := Defaults()
	careful.Up.Window = time.Minute
	free := Behavior{}
	for _, test := range []struct {
		name   string
		b      Behavior
		from   int
		wanted []int
		want   []int
	}{
		{"up by 4 pods or twice as many at a time", Defaults(), 1, repeated(30, 4), []int{5, 10, 20, 30}},
		{"down after five minutes", Defaults(), 8, append([]int{8}, repeated(2, 21)...), append(repeated(8, 20), 2, 2)},
		{"down to the most of the window", Defaults(), 8, append([]int{8, 2, 2, 5}, repeated(2, 21)...), append(append(repeated(8, 20), repeated(5, 3)...), 2, 2)},
		{"one pod a minute", slow, 1, repeated(9, 9), []int{2, 2, 2, 2, 3, 3, 3, 3, 4}},
		{"half in a minute", slow, 16, repeated(1, 9), []int{8, 8, 8, 8, 4, 4, 4, 4, 2}},
		{"up after all of a minute wanted it", careful, 2, []int{2, 5, 4, 6, 6, 6}, []int{2, 2, 2, 2, 4, 4}},
		{"without bounds", free, 1, []int{50, 1}, []int{50, 1}},
	} {
		got := steps(test.b, test.from, test.wanted...)
		for i := range got {
			if got[i] != test.want[i] {
				t.Errorf("%s: %v, want %v", test.name, got, test.want)
				break
			}
		}
	}
}

func TestPolicies(t *testing.T) {
	idle := replay.Seen{Replicas: 2, Serving: 2, Running: 2, KVUsage: 0.2}
	busy := replay.Seen{Replicas: 2, Serving: 2, Running: 9, Waiting: 6, KVUsage: 1.6, Desired: 3}
	targets := Targets{Prefill: 1, Decode: 1}
	for _, test := range []struct {
		name            string
		begin           func() replay.Autoscaler
		prefill, decode replay.Seen
		want            [2]int
	}{
		{"queue", OnQueue(targets, Defaults()), idle, busy, [2]int{2, 6}}, // down only after the window
		{"KV usage", OnKVUsage(Targets{Prefill: 0.5, Decode: 0.4}, Defaults()), busy, busy, [2]int{4, 4}},
		{"replica-sizer", BySizer(Defaults()), replay.Seen{Replicas: 5, Serving: 5, Desired: 1}, busy, [2]int{1, 3}},
	} {
		by := test.begin()
		by.Sizes(0, replay.Seen{Replicas: test.prefill.Replicas, Serving: test.prefill.Serving, Waiting: test.prefill.Replicas, KVUsage: 1, Desired: test.prefill.Replicas}, test.decode)
		p, d := by.Sizes(15*time.Second, test.prefill, test.decode)
		if p != test.want[0] || d != test.want[1] {
			t.Errorf("%s: %d and %d, want %v", test.name, p, d, test.want)
		}
	}
}

// TestPlan: an engine is asked for so early that it serves when its interval begins, and leaves when its interval is over.
func TestPlan(t *testing.T) {
	p := Plan{Each: 10 * time.Minute, Prefill: []int{1, 4, 2}, Decode: []int{3, 1, 5}, PrefillReady: 2 * time.Minute, DecodeReady: 4 * time.Minute}
	for _, test := range []struct {
		at   time.Duration
		want [2]int
	}{{0, [2]int{1, 3}}, {7*time.Minute + 40*time.Second, [2]int{1, 3}}, {7*time.Minute + 45*time.Second, [2]int{4, 3}}, {10 * time.Minute, [2]int{4, 1}},
		{16 * time.Minute, [2]int{4, 5}}, {time.Hour, [2]int{2, 5}}} {
		if prefill, decode := p.Begin().Sizes(test.at, replay.Seen{}, replay.Seen{}); prefill != test.want[0] || decode != test.want[1] {
			t.Errorf("after %v: %d and %d, want %v", test.at, prefill, decode, test.want)
		}
	}
}
