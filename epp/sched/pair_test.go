package sched_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// pairs is a Pairer that chooses endpoints by name, "" = the first.
type pairs struct {
	local, remote string
	verdict       pd.Verdict
	asked         epp.Alternatives
}

func (p *pairs) Compares()   {}
func (p *pairs) Pairs() bool { return true }

func (p *pairs) Decide(a *epp.Alternatives) epp.Ruling {
	p.asked = *a
	p.asked.Local, p.asked.Remote = slices.Clone(a.Local), slices.Clone(a.Remote)
	named := func(all []epp.Candidate, name string) int {
		return max(0, slices.IndexFunc(all, func(c epp.Candidate) bool { return c.Name == name }))
	}
	r := epp.Ruling{Verdict: p.verdict, Reason: pd.LowerCost}
	if a.Pairs {
		r.Local, r.Remote = named(a.Local, p.local), named(a.Remote, p.remote)
	}
	return r
}

// TestDeciderChoosesThePair: the scorers prefer the first of each role, and the decider others.
func TestDeciderChoosesThePair(t *testing.T) {
	pool := []string{"decode", "decode", "decode", "prefill", "prefill", "prefill", "prefill", "prefill"}
	for name, c := range map[string]struct {
		decider pairs
		decode  string
		prefill string // all of them, in their order
	}{
		"others": {pairs{local: "decode-2", remote: "prefill-6", verdict: pd.Remote}, "decode-2", "prefill-6 prefill-4 prefill-5"},
		"local":  {pairs{local: "decode-2", remote: "prefill-6", verdict: pd.Local}, "decode-2", ""},
		"first":  {pairs{verdict: pd.Remote}, "decode-0", "prefill-4 prefill-5 prefill-6"},
	} {
		t.Run(name, func(t *testing.T) {
			config := disagg()
			config.Stages[1].Decider = epp.NamedDecider{Name: "pairs", Decider: &c.decider}
			s := scheduler(t, fleet(pool...), config)
			d := mustPick(t, s, splitRequest(100))
			defer d.Reservation.End()
			if !c.decider.asked.Pairs || len(c.decider.asked.Local) != 3 || len(c.decider.asked.Remote) != 5 {
				t.Errorf("asked %+v", c.decider.asked)
			}
			if got := names(d.Endpoints(epp.StageDecode)); strings.Join(got, " ") != c.decode {
				t.Errorf("decode %v, want %s", got, c.decode)
			}
			if got := names(d.Endpoints(epp.StagePrefill)); strings.Join(got, " ") != c.prefill {
				t.Errorf("prefill %v, want %s", got, c.prefill)
			}
			explained, err := s.Explain(t.Context(), splitRequest(100))
			if err != nil {
				t.Fatal(err)
			}
			for i, stage := range []epp.Stage{epp.StageDecode, epp.StagePrefill} {
				first := &explained.Trace.Stages[i].Candidates[0]
				if all := explained.Endpoints(stage); len(all) > 0 && (first.Chosen != 1 || !strings.HasSuffix(first.Endpoint, all[0].Name) ||
					strings.Contains(first.Why, "chosen by pairs") != (name != "first")) {
					t.Errorf("%s: explained %+v", stage, first)
				}
				ranks := 0
				for _, one := range explained.Trace.Stages[i].Candidates {
					ranks = max(ranks, one.Chosen)
				}
				if n := len(explained.Endpoints(stage)); n > 0 && ranks != n {
					t.Errorf("%s: %d are explained as chosen", stage, ranks)
				}
			}
		})
	}
}

// TestPairsThatDoNotFit: the decider sees prefill pods that only some decode pods can read from, and those behind its choice can be read.
func TestPairsThatDoNotFit(t *testing.T) {
	decider := &pairs{local: "decode@2.1", remote: "prefill@2.4", verdict: pd.Remote}
	config := sglangConfig()
	config.Stages[1].Decider = epp.NamedDecider{Name: "pairs", Decider: decider}
	s := scheduler(t, versionedPool("decode@1", "decode@2", "prefill@1", "prefill@1", "prefill@2", "prefill@2"), config)
	d := mustPick(t, s, splitRequest(100))
	defer d.Reservation.End()
	if got := names(d.Endpoints(epp.StagePrefill)); len(decider.asked.Remote) != 4 || strings.Join(got, " ") != "prefill@2.4 prefill@2.5" {
		t.Errorf("prefill %v of %d", got, len(decider.asked.Remote))
	}
	explained, err := s.Explain(t.Context(), splitRequest(100))
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, c := range explained.Trace.Stages[1].Candidates {
		if strings.HasPrefix(c.Why, "dropped: the decode engine cannot read its KV caches: ") && c.Mismatch != "" {
			refused++
		}
	}
	if refused != 2 {
		t.Errorf("explained %+v", explained.Trace.Stages[1].Candidates)
	}
}

// TestPartialEnginesAreNotPaired: what the decider rules says which engines can do their part, so it gets those that the scorers choose.
func TestPartialEnginesAreNotPaired(t *testing.T) {
	decider := &pairs{verdict: pd.Remote}
	config := sglangConfig()
	config.Stages[1].Decider = epp.NamedDecider{Name: "pairs", Decider: decider}
	d := mustPick(t, scheduler(t, sglangPool("D D P"), config), splitRequest(100))
	defer d.Reservation.End()
	if decider.asked.Pairs || len(decider.asked.Local) != 1 {
		t.Errorf("asked %+v", decider.asked)
	}
}
