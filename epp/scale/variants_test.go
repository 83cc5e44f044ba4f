package scale

import (
	"fmt"
	"net/netip"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/pd"
)

// wanting is the headers of a request whose client wants these times, in ms; 0 is not said.
type wanting struct{ ttft, tpot int }

func (w wanting) Get(name string) string {
	switch {
	case name == epp.HeaderTTFT && w.ttft > 0:
		return strconv.Itoa(w.ttft)
	case name == epp.HeaderTPOT && w.tpot > 0:
		return strconv.Itoa(w.tpot)
	}
	return ""
}

// variantBench is sizers of two variants, a cheap one for requests that may wait and a dear one.
type variantBench struct {
	*Variants
	pods map[string][]*epp.Endpoint
}

func startVariants(t *testing.T, cheap, dear int) *variantBench {
	t.Helper()
	role := func(name string, cost float64) Role {
		return Role{Variant: name, Max: 50, Cost: cost, Ready: 2 * time.Minute}
	}
	c := VariantsConfig{Objective: wanted, Label: epp.VariantLabel, Window: 5 * time.Minute, Variants: []Variant{
		{Role: role("cheap", 1), TTFT: 10 * time.Second, TPOT: 100 * time.Millisecond},
		{Role: role("dear", 4), TTFT: time.Second, TPOT: 30 * time.Millisecond},
	}}
	b := &variantBench{NewVariants(c, []*State{new(State), new(State)}, latency.NewModel(epp.SystemClock), epp.SystemClock), map[string][]*epp.Endpoint{}}
	for name, n := range map[string]int{"cheap": cheap, "dear": dear} {
		for i := range n {
			b.pods[name] = append(b.pods[name], variantPod(name, i))
			b.EndpointJoined(b.pods[name][i])
		}
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func variantPod(variant string, i int) *epp.Endpoint {
	e := epp.NewEndpoint("default", fmt.Sprintf("%s-%d", variant, i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(len(variant)), byte(i)}), 8000), "",
		map[string]string{pd.RoleLabel: "decode", epp.VariantLabel: variant})
	e.Slot = 100*len(variant) + i
	return e
}

// serve has so many requests in a second come for some intervals, which pods of a variant serve.
func (b *variantBench) serve(intervals, rate int, w wanting, by string) {
	for range intervals {
		for range rate * int(Interval/time.Second) {
			d := &epp.Decision{Verdict: pd.Local, Tokens: 2000, Picks: []epp.StagePick{{Row: &decodeRow, Endpoints: b.pods[by][:1]}}}
			b.Picked(&epp.Round{Request: &epp.Request{Headers: w}}, nil, d)
			b.Observe(&epp.Outcome{Decision: d, Result: &pd.AnswerSummary{End: pd.EndDone, Completion: 200}})
		}
		<-time.After(Interval) // of the bubble's clock
		synctest.Wait()
	}
}

// sizes returns what is wanted of both variants.
func (b *variantBench) sizes(t *testing.T) (cheap, dear int) {
	t.Helper()
	all := b.Sizes()
	if len(all) != 2 || all[0].Role != "decode" || all[0].Variant != "cheap" || all[1].Role != "decode" || all[1].Variant != "dear" {
		t.Fatalf("sizes %+v", all)
	}
	return all[0].Desired, all[1].Desired
}

// TestVariantsGrowByTheirOwnRequests: requests that the cheap variant is sized for make it grow, also while the dear one serves them.
func TestVariantsGrowByTheirOwnRequests(t *testing.T) {
	for _, tc := range []struct {
		name        string
		wants       wanting
		by          string
		cheap, dear bool // grow
	}{
		{"may wait", wanting{20_000, 200}, "cheap", true, false},
		{"may wait, and the dear variant helps", wanting{20_000, 200}, "dear", true, false},
		{"urgent", wanting{1000, 30}, "dear", false, true},
		{"urgent, and the cheap variant happens to be fast enough", wanting{1000, 30}, "cheap", false, true},
		{"only its first token is urgent", wanting{1000, 200}, "dear", false, true},
		{"more urgent than any variant is sized for", wanting{1, 1}, "dear", false, true},
		{"says nothing: the wants of the plugin", wanting{}, "dear", false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := startVariants(t, 1, 1)
				if tc.by == "dear" && !tc.dear { // what runs there does not tell that more of it are needed
					b.pods["dear"][0].ChargeOthers(epp.InFlight{}, epp.InFlight{Requests: 1000})
				}
				b.serve(12, 40, tc.wants, tc.by)
				cheap, dear := b.sizes(t)
				if cheap > 1 != tc.cheap || dear > 1 != tc.dear {
					t.Errorf("%d cheap and %d dear replicas are wanted", cheap, dear)
				}
			})
		})
	}
}

// TestVariantsShrink: when no urgent request has come for the window, the dear variant goes to its least, and the cheap one stays as large as it must.
func TestVariantsShrink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startVariants(t, 1, 1)
		b.serve(12, 40, wanting{1000, 30}, "dear")
		b.serve(60, 20, wanting{20_000, 200}, "cheap")
		if cheap, dear := b.sizes(t); cheap < 1 || dear != 0 {
			t.Errorf("%d cheap and %d dear replicas are wanted, want some and none", cheap, dear)
		}
	})
}

// TestVariantsWake: a request that waits for a pool without pods wakes the cheapest variant, and no variant while another has pods.
func TestVariantsWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startVariants(t, 0, 0)
		changes := 0
		b.Notify(func() { changes++ })
		b.Wake()
		if cheap, dear := b.sizes(t); cheap != 1 || dear != 0 || changes != 1 {
			t.Errorf("%d cheap and %d dear replicas are wanted after %d changes, want one cheap", cheap, dear, changes)
		}
		b = startVariants(t, 0, 1)
		b.Wake()
		if cheap, _ := b.sizes(t); cheap != 0 {
			t.Errorf("%d cheap replicas are wanted while a dear one serves", cheap)
		}
	})
}

// TestVariantsCountPods: each pod counts for the variant that its label names, also after the label has changed, and for none without it.
func TestVariantsCountPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startVariants(t, 2, 1)
		current := func() (all [2]int) {
			for i, s := range b.Sizes() {
				all[i] = s.Current
			}
			return all
		}
		if got := current(); got != [2]int{2, 1} {
			t.Errorf("%v replicas", got)
		}
		old := b.pods["cheap"][0]
		b.EndpointJoined(old.With("", map[string]string{pd.RoleLabel: "decode", epp.VariantLabel: "dear"}))
		if got := current(); got != [2]int{1, 2} {
			t.Errorf("%v replicas after one has another label", got)
		}
		other := variantPod("other", 0)
		b.EndpointJoined(other)
		b.EndpointLeft(old)
		if got := current(); got != [2]int{1, 1} {
			t.Errorf("%v replicas after it has left", got)
		}
		if role, variant := b.SizedAs(b.pods["dear"][0]); role != "decode" || variant != "dear" {
			t.Errorf("a dear pod is sized as %q, %q", role, variant)
		}
		if role, variant := b.SizedAs(other); role != "" || variant != "" {
			t.Errorf("a pod of an unknown variant is sized as %q, %q", role, variant)
		}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(b.Variants)
		if families, err := registry.Gather(); err != nil || len(families) != 7 {
			t.Errorf("%d families, error %v", len(families), err)
		}
	})
}
