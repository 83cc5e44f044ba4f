package pd_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// phaseList is every phase, the picker's last.
var phaseList = []pd.Phase{pd.PhaseRecv, pd.PhaseEncode, pd.PhasePrefill, pd.PhaseHandoff, pd.PhaseFirst, pd.PhaseDecode, pd.PhaseEPP}

func phasesOf(took map[pd.Phase]time.Duration) pd.Phases {
	var p pd.Phases
	for phase, d := range took {
		p.Set(phase, d)
	}
	return p
}

// begun is some moment; the monotonic clock has no zero that means anything.
var begun = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

func after(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }

func TestClock(t *testing.T) {
	type enter struct {
		phase pd.Phase
		at    int // ms
	}
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	cases := []struct {
		name   string
		enters []enter
		stop   int
		want   map[pd.Phase]time.Duration
	}{
		{"refused at once", nil, 0, map[pd.Phase]time.Duration{pd.PhaseRecv: 0}},
		{"remote", []enter{{pd.PhasePrefill, 1}, {pd.PhaseHandoff, 300}, {pd.PhaseFirst, 301}, {pd.PhaseDecode, 340}}, 1540,
			map[pd.Phase]time.Duration{pd.PhaseRecv: ms(1), pd.PhasePrefill: ms(299), pd.PhaseHandoff: ms(1), pd.PhaseFirst: ms(39), pd.PhaseDecode: ms(1200)}},
		{"local", []enter{{pd.PhaseFirst, 1}, {pd.PhaseDecode, 340}}, 1540,
			map[pd.Phase]time.Duration{pd.PhaseRecv: ms(1), pd.PhaseFirst: ms(339), pd.PhaseDecode: ms(1200)}},
		{"a second prefill attempt stays in its phase", []enter{{pd.PhasePrefill, 1}, {pd.PhasePrefill, 100}, {pd.PhaseHandoff, 200}}, 201,
			map[pd.Phase]time.Duration{pd.PhaseRecv: ms(1), pd.PhasePrefill: ms(199), pd.PhaseHandoff: ms(1)}},
		{"decode redone without the hand-off stays in first", []enter{{pd.PhasePrefill, 1}, {pd.PhaseHandoff, 2}, {pd.PhaseFirst, 3}, {pd.PhaseRecv, 50}, {pd.PhaseFirst, 60}, {pd.PhaseDecode, 70}}, 80,
			map[pd.Phase]time.Duration{pd.PhaseRecv: ms(1), pd.PhasePrefill: ms(1), pd.PhaseHandoff: ms(1), pd.PhaseFirst: ms(67), pd.PhaseDecode: ms(10)}},
		{"phases that take no time did happen", []enter{{pd.PhasePrefill, 0}, {pd.PhaseHandoff, 0}}, 0,
			map[pd.Phase]time.Duration{pd.PhaseRecv: 0, pd.PhasePrefill: 0, pd.PhaseHandoff: 0}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			clock := pd.StartPhaseClock(begun)
			for _, e := range c.enters {
				clock.Enter(e.phase, after(e.at))
			}
			got := clock.Stop(after(c.stop))
			if want := phasesOf(c.want); *got != want {
				t.Errorf("got %s, want %s", got.AppendTiming(nil, pd.PhaseEPP), want.AppendTiming(nil, pd.PhaseEPP))
			}
			if !clock.Start().Equal(begun) || got.Sum() != ms(c.stop) {
				t.Errorf("began %s, sum %s", clock.Start(), got.Sum())
			}
		})
	}
}

// Whatever is entered in whatever order, no time is lost and none is counted twice.
func TestClockSumsToTheTotal(t *testing.T) {
	r := seeded()
	for range rounds {
		clock := pd.StartPhaseClock(begun)
		now := begun
		for range r.IntN(12) {
			now = now.Add(time.Duration(r.Int64N(1e12)))
			before := clock.Phase()
			phase := oneOf(r, phaseList[:pd.PhaseCount])
			clock.Enter(phase, now)
			if clock.Phase() != max(before, phase) {
				t.Fatalf("entering %s from %s led to %s", phase, before, clock.Phase())
			}
			if clock.Phases().Sum() > now.Sub(begun) {
				t.Fatalf("after %s the closed phases sum to %s", now.Sub(begun), clock.Phases().Sum())
			}
		}
		now = now.Add(time.Duration(r.Int64N(1e12)))
		if sum := clock.Stop(now).Sum(); sum != now.Sub(begun) {
			t.Fatalf("phases sum to %s, the request took %s", sum, now.Sub(begun))
		}
	}
}

func TestStoppedClockStaysStopped(t *testing.T) {
	clock := pd.StartPhaseClock(begun)
	clock.Enter(pd.PhaseFirst, after(10))
	if _, stopped := clock.Stopped(); stopped {
		t.Error("stopped before Stop")
	}
	first := *clock.Stop(after(20))
	for _, phase := range phaseList {
		clock.Enter(phase, after(30))
	}
	if again := *clock.Stop(after(40)); again != first || *clock.Phases() != first {
		t.Errorf("first %+v, then %+v", first, again)
	}
	if at, stopped := clock.Stopped(); !stopped || !at.Equal(after(20)) {
		t.Errorf("stopped: %v, %v", stopped, at)
	}
}

// The picker's time lies before the sidecar's clock.
func TestEPPIsOutsideTheSum(t *testing.T) {
	clock := pd.StartPhaseClock(begun)
	clock.Phases().Set(pd.PhaseEPP, time.Hour)
	got := clock.Stop(after(20))
	if d, ok := got.Get(pd.PhaseEPP); !ok || d != time.Hour || got.Sum() != 20*time.Millisecond {
		t.Errorf("epp %s, %v; sum %s", d, ok, got.Sum())
	}
}

func TestAppendTiming(t *testing.T) {
	whole := map[pd.Phase]time.Duration{
		pd.PhaseEPP: 800 * time.Microsecond, pd.PhaseRecv: 300 * time.Microsecond, pd.PhasePrefill: 312_400 * time.Microsecond,
		pd.PhaseHandoff: 600 * time.Microsecond, pd.PhaseFirst: 41 * time.Millisecond, pd.PhaseDecode: 1203 * time.Millisecond,
	}
	cases := []struct {
		name string
		took map[pd.Phase]time.Duration
		end  pd.Phase
		want string
	}{
		{"all", whole, pd.PhaseEPP, "epp;dur=0.8, recv;dur=0.3, prefill;dur=312.4, handoff;dur=0.6, first;dur=41, decode;dur=1203"},
		{"headers of a remote stream", whole, pd.PhaseDecode, "epp;dur=0.8, recv;dur=0.3, prefill;dur=312.4, handoff;dur=0.6, first;dur=41"},
		{"headers of a local stream", whole, pd.PhasePrefill, "epp;dur=0.8, recv;dur=0.3"},
		{"none", nil, pd.PhaseEPP, ""},
		{"no picker", map[pd.Phase]time.Duration{pd.PhaseRecv: 0, pd.PhaseFirst: time.Second}, pd.PhaseEPP, "recv;dur=0, first;dur=1000"},
		{"nanoseconds are rounded", map[pd.Phase]time.Duration{pd.PhaseRecv: 1_499 * time.Nanosecond}, pd.PhaseEPP, "recv;dur=0.001"},
	}
	for _, c := range cases {
		p := phasesOf(c.took)
		if got := string(p.AppendTiming(nil, c.end)); got != c.want {
			t.Errorf("%s: got %s", c.name, got)
		}
	}
	p := phasesOf(whole)
	if got := string(p.AppendTiming([]byte("cdn;dur=3"), pd.PhasePrefill)); got != "cdn;dur=3, epp;dur=0.8, recv;dur=0.3" {
		t.Errorf("after another entry: %s", got)
	}
}

func TestParseTiming(t *testing.T) {
	recv := map[pd.Phase]time.Duration{pd.PhaseRecv: 1500 * time.Microsecond}
	cases := []struct {
		name, in string
		want     map[pd.Phase]time.Duration
	}{
		{"nothing", "", nil},
		{"one", "recv;dur=1.5", recv},
		{"without blanks", "recv;dur=1.5,first;dur=2", map[pd.Phase]time.Duration{pd.PhaseRecv: 1500 * time.Microsecond, pd.PhaseFirst: 2 * time.Millisecond}},
		{"blanks", "  recv; dur=1.5 ,  ", recv},
		{"in another order", "decode;dur=2, epp;dur=0", map[pd.Phase]time.Duration{pd.PhaseDecode: 2 * time.Millisecond, pd.PhaseEPP: 0}},
		{"foreign entries", `cdn-cache;desc=HIT, recv;dur=1.5, origin;dur=abc;desc="a, b", miss`, recv},
		{"names that begin alike", "recv2;dur=1, prefills;dur=x, recv;dur=1.5", recv},
		{"names are case-sensitive", "Recv;dur=x, recv;dur=1.5", recv},
		{"a stream of many hours", "decode;dur=43200000", map[pd.Phase]time.Duration{pd.PhaseDecode: 12 * time.Hour}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got, err := pd.ParseTiming(c.in); err != nil || got != phasesOf(c.want) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestParseTimingRefuses(t *testing.T) {
	for _, in := range []string{
		"recv", "recv;", "recv;dur", "recv;dur=", "recv;dur=x", "recv;dur=-1", "recv;dur=NaN", "recv;dur=1s", "recv;duration=1",
		"recv;dur=1;desc=a", "recv;desc=a;dur=1", "recv;dur=1, recv;dur=1", "first;dur=99999999999", "epp;dur=1e3", "epp",
	} {
		got, err := pd.ParseTiming(in)
		if err == nil || got != (pd.Phases{}) {
			t.Errorf("%q: got %+v, %v", in, got, err)
		} else if name, _, _ := strings.Cut(in, ";"); !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %q does not name the entry", in, err)
		}
	}
}

func TestTimingRoundTrip(t *testing.T) {
	r := seeded()
	for range rounds {
		var p pd.Phases
		for _, phase := range phaseList {
			if r.IntN(3) > 0 {
				p.Set(phase, time.Duration(r.Int64N(24*3600*1e6))*time.Microsecond)
			}
		}
		text := string(p.AppendTiming(nil, pd.PhaseEPP))
		if back, err := pd.ParseTiming(text); err != nil || back != p {
			t.Fatalf("%s comes back as %s, %v", text, back.AppendTiming(nil, pd.PhaseEPP), err)
		}
	}
}

func FuzzTiming(f *testing.F) {
	f.Add("epp;dur=0.8, recv;dur=0.3, prefill;dur=312.4, handoff;dur=0.6, first;dur=41.0, decode;dur=1203")
	f.Add(`cdn;desc="a, b", recv;dur=0x1p-3`)
	f.Fuzz(func(t *testing.T, in string) {
		p, err := pd.ParseTiming(in)
		if err != nil {
			return
		}
		text := string(p.AppendTiming(nil, pd.PhaseEPP))
		if back, err := pd.ParseTiming(text); err != nil || back != p {
			t.Fatalf("%q prints as %q, which is %+v, %v", in, text, back, err)
		}
	})
}

// Both legs of the second attempt began after 30 ms. Prefill answered after 80, decode after 100.
func TestOverlap(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	c := pd.StartPhaseClock(start)
	c.Enter(pd.PhasePrefill, at(10))
	c.Enter(pd.PhaseFirst, at(30))
	c.Overlap(50 * time.Millisecond)
	c.Enter(pd.PhaseDecode, at(100))
	phases := c.Stop(at(150))
	const want = "recv;dur=10, prefill;dur=70, first;dur=70, decode;dur=50, overlap;dur=50"
	got := string(phases.AppendTiming(nil, pd.PhaseEPP))
	if got != want || phases.Sum() != 150*time.Millisecond {
		t.Errorf("%s, in all %v", got, phases.Sum())
	}
	read, err := pd.ParseTiming(got)
	if err != nil || read != *phases {
		t.Errorf("read as %+v, %v", read, err)
	}
	if got := string(phases.AppendTiming(nil, pd.PhaseDecode)); got != "recv;dur=10, prefill;dur=70, first;dur=70" {
		t.Errorf("up to decode: %s", got)
	}
}
