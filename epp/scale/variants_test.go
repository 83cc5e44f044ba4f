package scale

import (
	"fmt"
	"net/netip"
	"slices"
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
	c := VariantsConfig{Objective: wanted, Label: epp.VariantLabel, Window: 5 * time.Minute, Decode: []Variant{
		{Role: role("cheap", 1), TTFT: 10 * time.Second, TPOT: 100 * time.Millisecond},
		{Role: role("dear", 4), TTFT: time.Second, TPOT: 30 * time.Millisecond},
	}}
	return startBench(t, c, map[string]int{"cheap": cheap, "dear": dear})
}

// startBench starts the sizers of variants that have so many pods each.
func startBench(t *testing.T, c VariantsConfig, pods map[string]int) *variantBench {
	t.Helper()
	b := &variantBench{NewVariants(c, new(VariantsState), latency.NewModel(epp.SystemClock), epp.SystemClock), map[string][]*epp.Endpoint{}}
	prefills := func(name string) bool {
		return slices.ContainsFunc(c.Prefill, func(v Variant) bool { return v.Role.Variant == name })
	}
	for name, n := range pods {
		for i := range n {
			pod := variantPod(name, i)
			if prefills(name) {
				pod = prefillPod(name, i)
			}
			b.pods[name] = append(b.pods[name], pod)
			b.EndpointJoined(pod)
		}
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func variantPod(variant string, i int) *epp.Endpoint { return podOf("decode", variant, i) }

func prefillPod(variant string, i int) *epp.Endpoint { return podOf("prefill", variant, i) }

func podOf(role, variant string, i int) *epp.Endpoint {
	e := epp.NewEndpoint("default", fmt.Sprintf("%s-%d", variant, i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(len(variant)), byte(i)}), 8000), "",
		map[string]string{pd.RoleLabel: role, epp.VariantLabel: variant})
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

// startBothRoles starts sizers of a pool with cheap and dear variants of both roles, one pod of each.
func startBothRoles(t *testing.T) *variantBench {
	t.Helper()
	role := func(name string, cost float64) Role {
		return Role{Variant: name, Min: 1, Max: 50, Cost: cost, Ready: 2 * time.Minute}
	}
	c := VariantsConfig{Objective: wanted, Label: epp.VariantLabel, Window: 5 * time.Minute,
		Decode: []Variant{
			{Role: role("cheap", 1), TTFT: 10 * time.Second, TPOT: 100 * time.Millisecond},
			{Role: role("dear", 4), TTFT: time.Second, TPOT: 30 * time.Millisecond},
		},
		Prefill: []Variant{
			{Role: role("patient", 1), TTFT: 10 * time.Second},
			{Role: role("prompt-now", 4), TTFT: time.Second},
		}}
	return startBench(t, c, map[string]int{"cheap": 1, "dear": 1, "patient": 1, "prompt-now": 1})
}

// flow is requests that are alike, and who serves them.
type flow struct {
	rate           int // in a second
	prompt, answer int // tokens
	wants          wanting
	prefill        string // variant that computes the prompt
	decode         string // variant that generates the answer
}

// pass has some intervals pass, in which these requests come.
func (b *variantBench) pass(intervals int, flows ...flow) {
	for range intervals {
		for _, f := range flows {
			for range f.rate * int(Interval/time.Second) {
				d := &epp.Decision{Verdict: pd.Remote, Tokens: f.prompt, Picks: []epp.StagePick{
					{Row: &decodeRow, Endpoints: b.pods[f.decode][:1]}, {Row: &prefillRow, Endpoints: b.pods[f.prefill][:1], Seen: &epp.Seen{}}}}
				b.Picked(&epp.Round{Request: &epp.Request{Headers: f.wants}}, nil, d)
				b.Observe(&epp.Outcome{Decision: d, Result: &pd.AnswerSummary{End: pd.EndDone, Completion: int64(f.answer)}})
			}
		}
		<-time.After(Interval) // of the bubble's clock
		synctest.Wait()
	}
}

// desired returns what is wanted, by variant.
func (b *variantBench) desired() map[string]int {
	all := map[string]int{}
	for _, s := range b.Sizes() {
		all[s.Variant] = s.Desired
	}
	return all
}

// TestVariantsOfBothRoles: what requests ask of a role makes the cheapest variant of that role grow which gives them what they want, and no other one.
func TestVariantsOfBothRoles(t *testing.T) {
	for _, tc := range []struct {
		name            string
		prompt, answer  int
		wants           wanting
		prefill, decode string // that serve
		grow            []string
	}{
		{"long prompts that may wait", 8000, 10, wanting{20_000, 200}, "patient", "cheap", []string{"patient"}},
		{"long prompts that may wait, and dear pods help", 8000, 10, wanting{20_000, 200}, "prompt-now", "dear", []string{"patient"}},
		{"urgent long prompts", 8000, 10, wanting{1000, 30}, "prompt-now", "dear", []string{"prompt-now"}},
		{"long prompts whose further tokens alone are urgent", 8000, 10, wanting{20_000, 30}, "patient", "dear", []string{"patient"}},
		{"long answers", 100, 2000, wanting{20_000, 200}, "patient", "cheap", []string{"cheap"}},
		{"urgent long answers", 100, 2000, wanting{1000, 30}, "prompt-now", "dear", []string{"dear"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := startBothRoles(t)
				b.pass(12, flow{20, tc.prompt, tc.answer, tc.wants, tc.prefill, tc.decode})
				for name, size := range b.desired() {
					if grows := slices.Contains(tc.grow, name); size > 1 != grows {
						t.Errorf("%d replicas of %s are wanted", size, name)
					}
				}
			})
		})
	}
}

// TestPrefillOfAllVariants: prefill replicas without variants are sized for the prompts of all decode variants, and there is one while decode has any.
func TestPrefillOfAllVariants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		role := func(name string, cost float64) Role {
			return Role{Variant: name, Max: 50, Cost: cost, Ready: 2 * time.Minute}
		}
		c := VariantsConfig{Objective: wanted, Label: epp.VariantLabel, Window: 5 * time.Minute,
			Decode:  []Variant{{Role: role("cheap", 1), TTFT: 10 * time.Second, TPOT: 100 * time.Millisecond}, {Role: role("dear", 4), TTFT: time.Second, TPOT: 30 * time.Millisecond}},
			Prefill: []Variant{{Role: role("prefill", 4), Any: true}}}
		b := startBench(t, c, map[string]int{"cheap": 1, "dear": 1, "prefill": 1})
		other := prefillPod("unknown", 1)
		b.EndpointJoined(other)
		if role, variant := b.SizedAs(other); role != "prefill" || variant != "prefill" {
			t.Errorf("a prefill pod of any variant is sized as %q, %q", role, variant)
		}
		waits, hurries := flow{10, 8000, 10, wanting{20_000, 200}, "prefill", "cheap"}, flow{10, 8000, 10, wanting{1000, 30}, "prefill", "dear"}
		b.pass(12, waits)
		first := b.desired()["prefill"]
		b.pass(12, waits, hurries)
		if both := b.desired()["prefill"]; both <= first || first <= 1 {
			t.Errorf("%d prefill replicas are wanted for one class of prompts, %d for two", first, both)
		}
		b.serve(80, 1, wanting{20_000, 200}, "cheap") // prompts that decode computes
		if got := b.desired(); got["prefill"] != 1 || got["cheap"] < 1 || got["dear"] != 0 {
			t.Errorf("%v are wanted when no prompt goes to prefill", got)
		}
	})
}

// TestVariantsAreSteady: at a steady load of requests of both kinds, sizes do not go up and down.
func TestVariantsAreSteady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, changes := startBothRoles(t), map[string]int{}
		before := map[string]int{}
		for interval := range 360 {
			b.pass(1, flow{8, 3000, 200, wanting{20_000, 200}, "patient", "cheap"}, flow{8, 3000, 200, wanting{1000, 30}, "prompt-now", "dear"})
			for name, size := range b.desired() {
				if interval > 120 && size != before[name] {
					changes[name]++
				}
				before[name] = size
			}
		}
		for name, n := range changes {
			if n > 1 {
				t.Errorf("the size of %s changed %d times within an hour of steady load", name, n)
			}
		}
	})
}
