package scale

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
)

// kindOf is engines that nothing is known of, at a cost.
func kindOf(cost float64, ttft, tpot time.Duration) kind {
	return kind{ttft: ttft, tpot: tpot, rates: latency.NewModel(epp.SystemClock).Rates(nil), cost: cost, most: 1000}
}

// patient and urgent are what requests want that may wait, and those that may not.
var patient, urgent = kindOf(1, 10*time.Second, 100*time.Millisecond), kindOf(4, time.Second, 30*time.Millisecond)

// TestPlanOfOneKind: a plan for one kind of each role is what Need says.
func TestPlanOfOneKind(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(l *Load)
	}{
		{"as it was seen", func(*Load) {}},
		{"no load", func(l *Load) { l.Rate = 0 }},
		{"some prompts stay", func(l *Load) { l.Prompts[0].Remote = 0.3 }},
		{"the decider chooses", func(l *Load) {
			l.Chosen = true
			l.Prompts = []Prompts{{Share: 0.5, Tokens: 200}, {Share: 0, Tokens: 400}, {Share: 0.5, Tokens: 6000}}
		}},
		{"answers that have not ended", func(l *Load) { l.Answer, l.Tokens = 0, 40000 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := split(20)
			tc.change(&l)
			want := Need(&l, wanted, usual(), 0)
			n := planner{share: wanted.Share, decode: []kind{kindOf(10, wanted.TTFT, wanted.TPOT)}, prefill: []kind{kindOf(10, 0, 0)}, classes: []class{{Load: l}}}
			got := n.split(n.initial())
			if got.decode[0] != want.Decode || got.prefill[0] != want.Prefill {
				t.Errorf("%d+%d engines, want %d+%d", got.prefill[0], got.decode[0], want.Prefill, want.Decode)
			}
		})
	}
}

// twoKinds is a planner for a cheap and a dear kind of both roles, and so many requests in a second that may wait, and that may not.
func twoKinds(waiting, hurried float64) *planner {
	return &planner{share: 0.99, decode: []kind{patient, urgent}, prefill: []kind{patient, urgent},
		classes: []class{{0, 0, split(waiting)}, {0, 1, split(0)}, {1, 0, split(0)}, {1, 1, split(hurried)}}}
}

// TestPlanFillsCheapKinds: the requests of a kind that may have no more engines are planned for by the next one, of each role.
func TestPlanFillsCheapKinds(t *testing.T) {
	free, limited := twoKinds(40, 0), twoKinds(40, 0)
	limited.decode[0].most, limited.prefill[0].most = 1, 1
	a, b := free.split(free.initial()), limited.split(limited.initial())
	if a.decode[0] < 2 || a.prefill[0] < 2 || a.decode[1] != 0 || a.prefill[1] != 0 {
		t.Fatalf("without limits %d decode and %d prefill engines are planned", a.decode, a.prefill)
	}
	if !slices.Equal(b.decode[:1], a.decode[:1]) || b.prefill[0] != a.prefill[0] {
		t.Errorf("with limits %d decode and %d prefill engines are needed, without %d and %d: want the same of the cheap kinds", b.decode, b.prefill, a.decode, a.prefill)
	}
	if b.decode[1] < 1 || b.prefill[1] < 1 {
		t.Errorf("%d decode and %d prefill engines are planned: want dear ones for what the cheap ones may not bear", b.decode, b.prefill)
	}
}

// TestPlanOfSharedPrefill: prefill engines that serve all decode kinds are planned for all of their prompts together, which takes fewer than for each.
func TestPlanOfSharedPrefill(t *testing.T) {
	of := func(waiting, hurried float64) int {
		n := &planner{share: 0.99, decode: []kind{patient, urgent}, prefill: []kind{kindOf(4, 0, 0)}, classes: []class{{0, 0, split(waiting)}, {1, 0, split(hurried)}}}
		return n.split(n.initial()).prefill[0]
	}
	both, apart := of(6, 6), of(6, 0)+of(0, 6)
	if both > apart || both < of(6, 0) || both < of(0, 6) || of(0, 0) != 0 {
		t.Errorf("%d prefill engines for both kinds of requests, %d for one and %d for the other", both, of(6, 0), of(0, 6))
	}
}

// TestPlanKeepsLimitsOfRoles: where the decider chooses, prompts go to the role that may have the engines for them.
func TestPlanKeepsLimitsOfRoles(t *testing.T) {
	for _, tc := range []struct {
		name            string
		decode, prefill int // most
	}{{"few decode engines", 2, 50}, {"few prefill engines", 50, 1}} {
		t.Run(tc.name, func(t *testing.T) {
			l := split(20)
			l.Chosen = true
			n := planner{share: 0.99, decode: []kind{kindOf(10, wanted.TTFT, wanted.TPOT)}, prefill: []kind{kindOf(10, 0, 0)}, classes: []class{{Load: l}}}
			n.decode[0].most, n.prefill[0].most = tc.decode, tc.prefill
			if p := n.split(n.initial()); p.decode[0] > tc.decode || p.prefill[0] > tc.prefill {
				t.Errorf("%d prefill and %d decode engines are planned, want %d and %d at most", p.prefill[0], p.decode[0], tc.prefill, tc.decode)
			}
		})
	}
}

// TestPlanOfTheCheapestMix: where a dear engine has time for all, no cheap one is planned, and where it has not, cheap ones are.
func TestPlanOfTheCheapestMix(t *testing.T) {
	for _, tc := range []struct {
		name             string
		waiting, hurried float64
		decodeBy         []int // nil: no better plan
	}{
		{"both kinds are busy", 60, 60, nil},
		{"few requests may wait", 0.5, 1, []int{1, 1}},
		{"no request is urgent", 20, 0, nil},
		{"all are urgent", 0, 20, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := twoKinds(tc.waiting, tc.hurried)
			n.prefill = nil
			for i := range n.classes {
				n.classes[i].prefill = 0
			}
			same, other, ok := n.best(n.initial())
			if ok != (tc.decodeBy != nil) || ok && !slices.Equal(other.decodeBy, tc.decodeBy) {
				t.Errorf("%d decode engines at %v; better: %v, %d by %d at %v", same.decode, same.cost, ok, other.decode, other.decodeBy, other.cost)
			}
		})
	}
}

// TestPlanChangesAfterTheWindow: another kind serves the requests of a kind after that has been cheaper for the whole window, and not before.
func TestPlanChangesAfterTheWindow(t *testing.T) {
	v := &Variants{VariantsState: new(VariantsState), config: VariantsConfig{Window: time.Minute}}
	at, same, other := time.Unix(1000, 0), plan{decodeBy: []int{0, 1}}, plan{decodeBy: []int{1, 1}}
	steps := []struct {
		cheaper, changes bool
	}{{true, false}, {true, false}, {false, false}, {true, false}, {true, false}, {true, false}, {true, false}, {true, true}, {true, false}}
	for i, s := range steps {
		got := v.choose(at.Add(time.Duration(i)*Interval), same, other, s.cheaper)
		if changed := slices.Equal(got.decodeBy, other.decodeBy); changed != s.changes {
			t.Errorf("interval %d: changed %v, want %v", i, changed, s.changes)
		}
	}
}

// BenchmarkPlan plans for two kinds of both roles, prompts of many lengths, and a decider that chooses, as each Interval of a picker does twice.
func BenchmarkPlan(b *testing.B) {
	n := twoKinds(0, 0)
	for i := range n.classes {
		l := &n.classes[i].Load
		l.Rate, l.Chosen, l.Prompts = 20, true, nil
		for k := range classes {
			l.Prompts = append(l.Prompts, Prompts{Share: 1.0 / classes, Tokens: float64(int(16) << (k / 3)), Remote: 0.5})
		}
	}
	for b.Loop() {
		n.best(n.initial())
	}
}
