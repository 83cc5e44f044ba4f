package flow_test

import (
	"fmt"
	"math"
	"net/netip"
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

func (p *fixed) gate(d epp.Detector) *flow.PoolGate {
	return flow.NewPoolGate(flow.GateOptions{Pool: p, Detector: d, Clock: epp.SystemClock, Stale: time.Hour,
		Stages: epp.Stages{epp.DecodeRow("decode"), epp.PrefillRow("prefill", 1)}})
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
			decode, prefill := g.Saturation(false, tc.pending), g.Saturation(true, tc.pending)
			if math.Abs(decode-tc.decode) > 1e-9 || math.Abs(prefill-tc.prefill) > 1e-9 {
				t.Errorf("decode %v and prefill %v, want %v and %v", decode, prefill, tc.decode, tc.prefill)
			}
			if empty := len(tc.pool.snapshot.Endpoints) == 0; g.Empty() != empty {
				t.Errorf("empty: %v", g.Empty())
			}
		})
	}
}

func TestSplits(t *testing.T) {
	g := newFixed(0, "decode").gate(perEndpoint{1, new(int)})
	alone := flow.NewPoolGate(flow.GateOptions{Pool: newFixed(0, "decode"), Stages: epp.Stages{epp.DecodeRow("decode")}, Clock: epp.SystemClock})
	for _, tc := range []struct {
		fit  request.Fit
		mode pd.Mode
		want bool
	}{
		{request.FitSplit, pd.ModeAuto, true}, {request.FitSplit, pd.ModeForce, true},
		{request.FitSplit, pd.ModeBypass, false}, {request.FitLocal, pd.ModeAuto, false},
	} {
		r := &epp.Request{Fit: tc.fit, Mode: tc.mode}
		if got := g.Splits(r); got != tc.want {
			t.Errorf("%v, %v: %v", tc.fit, tc.mode, got)
		}
		if alone.Splits(r) {
			t.Errorf("%v, %v: split without a stage for it", tc.fit, tc.mode)
		}
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
			if got, truth := g.Saturation(false, epp.InFlight{}), float64(i)/100; got < truth-1e-9 {
				t.Fatalf("%v after %d requests", got, i)
			}
			epp.ReserveAnyway(epp.Claim{Endpoint: p.snapshot.Endpoints[i], Add: epp.InFlight{Requests: 1}})
		}
		if asked > 60 {
			t.Errorf("the detector was asked %d times", asked)
		}
		for _, change := range []func(){
			func() { <-time.After(time.Second) },
			func() { next := *p.snapshot; p.snapshot = &next },
		} {
			p, asked = newFixed(0, roles...), 0
			g = p.gate(perEndpoint{1, &asked})
			g.Saturation(false, epp.InFlight{})
			g.Saturation(false, epp.InFlight{})
			change()
			if g.Saturation(false, epp.InFlight{}); asked != 2 {
				t.Errorf("the detector was asked %d times, want 2: a reading does not outlive a change", asked)
			}
		}
	})
}
