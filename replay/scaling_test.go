package replay

import (
	"strings"
	"testing"
	"time"
)

// stepwise is an autoscaler that wants sizes from given times on.
type stepwise struct {
	from    []time.Duration
	prefill []int
	decode  []int
	saw     []Seen // of decode, each time
}

func (s *stepwise) Sizes(now time.Duration, _, decode Seen) (p, d int) {
	s.saw = append(s.saw, decode)
	for i, from := range s.from {
		if now >= from {
			p, d = s.prefill[i], s.decode[i]
		}
	}
	return p, d
}

// even are requests that come evenly.
func even(n int, each time.Duration, input, output int) *Trace {
	t := &Trace{}
	for i := range n {
		t.Requests = append(t.Requests, Request{Due: time.Duration(i) * each, Input: input, Output: output})
	}
	return t
}

func scaling(by Autoscaler, ready time.Duration) *Scaling {
	role := ScaledRole{Min: 1, Max: 8, Ready: ready}
	return &Scaling{Begin: func() Autoscaler { return by }, Prefill: role, Decode: role}
}

// TestEnginesComeAndGo: an engine gets its first request only when it is ready, one that leaves gets none any more and ends those that it
// has, and nothing is lost.
func TestEnginesComeAndGo(t *testing.T) {
	for _, fit := range []struct {
		pool, role string
		threshold  int
	}{{"1P+1D", "decode", 1}, {"1P+1D", "decode", 1_000_000}, {"1B", "both", 1}} {
		o := options(t, fit.threshold, fit.pool)
		by := &stepwise{from: []time.Duration{0, time.Minute, 5 * time.Minute}, prefill: []int{1, 2, 1}, decode: []int{1, 3, 1}}
		const ready = 100 * time.Second
		o.Scaling = scaling(by, ready)
		if o.Pool.Both > 0 {
			o.Scaling.Prefill.Min, by.prefill = 0, []int{0, 0, 0}
		}
		result := replayed(t, o, even(1200, 500*time.Millisecond, 2000, 400))
		first, last := map[string]time.Duration{}, map[string]time.Duration{}
		for i := range result.Records {
			r := &result.Records[i]
			if r.Refused || r.E2E == 0 {
				t.Fatalf("%s: request %d: %+v", fit.pool, i, r)
			}
			for _, name := range []string{r.Prefill, r.Decode} {
				if _, ok := first[name]; !ok {
					first[name] = r.Due
				}
				last[name] = r.Due
			}
		}
		for name, at := range first {
			if at > 0 && !strings.HasSuffix(name, "-0") && (at < time.Minute+ready || at > 2*time.Minute+ready) {
				t.Errorf("%s: %s got its first request after %v, want soon after %v", fit.pool, name, at, time.Minute+ready)
			}
		}
		if first[fit.role+"-2"] == 0 {
			t.Errorf("%s: of the three engines that were wanted, not all got requests: %v", fit.pool, first)
		}
		after := 0
		for name, at := range last {
			if strings.HasPrefix(name, fit.role) && at > 5*time.Minute+ScaleEvery {
				after++
			}
		}
		if after != 1 {
			t.Errorf("%s: %d engines of %s got requests after one was wanted: %v", fit.pool, after, fit.role, last)
		}
	}
}

// TestEnginesThatLeaveEndTheirRequests: an engine is paid for from the decision for it until the last of its answers has ended.
func TestEnginesThatLeaveEndTheirRequests(t *testing.T) {
	o := options(t, 1_000_000, "2B")
	by := &stepwise{from: []time.Duration{0}, prefill: []int{0}, decode: []int{1}}
	o.Scaling = scaling(by, time.Minute)
	o.Scaling.Prefill.Min = 0
	trace := even(2, time.Millisecond, 100, 4000) // one for each engine, longer than the first interval
	trace.Requests = append(trace.Requests, Request{Due: 3 * time.Minute, Input: 100, Output: 10})
	result := replayed(t, o, trace)
	leaves := result.Records[0].Due + result.Records[0].E2E
	if leaves < 2*ScaleEvery {
		t.Fatalf("the answers end after %v: too early for the test", leaves)
	}
	want := leaves + result.End // of both engines
	if got := result.engineTime; got < want || got > want+2*drainEvery {
		t.Errorf("engines were there for %v, want %v", got, want)
	}
	if got, want := result.Summary(SLO{}).GPUSeconds, result.engineTime.Seconds()*4; got != want {
		t.Errorf("%v GPU seconds, want %v", got, want)
	}
}

// TestStartingEngines: what starts is seen and paid for, but does not serve, and goes first.
func TestStartingEngines(t *testing.T) {
	o := options(t, 1_000_000, "1B")
	by := &stepwise{from: []time.Duration{0, 15 * time.Second, 45 * time.Second}, prefill: make([]int, 3), decode: []int{1, 4, 1}}
	o.Scaling = scaling(by, 5*time.Minute)
	o.Scaling.Prefill.Min = 0
	result := replayed(t, o, even(100, time.Second, 100, 10))
	if saw := by.saw[1]; saw.Replicas != 4 || saw.Serving != 1 {
		t.Errorf("%+v, want one of four to serve", saw)
	}
	if saw := by.saw[len(by.saw)-1]; saw.Replicas != 1 || saw.Serving != 1 {
		t.Errorf("%+v in the end, want one", saw)
	}
	if got, want := result.engineTime-result.End, 3*30*time.Second; got != want {
		t.Errorf("engines that started were there for %v, want %v", got, want)
	}
	for i := range result.Records {
		if name := result.Records[i].Decode; name != "both-0" {
			t.Errorf("request %d went to %s, which never served", i, name)
		}
	}
}

// TestSlotsAreUsedAgain: over many changes the pool has no more slots than engines at a time, and a new engine is none that has left.
func TestSlotsAreUsedAgain(t *testing.T) {
	o := options(t, 1, "1P+1D")
	by := &stepwise{}
	for i := range 10 {
		by.from = append(by.from, time.Duration(i)*2*time.Minute)
		by.prefill, by.decode = append(by.prefill, 1+i%2), append(by.decode, 1+2*(i%2))
	}
	o.Scaling = scaling(by, 30*time.Second)
	trace := even(2400, 500*time.Millisecond, 1000, 50)
	w := newWorld(&o, trace)
	if len(w.nodes) != 2 {
		t.Fatalf("%d engines", len(w.nodes))
	}
	result := replayed(t, o, trace)
	names := map[string]bool{}
	for i := range result.Records {
		if r := &result.Records[i]; r.Refused || r.E2E == 0 {
			t.Fatalf("request %d: %+v", i, r)
		}
		names[result.Records[i].Decode] = true
	}
	if len(names) < 9 {
		t.Errorf("%d names of decode engines: %v, want a new one each time", len(names), names)
	}
}

func TestReversals(t *testing.T) {
	minute := func(m int, role string, size int) Resize { return Resize{time.Duration(m) * time.Minute, role, size} }
	for name, test := range map[string]struct {
		sizes []Resize
		want  int
	}{
		"none":                    {nil, 0},
		"only up":                 {[]Resize{minute(0, "decode", 1), minute(1, "decode", 2), minute(2, "decode", 5)}, 0},
		"up and down":             {[]Resize{minute(0, "decode", 1), minute(1, "decode", 2), minute(2, "decode", 1)}, 1},
		"up, down, up":            {[]Resize{minute(0, "decode", 1), minute(1, "decode", 2), minute(2, "decode", 1), minute(11, "decode", 2)}, 2},
		"up, down, and up later":  {[]Resize{minute(0, "decode", 1), minute(1, "decode", 2), minute(2, "decode", 1), minute(12, "decode", 2)}, 1},
		"two roles are separate":  {[]Resize{minute(0, "decode", 1), minute(0, "prefill", 3), minute(1, "decode", 2), minute(2, "prefill", 1)}, 0},
		"limits change no size":   {[]Resize{minute(0, "decode", 3), minute(1, "decode", 3), minute(2, "decode", 4)}, 0},
		"down, up twice, is once": {[]Resize{minute(0, "decode", 3), minute(1, "decode", 2), minute(2, "decode", 4), minute(3, "decode", 5)}, 1},
	} {
		if got := reversals(test.sizes, 10*time.Minute); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestPoolsThatCannotScale(t *testing.T) {
	for name, test := range map[string]struct {
		change func(o *Options)
		want   string
	}{
		"two pickers":     {func(o *Options) { o.Replicas = 2 }, "one picker"},
		"two kinds":       {func(o *Options) { o.Pool.Both = 1 }, "two kinds of engines"},
		"no decode":       {func(o *Options) { o.Scaling.Decode.Min = 0 }, "decode cannot scale from 0"},
		"begins too high": {func(o *Options) { o.Scaling.Prefill.Max = 1; o.Pool.Prefill = 2 }, "begins with 2"},
		"ready at once":   {func(o *Options) { o.Scaling.Decode.Ready = 0 }, "cannot serve 0s after"},
	} {
		o := options(t, 1, "1P+1D")
		o.Scaling = scaling(&stepwise{}, time.Minute)
		test.change(&o)
		if err := o.Check(even(1, time.Second, 10, 10)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
