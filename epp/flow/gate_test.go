package flow_test

import (
	"fmt"
	"math"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// fixed is a pool that changes only when a test changes it.
type fixed struct{ snapshot *epp.Snapshot }

func (p *fixed) Snapshot() *epp.Snapshot { return p.snapshot }

// newFixed makes a pool of endpoints with these roles. Each has so many requests in flight.
func newFixed(inFlight int, roles ...string) *fixed {
	s := &epp.Snapshot{}
	for i, role := range roles {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000)
		e := epp.NewEndpoint("default", fmt.Sprint(role, i), addr, "", map[string]string{pd.RoleLabel: role})
		e.Slot = i
		epp.ReserveAnyway(epp.Claim{Endpoint: e, Add: epp.InFlight{Requests: inFlight}})
		s.Endpoints, s.Loads = append(s.Endpoints, e), append(s.Loads, epp.Load{At: time.Now()})
	}
	return &fixed{s}
}

// prefill returns a stage that every request may need.
func prefill() epp.StageRow {
	row := epp.PrefillRow("prefill", 1)
	row.Decider.Decider = always{}
	return row
}

func (p *fixed) gate(d epp.Detector) *flow.PoolGate {
	return flow.NewPoolGate(flow.GateOptions{Pool: p, Detector: d, Clock: epp.SystemClock, Stale: time.Hour,
		Stages: epp.Stages{epp.DecodeRow("decode"), prefill()}})
}

// perEndpoint is a detector: the mean of requests in flight, of so many that each endpoint may have.
type perEndpoint struct {
	most  float64
	asked *int
}

func (perEndpoint) Filter(_ *epp.Round, c []epp.Candidate) []epp.Candidate { return c }

func (d perEndpoint) Saturation(_ time.Time, c []epp.Candidate) float64 {
	*d.asked++
	sum := 0.0
	for i := range c {
		sum += float64(c[i].InFlight.Requests)/d.most + float64(c[i].InFlight.Tokens)/1000
	}
	return sum / float64(len(c))
}

func TestPoolGate(t *testing.T) {
	for _, tc := range []struct {
		name      string
		pool      *fixed
		pending   epp.InFlight
		unreached []int
		decode    float64
		prefill   float64
	}{
		{"idle", newFixed(0, "decode", "prefill"), epp.InFlight{}, nil, 0, 0},
		{"half", newFixed(5, "decode", "decode", "prefill"), epp.InFlight{}, nil, 0.5, 0.5},
		{"pending requests count", newFixed(5, "decode", "decode", "prefill"), epp.InFlight{Requests: 3}, nil, 0.65, 0.8},
		{"pending tokens count", newFixed(5, "decode", "decode", "prefill"), epp.InFlight{Tokens: 100}, nil, 0.55, 0.6},
		{"a negative rest counts as none", newFixed(5, "decode", "prefill"), epp.InFlight{Requests: -1}, nil, 0.5, 0.5},
		{"one pool", newFixed(5, "prefill-decode", "prefill-decode"), epp.InFlight{}, nil, 0.5, 0.5},
		{"unreachable is no capacity", newFixed(5, "decode", "decode", "prefill"), epp.InFlight{Requests: 1}, []int{1}, 0.6, 0.6},
		{"all are unreachable", newFixed(5, "decode", "prefill"), epp.InFlight{}, []int{0, 1}, 0.5, 0.5},
		{"no endpoints", newFixed(5), epp.InFlight{}, nil, 1, 0},
		{"no prefill", newFixed(5, "decode"), epp.InFlight{}, nil, 0.5, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, i := range tc.unreached {
				tc.pool.snapshot.Loads[i].Unreachable = true
			}
			g := tc.pool.gate(perEndpoint{10, new(int)})
			decode, prefill := g.Saturation(false, 0, tc.pending, 0), g.Saturation(true, 0, tc.pending, 0)
			if math.Abs(decode-tc.decode) > 1e-9 || math.Abs(prefill-tc.prefill) > 1e-9 {
				t.Errorf("decode %v and prefill %v, want %v and %v", decode, prefill, tc.decode, tc.prefill)
			}
			if empty := len(tc.pool.snapshot.Endpoints) == 0; g.Empty() != empty {
				t.Errorf("empty: %v", g.Empty())
			}
		})
	}
}

// always rules that every prompt is computed remotely.
type always struct{}

func (always) Decide(*epp.Alternatives) epp.Ruling {
	return epp.Ruling{Verdict: pd.Remote, Reason: pd.Always}
}

// fromLength rules so from a length on.
type fromLength struct {
	always
	tokens int
}

func (d fromLength) RemoteFrom() int { return d.tokens }

// TestSplits holds which requests wait for capacity of prefill: those that the decider may split, as far as is known before the pick.
func TestSplits(t *testing.T) {
	for _, tc := range []struct {
		name    string
		decider epp.Decider
		fit     request.Fit
		mode    pd.Mode
		tokens  int
		want    bool
	}{
		{"always", always{}, request.FitSplit, pd.ModeAuto, 1, true},
		{"bypassed", always{}, request.FitSplit, pd.ModeBypass, 1, false},
		{"not splittable", always{}, request.FitLocal, pd.ModeAuto, 1, false},
		{"long enough", fromLength{tokens: 100}, request.FitSplit, pd.ModeAuto, 100, true},
		{"too short", fromLength{tokens: 100}, request.FitSplit, pd.ModeAuto, 99, false},
		{"too short, forced", fromLength{tokens: 100}, request.FitSplit, pd.ModeForce, 99, true},
		{"too short, forced with fallback", fromLength{tokens: 100}, request.FitSplit, pd.ModeForceFallback, 99, true},
		{"without a decider", nil, request.FitSplit, pd.ModeAuto, 1e6, false},
		{"without a decider, forced", nil, request.FitSplit, pd.ModeForce, 1, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &epp.Request{Fit: tc.fit, Mode: tc.mode, Prompt: epp.Prompt{Tokens: tc.tokens}}
			row := epp.PrefillRow("prefill", 1)
			row.Decider.Decider = tc.decider
			both := flow.NewPoolGate(flow.GateOptions{Stages: epp.Stages{epp.DecodeRow("decode"), row}})
			if got := both.Splits(r); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
			if alone := flow.NewPoolGate(flow.GateOptions{Stages: epp.Stages{epp.DecodeRow("decode")}}); alone.Splits(r) {
				t.Error("split without a stage for it")
			}
		})
	}
}

// TestShortPromptsDoNotWaitForPrefill: a full prefill pool stops only what may be computed there.
func TestShortPromptsDoNotWaitForPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixed(0, "decode", "prefill")
		epp.ReserveAnyway(epp.Claim{Endpoint: p.snapshot.Endpoints[1], Add: epp.InFlight{Requests: 1}})
		row := epp.PrefillRow("prefill", 1)
		row.Decider.Decider = fromLength{tokens: 10}
		c := flow.New(flow.Settings{TTL: ttl}, flow.NewPoolGate(flow.GateOptions{Pool: p, Detector: perEndpoint{1, new(int)}, Clock: epp.SystemClock,
			Stale: time.Hour, Stages: epp.Stages{epp.DecodeRow("decode"), row}}), flow.Options{Clock: epp.SystemClock})
		for _, tc := range []struct {
			tokens int
			waits  time.Duration
		}{{9, 0}, {10, ttl}} {
			r, began := local("", 0, "a"), time.Now()
			r.Fit, r.Prompt.Tokens = request.FitSplit, tc.tokens
			pass, err := c.Admit(t.Context(), r)
			if waited := time.Since(began); waited != tc.waits || (err != nil) != (tc.waits > 0) {
				t.Errorf("a prompt of %d tokens: %v after %v", tc.tokens, err, waited)
			}
			c.Settled(r, pass)
		}
	})
}

// steps is a perEndpoint that knows what a request adds.
type steps struct{ perEndpoint }

func (d steps) Step(c []epp.Candidate) float64 { return 1 / d.most / float64(len(c)) }

// TestSmallStepsAreTrusted: a reading of two endpoints, each of which takes a hundred requests, serves until they might be half full.
func TestSmallStepsAreTrusted(t *testing.T) {
	asked := 0
	g := newFixed(0, "decode", "decode").gate(steps{perEndpoint{100, &asked}})
	for i := range int64(100) { // the first is measured
		if got := g.Saturation(false, 1+i, epp.InFlight{}, 0.5); got >= 0.5 {
			t.Fatalf("%v", got)
		}
	}
	if asked != 1 {
		t.Errorf("the detector was asked %d times", asked)
	}
	if g.Saturation(false, 101, epp.InFlight{}, 0.5); asked != 2 {
		t.Errorf("the detector was asked %d times, want 2: the endpoints might be half full", asked)
	}
}

// TestReadingsAreReused: while the pool has much capacity left, not every request makes the gate look at all endpoints. It never
// finds less load than there is.
func TestReadingsAreReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		roles := make([]string, 100)
		for i := range roles {
			roles[i] = "decode"
		}
		p, asked := newFixed(0, roles...), 0
		g := p.gate(perEndpoint{1, &asked}) // the worst case: a request fills an endpoint
		for i := range 100 {
			if got, truth := g.Saturation(false, int64(i+1), epp.InFlight{}, 1), float64(i)/100; got < truth-1e-9 || got >= 1 {
				t.Fatalf("%v after %d requests", got, i)
			}
			epp.ReserveAnyway(epp.Claim{Endpoint: p.snapshot.Endpoints[i], Add: epp.InFlight{Requests: 1}})
		}
		if asked > 10 {
			t.Errorf("the detector was asked %d times", asked)
		}
		for _, e := range p.snapshot.Endpoints[:50] {
			epp.ReserveAnyway(epp.Claim{Endpoint: e, Add: epp.InFlight{Requests: 1}})
		}
		for _, below := range []float64{0, 0.5, 1.5} { // what is not certainly below is measured
			if got := g.Saturation(false, 101, epp.InFlight{}, below); got != 1.5 {
				t.Errorf("%v, want 1.5, which is not below %v", got, below)
			}
		}
		for _, change := range []func(){
			func() { <-time.After(time.Second) },
			func() { next := *p.snapshot; p.snapshot = &next },
		} {
			p, asked = newFixed(0, roles...), 0
			g = p.gate(perEndpoint{1, &asked})
			g.Saturation(false, 1, epp.InFlight{}, 1)
			g.Saturation(false, 2, epp.InFlight{}, 1)
			change()
			if g.Saturation(false, 3, epp.InFlight{}, 1); asked != 2 {
				t.Errorf("the detector was asked %d times, want 2: a reading does not outlive a change", asked)
			}
		}
	})
}

// slow is a steps whose first measurement takes until release is closed.
type slow struct {
	steps
	began, release chan struct{}
	next           *atomic.Bool // the first one has begun
}

func (d slow) Saturation(now time.Time, c []epp.Candidate) float64 {
	saturation := d.steps.Saturation(now, c)
	if !d.next.Swap(true) {
		close(d.began)
		<-d.release
	}
	return saturation
}

// TestLateReading: a request that has measured an empty pool, and was held up until others had filled it, does not have more pass.
func TestLateReading(t *testing.T) {
	const most = 20
	asked := 0
	d := slow{steps{perEndpoint{most, &asked}}, make(chan struct{}), make(chan struct{}), new(atomic.Bool)}
	p := newFixed(0, "decode")
	g := p.gate(d)
	late := make(chan float64)
	go func() { late <- g.Saturation(false, 1, epp.InFlight{}, 1) }()
	<-d.began
	passed := 0
	for i := range int64(2 * most) {
		if g.Saturation(false, 2+i, epp.InFlight{}, 1) < 1 {
			epp.ReserveAnyway(epp.Claim{Endpoint: p.snapshot.Endpoints[0], Add: epp.InFlight{Requests: 1}})
			passed++
		}
	}
	close(d.release)
	if got := <-late; got != 0 || passed != most {
		t.Fatalf("the late request measured %v, and %d requests passed, want 0 and %d", got, passed, most)
	}
	if got := g.Saturation(false, 2+2*most, epp.InFlight{}, 1); got < 1 {
		t.Errorf("the saturation is %v after %d requests of %d", got, passed, most)
	}
}

// TestRequestsThatMeasureCount: a request that measures while another one does is not in that one's reading, and yet counts for those that use it.
func TestRequestsThatMeasureCount(t *testing.T) {
	asked := 0
	g := newFixed(0, "decode").gate(steps{perEndpoint{2, &asked}})
	if got := g.Saturation(false, 1, epp.InFlight{}, 1); got != 0 {
		t.Fatalf("the first request finds %v", got)
	}
	// The second one still measures what it had begun to measure before the first one had ended.
	if got := g.Saturation(false, 3, epp.InFlight{Requests: 2}, 1); got < 1 {
		t.Errorf("the third request of two finds %v", got)
	}
}

// TestSumsAreRounded: four endpoints that take five requests each have eighteen, and two more pass by the same reading. The sum of that is a
// little less than 1.
func TestSumsAreRounded(t *testing.T) {
	asked := 0
	g := newFixed(0, "decode", "decode", "decode", "decode").gate(steps{perEndpoint{5, &asked}})
	g.Saturation(false, 1, epp.InFlight{Requests: 18}, 1)
	if got := g.Saturation(false, 3, epp.InFlight{Requests: 20}, 1); got < 1 {
		t.Errorf("a request of more than twenty finds %v", got)
	}
}
