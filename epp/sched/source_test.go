package sched_test

import (
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// lastOf names the last candidate as source, of decisions with a prefill endpoint.
type lastOf struct{}

func (lastOf) Source(_ *epp.Round, all []epp.Candidate, d *epp.Decision) (*epp.Endpoint, int) {
	if len(d.Endpoints(epp.StagePrefill)) == 0 {
		return nil, 0
	}
	return all[len(all)-1].Endpoint, 64
}

// TestSource: what a plugin names is in the decision, and in the explanation.
func TestSource(t *testing.T) {
	c := disagg()
	c.Sources = []epp.SourceFinder{lastOf{}}
	s := scheduler(t, fleet("decode", "prefill", "prefill"), c)
	r := splitRequest(100)
	explained, err := s.Explain(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*epp.Decision{explained, mustPick(t, s, r)} {
		if d.PullFrom == nil || d.PullFrom.Name != "prefill-2" || d.PullTokens != 64 || d.Plan().SourceTokens != 64 {
			t.Errorf("source %v, which has %d tokens", d.PullFrom, d.PullTokens)
		}
	}
	alone := splitRequest(100)
	alone.Mode = pd.ModeBypass
	if d := mustPick(t, s, alone); d.PullFrom != nil {
		t.Errorf("the source of a request for one endpoint is %v", d.PullFrom)
	}
}
