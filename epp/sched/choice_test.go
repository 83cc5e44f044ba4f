package sched_test

import (
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// byModel chooses stages by the model that a request asks for.
type byModel struct{ choices map[string]epp.Stages }

func (c byModel) Stages([]string) (epp.Stages, error)    { return c.choices["decode"], nil }
func (c byModel) Choices([]string) map[string]epp.Stages { return c.choices }
func (byModel) Choose(r *epp.Request) string             { return r.Model }

// TestChooser: each request is served by the stages that it asks for, and by no others.
func TestChooser(t *testing.T) {
	prefill := epp.DecodeRow("prefill")
	prefill.Stage, prefill.Role = epp.StagePrefill, pd.RolePrefill
	all := map[string]epp.Stages{"decode": {epp.DecodeRow("decode")}, "prefill": {prefill}, "both": disagg().Stages}
	for _, test := range []struct {
		name    string
		choices map[string]epp.Stages
		asks    string
		want    string   // verdict and reason
		picks   []string // the first endpoint of each stage
	}{
		{"decode", all, "decode", "local/no-prefill", []string{"decode-0"}},
		{"prefill", all, "prefill", "local/no-prefill", []string{"prefill-1"}},
		{"both", all, "both", "remote/always", []string{"decode-0", "prefill-1"}},
		{"what does not exist", all, "encode", "refused/bad-request", nil},
		{"the only one, whatever is asked for", map[string]epp.Stages{"prefill": {prefill}}, "encode", "local/no-prefill", []string{"prefill-1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, chooser := disagg(), byModel{test.choices}
			c.Chooser, c.Choices, c.Stages = chooser, test.choices, all["decode"]
			p := fleet("decode", "prefill")
			s, r := scheduler(t, p, c), splitRequest(512)
			r.Model = test.asks
			explained, _ := s.Explain(t.Context(), r)
			if told := explained.Verdict.String() + "/" + string(explained.Reason); told != test.want || explained.Trace == nil {
				t.Errorf("explained as %s, want %s", told, test.want)
			}
			d, err := s.Pick(t.Context(), r)
			if got := outcomeOf(d, err); got != test.want {
				t.Fatalf("%s, want %s", got, test.want)
			}
			if err != nil {
				return
			}
			if len(d.Picks) != len(test.picks) {
				t.Fatalf("%d stages, want %v", len(d.Picks), test.picks)
			}
			for i, want := range test.picks {
				if got := d.Picks[i].Endpoints[0].Name; got != want {
					t.Errorf("stage %d goes to %s, want %s", i, got, want)
				}
			}
			if charged := len(inFlight(p)); charged != len(test.picks) {
				t.Errorf("%d endpoints are charged, want %d", charged, len(test.picks))
			}
		})
	}
}
