package sched_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// sglangPods are the kinds of pods in pools of SGLang engines: labels, and what their pages say.
var sglangPods = map[string]struct {
	role, engine string
	load         epp.Load
}{
	"P": {"prefill", "sglang", epp.Load{At: time.Now(), Mode: epp.EnginePrefill}},
	"D": {"decode", "sglang", epp.Load{At: time.Now(), Mode: epp.EngineDecode, Cache: epp.CacheInfo{NoPrefixes: true}}},
	"A": {"prefill-decode", "sglang", epp.Load{At: time.Now(), Mode: epp.EnginePlain}},
	"a": {"", "", epp.Load{At: time.Now(), Mode: epp.EnginePlain}},
	"p": {"prefill", "sglang", epp.Load{At: time.Now(), Mode: epp.EnginePrefill, Unreachable: true}}, // dead
	"F": {"decode", "sglang", epp.Load{At: time.Now(), Mode: epp.EnginePlain}},                       // full: see sglangConfig
	"X": {"prefill", "sglang", epp.Load{At: time.Now(), Mode: epp.EnginePrefill}},                    // full
	// Their pages were not read yet.
	"unread-P": {"prefill", "sglang", epp.Load{}}, "unread-D": {"decode", "sglang", epp.Load{}}, "unread-A": {"prefill-decode", "sglang", epp.Load{}},
	"unread-d": {"decode", "", epp.Load{}}, "unread-a": {"", "sglang", epp.Load{}},
	// Another engine.
	"v": {"decode", "vllm", epp.Load{At: time.Now()}}, "vp": {"prefill", "vllm", epp.Load{At: time.Now()}},
}

// sglangPool makes a pool of such pods, named by their kind and index.
func sglangPool(kinds string) *pool {
	s := &epp.Snapshot{Version: 1}
	for i, kind := range strings.Fields(kinds) {
		pod := sglangPods[kind]
		labels := map[string]string{}
		if pod.role != "" {
			labels[pd.RoleLabel] = pod.role
		}
		if pod.engine != "" {
			labels[epp.EngineLabel] = pod.engine
		}
		e := epp.NewEndpoint("default", fmt.Sprintf("%s.%d", kind, i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8000), "", labels)
		e.Slot = i
		s.Endpoints, s.Loads = append(s.Endpoints, e), append(s.Loads, pod.load)
	}
	p := &pool{}
	p.at.Store(s)
	return p
}

// full is a detector that drops the pods F and X.
type full struct{}

func (full) Filter(_ *epp.Round, c []epp.Candidate) []epp.Candidate {
	return only(func(_ *epp.Round, c *epp.Candidate) bool {
		return !strings.HasPrefix(c.Name, "F") && !strings.HasPrefix(c.Name, "X")
	}).Filter(nil, c)
}
func (full) Saturation(time.Time, []epp.Candidate) float64 { return 0 }

// threshold splits prompts that have 50 tokens or more uncached.
type threshold struct{}

func (threshold) Decide(a *epp.Alternatives) epp.Ruling {
	switch {
	case a.Tokens < 50:
		return epp.Ruling{Verdict: pd.Local, Reason: pd.ShortPrompt}
	case a.Tokens-a.Cached < 50:
		return epp.Ruling{Verdict: pd.Local, Reason: pd.BelowThreshold}
	}
	return epp.Ruling{Verdict: pd.Remote, Reason: pd.Uncached}
}

// sglangConfig is a usual configuration of llm-d: roles by label, a threshold, detectors in both profiles.
func sglangConfig() sched.Config {
	c := disagg()
	for i := range c.Profiles {
		c.Profiles[i].Filters = append(c.Profiles[i].Filters, epp.NamedFilter{Name: "full", Filter: full{}})
	}
	c.Stages[1].Decider = epp.NamedDecider{Name: "threshold", Decider: threshold{}}
	return c
}

// sglangRequests are kinds of requests.
var sglangRequests = map[string]func(*epp.Request){
	"long":         func(*epp.Request) {},
	"short":        func(r *epp.Request) { *r = *splitRequest(20) },
	"unsplittable": func(r *epp.Request) { r.Fit = request.FitLocal },
	"doubted":      func(r *epp.Request) { r.Fit = request.FitDoubted },
	"choices":      func(r *epp.Request) { r.Fit, r.SGLangSplits = request.FitLocal, true },
	"computing-nothing": func(r *epp.Request) {
		*r = epp.Request{API: pd.APIOther, Fit: request.FitLocal}
	},
}

// TestSGLangPools: what P/D modes mean where engines compute only a part of a request. docs/headers.md says the same.
func TestSGLangPools(t *testing.T) {
	for _, c := range []struct{ pool, mode, request, want string }{
		// No plain engine: everything is prefilled remotely, or refused.
		{"P D", "auto", "long", "remote/uncached D P"},
		{"P D", "auto", "short", "remote/decode-only D P"},
		{"P D", "auto", "choices", "remote/uncached D P"},
		{"P D", "auto", "unsplittable", "refused/not-splittable"},
		{"P D", "auto", "doubted", "refused/not-splittable"},
		{"P D", "auto", "computing-nothing", "local/not-splittable D"},
		{"P D", "force", "short", "remote/forced strict D P"},
		{"P D", "force", "choices", "remote/forced strict D P"},
		{"P D", "force", "unsplittable", "refused/not-splittable"},
		{"P D", "force", "doubted", "refused/not-splittable"},
		{"P D", "force;fallback", "short", "remote/forced D P"},
		{"P D", "force;fallback", "unsplittable", "refused/not-splittable"},
		{"P D", "bypass", "long", "refused/decode-only"},
		{"P D", "bypass", "short", "refused/decode-only"},
		{"P D", "bypass", "unsplittable", "refused/decode-only"},
		// Every prefill pod is dead, full, or away.
		{"p D", "auto", "long", "refused/decode-only"},
		{"p D", "auto", "short", "refused/decode-only"},
		{"p D", "force", "long", "remote/forced strict D p"}, // the last hope: it may be back
		{"p D", "force;fallback", "long", "refused/decode-only"},
		{"p D", "bypass", "long", "refused/decode-only"},
		{"D", "auto", "short", "refused/decode-only"},
		{"D", "force", "long", "refused/no-prefill"},
		{"D", "force;fallback", "long", "refused/decode-only"},
		{"X D", "auto", "long", "refused/saturated"},
		{"X D", "auto", "short", "refused/saturated"},
		{"X D", "force;fallback", "long", "refused/saturated"},
		// Plain engines take what is computed on one pod.
		{"P D A", "auto", "short", "local/short-prompt A"},
		{"P D A", "auto", "long", "remote/uncached D P"},
		{"P D A", "auto", "unsplittable", "local/not-splittable A"},
		{"P D A", "auto", "doubted", "local/not-splittable A"},
		{"P D A", "auto", "choices", "local/not-splittable A"},
		{"P D A", "auto", "computing-nothing", "local/not-splittable A"},
		{"P D A", "force", "short", "remote/forced strict D P"},
		{"P D A", "force", "choices", "remote/forced strict D P"},
		{"P D A", "bypass", "long", "local/bypassed A"},
		{"P D a", "bypass", "long", "local/bypassed a"},
		{"P D a", "auto", "short", "local/short-prompt a"},
		{"p D A", "auto", "long", "local/no-prefill A"},
		{"p D A", "force;fallback", "long", "local/no-prefill A"},
		{"X D A", "auto", "long", "local/no-prefill A"},
		// The plain engine is full.
		{"P D F", "auto", "short", "remote/decode-only D P"},
		{"P D F", "bypass", "long", "refused/saturated"},
		{"P D F", "auto", "unsplittable", "refused/saturated"},
		{"p D F", "auto", "long", "refused/saturated"},
		// Plain engines alone are no pair, whatever their roles.
		{"A A", "auto", "long", "local/no-prefill A"},
		{"A A", "auto", "short", "local/short-prompt A"},
		{"A A", "force", "long", "refused/no-prefill"},
		{"A A", "force;fallback", "long", "local/no-prefill A"},
		{"A P", "auto", "long", "local/no-prefill A"},
		{"A P", "force", "long", "refused/no-prefill"},
		// A prefill engine alone generates nothing.
		{"P", "auto", "long", "refused/no-endpoint"},
		{"P", "bypass", "short", "refused/no-endpoint"},
		// No page was read yet: the engine label and the role tell what to expect.
		{"unread-P unread-D", "auto", "short", "remote/decode-only unread-D unread-P"},
		{"unread-P unread-D", "auto", "long", "remote/uncached unread-D unread-P"},
		{"unread-P unread-D", "bypass", "long", "refused/decode-only"},
		{"unread-P unread-D unread-A", "auto", "short", "local/short-prompt unread-A"},
		{"unread-P unread-D unread-A", "auto", "long", "remote/uncached unread-D unread-P"},
		{"unread-a unread-a", "auto", "long", "local/no-prefill unread-a"}, // without a role it may be any engine
		// Without the engine label the sidecar decides: it knows its engine.
		{"unread-P unread-d", "auto", "short", "local/short-prompt unread-d"},
		// Other engines compute what their roles say.
		{"v vp", "auto", "short", "local/short-prompt v"},
		{"v vp", "auto", "long", "remote/uncached v vp"},
		{"v vp", "bypass", "long", "local/bypassed v"},
	} {
		t.Run(c.pool+"/"+c.mode+"/"+c.request, func(t *testing.T) {
			p := sglangPool(c.pool)
			s := scheduler(t, p, sglangConfig())
			for range 8 { // whichever endpoint is chosen first, at random
				r := splitRequest(100)
				sglangRequests[c.request](r)
				var err error
				if r.Mode, err = pd.ParseMode([]string{c.mode}); err != nil {
					t.Fatal(err)
				}
				d, err := s.Pick(t.Context(), r)
				if got := outcomeOn(d, err); got != c.want {
					t.Fatalf("picked %s, want %s", got, c.want)
				}
				explained, err := s.Explain(t.Context(), r)
				if got := outcomeOn(explained, err); got != c.want {
					t.Fatalf("explained %s, want %s", got, c.want)
				}
				checkCharges(t, p, d)
			}
		})
	}
}

// outcomeOn returns the outcome and the kinds of the first endpoints.
func outcomeOn(d *epp.Decision, err error) string {
	text := outcome(d, err)
	if err != nil {
		return text
	}
	for _, pick := range d.Picks {
		kind, _, _ := strings.Cut(pick.Endpoints[0].Name, ".")
		text += " " + kind
	}
	return text
}

// TestPoolWithoutPrefillStage: SGLang's decode engines cannot serve a configuration that splits nothing.
func TestPoolWithoutPrefillStage(t *testing.T) {
	for _, c := range []struct{ pool, mode, want string }{
		{"D", "auto", "refused/decode-only"}, {"D", "force", "refused/no-prefill"}, {"D A", "auto", "local/no-prefill A"}, {"a", "auto", "local/no-prefill a"},
		{"D a", "force;fallback", "local/no-prefill a"},
	} {
		config := sglangConfig()
		config.Stages = config.Stages[:1]
		r := splitRequest(100)
		r.Mode, _ = pd.ParseMode([]string{c.mode})
		d, err := scheduler(t, sglangPool(c.pool), config).Pick(t.Context(), r)
		if got := outcomeOn(d, err); got != c.want {
			t.Errorf("%s, %s: picked %s, want %s", c.pool, c.mode, got, c.want)
		}
	}
}

// TestGatewayFallsBackToAbleEngines: the endpoints to which the gateway turns if the first one fails can do its part too.
func TestGatewayFallsBackToAbleEngines(t *testing.T) {
	config := sglangConfig()
	config.Profiles[0].Picker = highest(5)
	s := scheduler(t, sglangPool("P D A D A"), config)
	for range 20 {
		for mode, kind := range map[pd.Mode]string{pd.ModeBypass: "A", pd.ModeForce: "D", pd.ModeAuto: "D"} {
			r := splitRequest(100)
			r.Mode = mode
			d := mustPick(t, s, r)
			for _, e := range d.First() {
				if !strings.HasPrefix(e.Name, kind) {
					t.Fatalf("%v: the request may go to %v", mode, names(d.First()))
				}
			}
			d.Reservation.End()
		}
	}
}

// TestDecodeEnginesKeepNoPrefixes: what SGLang's decode engines were sent is not cached there, unless they say so.
func TestDecodeEnginesKeepNoPrefixes(t *testing.T) {
	for _, c := range []struct {
		name, pool string
		keeps      bool
		want       string
		learnt     int
	}{
		{"no radix cache", "P D", false, "remote/uncached D P", 1},
		{"not known yet", "unread-P unread-D", false, "remote/uncached unread-D unread-P", 1},
		{"with a radix cache", "P D", true, "remote/decode-only D P", 2}, // below the threshold, but it cannot compute the rest
	} {
		t.Run(c.name, func(t *testing.T) {
			p := sglangPool(c.pool)
			p.Snapshot().Loads[1].Cache.NoPrefixes = !c.keeps && c.pool == "P D"
			matcher := &caches{cached: map[string]int{p.Snapshot().Endpoints[1].Name: 96}}
			config := sglangConfig()
			config.Matchers = []epp.Matcher{matcher}
			d := mustPick(t, scheduler(t, p, config), splitRequest(100))
			defer d.Reservation.End()
			if got := outcomeOn(d, nil); got != c.want {
				t.Errorf("picked %s, want %s", got, c.want)
			}
			if len(matcher.learnt) != c.learnt {
				t.Errorf("the prompt was learnt for %v", matcher.learnt)
			}
		})
	}
}

// TestRefusalForDeadPrefillIsCounted: the alert about missing prefill pods sees it, and not a client's own wish.
func TestRefusalForDeadPrefillIsCounted(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	config := sglangConfig()
	config.Metrics = sched.NewMetrics(registry)
	s := scheduler(t, sglangPool("p D"), config)
	for _, mode := range []pd.Mode{pd.ModeAuto, pd.ModeBypass} {
		r := splitRequest(100)
		r.Mode = mode
		if _, err := s.Pick(t.Context(), r); err == nil {
			t.Fatal("it was picked for")
		}
	}
	checkMissing(t, registry, "refused")
}

// TestExplainsEngineModes: the explanation says which engines do not compute what is wanted.
func TestExplainsEngineModes(t *testing.T) {
	r := splitRequest(100)
	r.Mode = pd.ModeBypass
	d, err := scheduler(t, sglangPool("P D A"), sglangConfig()).Explain(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for _, c := range d.Trace.Stages[0].Candidates {
		said[c.Endpoint] = c.Why
	}
	for endpoint, want := range map[string]string{
		"default/D.1": "dropped: its engine runs in the mode decode, which does not do this",
		"default/P.0": "dropped: its engine runs in the mode prefill, which does not do this",
		"default/A.2": "chosen: the only candidate left",
	} {
		if said[endpoint] != want {
			t.Errorf("%s: %q, want %q", endpoint, said[endpoint], want)
		}
	}
}
