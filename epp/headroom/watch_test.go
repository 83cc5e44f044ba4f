package headroom

import (
	"maps"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// handClock shows the time that the test sets.
type handClock struct {
	epp.Clock
	now time.Time
}

func (c *handClock) Now() time.Time { return c.now }

// rig is a Watch with its clock.
type rig struct {
	*Watch
	clock *handClock
}

func newRig(cfg Config) rig {
	clock := &handClock{now: time.Unix(1_000_000, 0)}
	return rig{New(cfg, new(State), clock), clock}
}

// usual are the parameters that most cases have.
var usual = Config{TTFT: time.Second, Share: 0.99, Window: 16 * time.Second}

// header is that of a request.
type header map[string]string

func (h header) Get(name string) string { return h[name] }

// pick returns the decision for a request.
func (r rig) pick(priority int, h header) *epp.Decision {
	d := &epp.Decision{Origin: epp.Origin{Priority: priority}}
	r.Picked(&epp.Round{Request: &epp.Request{Priority: priority, Headers: h}}, nil, d)
	return d
}

// answer ends a request whose first token took some time, and each further one of ten.
func (r rig) answer(d *epp.Decision, first, further time.Duration) {
	var p pd.Phases
	p.Set(pd.PhaseFirst, first)
	p.Set(pd.PhaseDecode, 10*further)
	r.Observe(&epp.Outcome{Decision: d, Phases: &p, Result: &pd.AnswerSummary{End: pd.EndDone, Completion: 11}})
}

// want fails unless the headroom is about a value.
func (r rig) want(t *testing.T, value float64) {
	t.Helper()
	if got, ok := r.Headroom(); !ok || math.Abs(got-value) > 0.04 {
		t.Errorf("the headroom is %.3f, %v; want %.3f", got, ok, value)
	}
}

// tell returns the header that the client of a request gets.
func (r rig) tell(d *epp.Decision) (value string) {
	r.Stamp(&epp.Answer{Decision: d}, func(name, v string) {
		if name == pd.HeaderHeadroom {
			value = v
		}
	})
	return value
}

// TestHeadroom: it is that of the request than which the share of the configuration may take longer, by the goals of each request.
func TestHeadroom(t *testing.T) {
	for _, tc := range []struct {
		name          string
		cfg           Config
		header        header
		first, other  time.Duration // of 1 in 10 requests, and of the others
		further       time.Duration
		want          float64
		wantsNoWindow bool
	}{
		{name: "far below the goal", cfg: usual, first: 200 * time.Millisecond, other: 100 * time.Millisecond, want: 0.8},
		{name: "missed by 1 in 10", cfg: usual, first: 1500 * time.Millisecond, other: 100 * time.Millisecond, want: -0.5},
		{name: "of which there may be more", cfg: Config{TTFT: time.Second, Share: 0.8, Window: time.Minute}, first: 1500 * time.Millisecond, other: 100 * time.Millisecond, want: 0.9},
		{name: "the client's own goal", cfg: usual, header: header{epp.HeaderTTFT: "250"}, first: 200 * time.Millisecond, other: 200 * time.Millisecond, want: 0.2},
		{name: "further tokens are slower", cfg: Config{TTFT: time.Second, TPOT: 50 * time.Millisecond, Share: 0.99, Window: time.Minute},
			first: 200 * time.Millisecond, other: 200 * time.Millisecond, further: 45 * time.Millisecond, want: 0.1},
		{name: "no goal", cfg: Config{Share: 0.99, Window: time.Minute}, first: time.Second, other: time.Second, wantsNoWindow: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(tc.cfg)
			for i := range 100 {
				took := tc.other
				if i%10 == 0 {
					took = tc.first
				}
				r.answer(r.pick(0, tc.header), took, tc.further)
			}
			if tc.wantsNoWindow {
				if got, ok := r.Headroom(); ok {
					t.Errorf("the headroom is %v although no request has a goal", got)
				}
				return
			}
			r.want(t, tc.want)
		})
	}
}

// Only online requests count, each once; only the others are told.
func TestWhoCountsAndWhoIsTold(t *testing.T) {
	r := newRig(usual)
	batch := r.pick(-10, nil)
	r.answer(batch, time.Hour, 0)
	if got := r.tell(batch); got != "" {
		t.Errorf("told %q although no online request has ended", got)
	}
	online := r.pick(0, nil)
	r.Stamp(&epp.Answer{Decision: online, TTFT: 250 * time.Millisecond}, func(name, value string) { t.Errorf("an online client is told %s: %s", name, value) })
	r.want(t, 0.75) // the answer has begun, and need not have ended
	r.answer(online, 900*time.Millisecond, 0)
	r.want(t, 0.75)
	if got := r.tell(batch); got != "0.75" && got != "0.74" {
		t.Errorf("told %q", got)
	}
	r.Observe(&epp.Outcome{Decision: r.pick(0, nil)})
	r.Observe(&epp.Outcome{})
	r.want(t, 0.75)
}

// What is older than the window does not count, and there is no headroom without requests.
func TestWindow(t *testing.T) {
	r := newRig(usual)
	r.answer(r.pick(0, nil), 2*time.Second, 0)
	r.clock.now = r.clock.now.Add(8 * time.Second)
	r.answer(r.pick(0, nil), 500*time.Millisecond, 0)
	r.want(t, -1)
	r.clock.now = r.clock.now.Add(10 * time.Second)
	r.want(t, 0.5)
	r.clock.now = r.clock.now.Add(24 * time.Hour)
	if got, ok := r.Headroom(); ok {
		t.Errorf("the headroom is %v a day later", got)
	}
	r.answer(r.pick(0, nil), 900*time.Millisecond, 0)
	r.clock.now = r.clock.now.Add(-time.Hour) // the clock is set back
	r.answer(r.pick(0, nil), 700*time.Millisecond, 0)
	r.want(t, 0.3)
}

// A state outlives a reload of the configuration, unless the window has another width.
func TestReload(t *testing.T) {
	r := newRig(usual)
	r.answer(r.pick(0, nil), 900*time.Millisecond, 0)
	rig{New(usual, r.state, r.clock), r.clock}.want(t, 0.1)
	wider := usual
	wider.Window *= 2
	if got, ok := New(wider, r.state, r.clock).Headroom(); ok {
		t.Errorf("the headroom is %v in a window of another width", got)
	}
}

func TestMetrics(t *testing.T) {
	r := newRig(usual)
	for _, took := range []time.Duration{time.Second, 2 * time.Second, time.Second} {
		r.answer(r.pick(0, nil), took, 0)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + math.Round(m.GetGauge().GetValue())
		}
	}
	want := map[string]float64{"tandem_slo_headroom ttft": -1, "tandem_slo_goals_total ttft kept": 2, "tandem_slo_goals_total ttft missed": 1,
		"tandem_slo_goals_total tpot kept": 0, "tandem_slo_goals_total tpot missed": 0}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func BenchmarkAnswer(b *testing.B) {
	r := newRig(usual)
	d := r.pick(-1, nil)
	r.answer(r.pick(0, nil), time.Second, 0)
	b.ReportAllocs()
	for b.Loop() {
		r.tell(d)
	}
}

func BenchmarkPick(b *testing.B) {
	r := newRig(usual)
	round, d := &epp.Round{Request: &epp.Request{Headers: header{}}}, &epp.Decision{}
	b.ReportAllocs()
	for b.Loop() {
		r.Picked(round, nil, d)
	}
}
