package shadow

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handClock is a clock that a test moves.
type handClock struct {
	epp.Clock
	now time.Time
}

func (c *handClock) Now() time.Time { return c.now }

func endpoint(slot int, role string) *epp.Endpoint {
	e := epp.NewEndpoint("default", fmt.Sprintf("%s-%d", role, slot), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(slot)}), 8000), "",
		map[string]string{pd.RoleLabel: role})
	e.Slot = slot
	return e
}

// decision is one about a prompt, with so many tokens of others before it.
func decision(tokens, ahead int, decode, prefill *epp.Endpoint) *epp.Decision {
	row, split := epp.DecodeRow("decode"), epp.PrefillRow("prefill", 1)
	seen := func(ahead int) *epp.Seen {
		s := &epp.Seen{InFlight: epp.InFlight{Tokens: ahead}, Load: epp.Load{At: time.Unix(1, 0)}}
		s.Load.Signals.Set(epp.Running, 4)
		return s
	}
	d := &epp.Decision{Verdict: pd.Local, Reason: pd.BelowThreshold, Tokens: tokens, Picks: []epp.StagePick{{Row: &row, Endpoints: []*epp.Endpoint{decode}, Seen: seen(ahead)}}}
	if prefill != nil {
		d.Verdict, d.Reason = pd.Remote, pd.Always
		d.Picks[0].Seen = seen(0)
		d.Picks = append(d.Picks, epp.StagePick{Row: &split, Endpoints: []*epp.Endpoint{prefill}, Seen: seen(ahead)})
	}
	return d
}

// traffic is a report about requests that are computed at one decode endpoint, with a time for 1,000 tokens of prompts.
type traffic struct {
	*Report
	clock *handClock
	to    *epp.Endpoint
}

func newTraffic() *traffic {
	clock := &handClock{now: time.Unix(100, 0)}
	return &traffic{New("b.yaml", clock), clock, endpoint(0, "decode")}
}

// serve has a request be picked for, compares it with another decision, and ends it. It took so long for each 1,000 tokens, those before it included.
func (f *traffic) serve(shadow *epp.Decision, ahead int, perK time.Duration) {
	f.clock.now = f.clock.now.Add(time.Second)
	live := decision(1000, ahead, f.to, nil)
	f.Compared(&sched.Comparison{Request: &epp.Request{ID: "x", Prompt: epp.Prompt{Tokens: 1000}}, Now: f.clock.now, Live: live, Shadow: shadow})
	phases := &pd.Phases{}
	phases.Set(pd.PhaseFirst, time.Duration(1000+ahead)*perK/1000)
	phases.Set(pd.PhaseDecode, time.Second)
	f.Observe(&epp.Outcome{Decision: live, Phases: phases, Result: &pd.AnswerSummary{End: pd.EndDone, Completion: 51}})
}

func TestKinds(t *testing.T) {
	a, b, p, q := endpoint(0, "decode"), endpoint(1, "decode"), endpoint(2, "prefill"), endpoint(3, "prefill")
	for _, tc := range []struct {
		live, shadow *epp.Decision
		want         Kind
	}{
		{decision(1, 0, a, nil), decision(1, 0, a, nil), Same},
		{decision(1, 0, a, nil), decision(1, 0, b, nil), Decode},
		{decision(1, 0, a, p), decision(1, 0, a, q), Prefill},
		{decision(1, 0, a, p), decision(1, 0, b, q), Decode},
		{decision(1, 0, a, p), decision(1, 0, b, nil), Verdict},
		{decision(1, 0, a, p), nil, Refused},
		{nil, decision(1, 0, a, p), Refused},
		{nil, nil, Same},
	} {
		if got := kindOf(tc.live, tc.shadow); got != tc.want {
			t.Errorf("%+v beside %+v: %s, want %s", tc.live, tc.shadow, got, tc.want)
		}
	}
}

// TestGain: where the live decision lets requests wait behind 4,000 tokens and the shadow's behind none, the gain is the time of these 4,000.
func TestGain(t *testing.T) {
	f := newTraffic()
	other := endpoint(1, "decode")
	for i := range 400 {
		ahead := 4000 * (i % 2)
		f.serve(decision(1000, 0, other, nil), ahead, 100*time.Millisecond)
	}
	v := f.View()
	if v.Picks != 400 || len(v.Kinds) != 1 || v.Kinds[0].Kind != Decode || v.Kinds[0].Picks != 400 {
		t.Fatalf("%d picks of kinds %+v", v.Picks, v.Kinds)
	}
	const want = 0.2 // half of the requests, by 0.4 s
	g := v.All.TTFT
	if g.Mean < 0.7*want || g.Mean > 1.3*want {
		t.Errorf("the gain is %+v, want about %v", g, want)
	}
	if !(g.Low < want && want < g.High && g.Low > 0) {
		t.Errorf("from %v to %v, which should have %v and not 0", g.Low, g.High, want)
	}
	if v.TTFT.Requests == 0 || v.TTFT.Error > 0.5 {
		t.Errorf("predictions were checked: %+v", v.TTFT)
	}
	if n := len(v.Latest); n != latest || !v.Latest[0].At.After(v.Latest[n-1].At) {
		t.Errorf("%d differences are kept, from %v to %v", n, v.Latest[0].At, v.Latest[n-1].At)
	}
}

// TestNoGainIsNotClaimed: if decisions differ and times do not, the interval has 0.
func TestNoGainIsNotClaimed(t *testing.T) {
	f := newTraffic()
	other := endpoint(1, "decode")
	for range 200 {
		f.serve(decision(1000, 0, other, nil), 0, 100*time.Millisecond)
	}
	if g := f.View().All.TTFT; g.Low > 0 || g.High < 0 {
		t.Errorf("the gain is %+v", g)
	}
}

func TestReportBeginsAgain(t *testing.T) {
	f := newTraffic()
	f.serve(nil, 0, time.Millisecond)
	if v := f.View(); v.Picks != 1 || v.Kinds[0].Kind != Refused || len(v.Latest) != 1 || v.Latest[0].Shadow.Verdict != "refused" {
		t.Errorf("after a refusal: %+v", v)
	}
	f.clock.now = f.clock.now.Add(time.Minute)
	f.Restart()
	if v := f.View(); v.Picks != 0 || len(v.Kinds) != 0 || len(v.Latest) != 0 || !v.Since.Equal(f.clock.now) {
		t.Errorf("after the configuration changed: %+v", v)
	}
	if _, err := json.Marshal(f.View()); err != nil {
		t.Error(err)
	}
}

func TestMetrics(t *testing.T) {
	f := newTraffic()
	f.serve(nil, 0, time.Millisecond)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(f.Report)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	for _, one := range families {
		series[one.GetName()] = len(one.GetMetric())
	}
	if series["tandem_shadow_picks_total"] != 5 || series["tandem_shadow_gain_seconds"] != 6 {
		t.Errorf("%v", series)
	}
}
