package report

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// together returns a run with a request whose legs were sent at once: prefill took 80 ms, in which decode waited, and decode's first
// byte came 20 ms later. The other request was local.
func together() *Data {
	return &Data{Requests: []Request{
		{Number: 1, Class: "long", Decision: "remote", Reason: "uncached", Attempts: 1, Stream: true, TTFT: 104, Total: 154, ITL: []float64{50},
			Phases: map[string]float64{"epp": 1, "recv": 2, "prefill": 80, "first": 100, "decode": 50, "overlap": 80}},
		{Number: 2, Class: "short", Decision: "local", Reason: "short-prompt", Stream: true, TTFT: 10, Total: 20, ITL: []float64{10},
			Phases: map[string]float64{"epp": 1, "recv": 1, "first": 8, "decode": 10}},
	}}
}

func TestConcurrentLegsAreDrawnBesideEachOther(t *testing.T) {
	r := &together().Requests[0]
	want := []stretch{{"epp", 0, 1}, {"recv", 1, 3}, {"prefill", 3, 83}, {"first", 3, 103}, {"decode", 103, 153}, {"client", 104, 154}}
	if got := r.waterfall(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	r.Phases["prefill"] = 95 // a first attempt took 15 ms, alone
	if got := r.waterfall()[3]; got != (stretch{"first", 18, 118}) {
		t.Errorf("after an attempt that failed: %v", got)
	}
	if got := typical(together()); got == nil || got.Number != 1 {
		t.Errorf("a request without the phase handoff is not shown: %+v", got)
	}
}

func TestOverlapCountsOnce(t *testing.T) {
	all := classes(together())
	want := []string{"long", "1.0", "2.0", "80.0", absent, "100.0", "50.0", "80.0", "99.4%"}
	if got := all[0].phaseCells(shownPhases(together())); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if sum := all[0].meanSum(); sum != 153 {
		t.Errorf("the phases sum up to %v", sum)
	}
	lane := phaseLane(all[0], linear(200))
	if lane.Numbers != "153.0 ms · n 1" {
		t.Errorf("%s", lane.Numbers)
	}
	for _, drawn := range []string{ // 200 ms are the whole width
		`class="fill phase-prefill" x="1.5%" y="1" width="0%"`, // none of it was alone
		`class="fill phase-overlap" x="1.5%" y="1" width="40%"`,
		`class="fill phase-first" x="41.5%" y="1" width="10%"`,
		`class="fill phase-decode" x="51.5%" y="1" width="25%"`,
	} {
		if !strings.Contains(string(lane.Drawing), drawn) {
			t.Errorf("no %s in %s", drawn, lane.Drawing)
		}
	}
}

func TestOverlapIsShownWhereThereIsAny(t *testing.T) {
	serial := &Data{Requests: together().Requests[1:]}
	if shown := shownPhases(serial); slices.Contains(shown, pd.PhaseOverlap) || strings.Contains(text(t, serial), "overlap") {
		t.Errorf("shown without concurrent legs: %v", shown)
	}
	if out := text(t, together()); !strings.Contains(out, "decode  overlap  of E2E") || !strings.Contains(out, "\noverlap: how long prefill and first ran") {
		t.Errorf("not in\n%s", out)
	}
	p := newPage(together())
	if legend := p.Legend(); legend[len(legend)-1].Name != "overlap" || !slices.Contains(p.RequestColumns(), "overlap") {
		t.Errorf("not on the page: %v, %v", legend, p.RequestColumns())
	}
}
