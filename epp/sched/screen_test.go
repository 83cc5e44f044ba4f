package sched_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Screen has a filter by a condition screen.
func (f only) Screen(r *epp.Round, c []epp.Candidate) []epp.Candidate { return f.Filter(r, c) }

// TestScreeners: what a screener drops is a candidate of no stage, and explanations say so.
func TestScreeners(t *testing.T) {
	named := func(parts ...string) only {
		return func(_ *epp.Round, c *epp.Candidate) bool { return slices.Contains(parts, c.Name) }
	}
	for _, test := range []struct {
		name      string
		screeners []epp.NamedScreener
		want      string
		picks     []string // of each stage, the first endpoint
		screened  string   // screener and endpoints, as explained
	}{
		{"none", nil, "remote/always", nil, ""},
		{"one", []epp.NamedScreener{{Name: "one", Screener: named("decode-1", "prefill-2")}}, "remote/always", []string{"decode-1", "prefill-2"},
			"one: default/decode-0 default/prefill-3"},
		{"two", []epp.NamedScreener{{Name: "one", Screener: named("decode-1", "prefill-2", "prefill-3")}, {Name: "two", Screener: named("decode-1", "prefill-3")}},
			"remote/always", []string{"decode-1", "prefill-3"}, "one: default/decode-0; two: default/prefill-2"},
		{"no prefill endpoint is left", []epp.NamedScreener{{Name: "one", Screener: named("decode-0")}}, "local/no-prefill", []string{"decode-0"},
			"one: default/decode-1 default/prefill-2 default/prefill-3"},
		{"nothing is left", []epp.NamedScreener{{Name: "one", Screener: named()}}, "refused/no-endpoint", nil,
			"one: default/decode-0 default/decode-1 default/prefill-2 default/prefill-3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := disagg()
			c.Screeners = test.screeners
			s := scheduler(t, fleet("decode", "decode", "prefill", "prefill"), c)
			explained, refused := s.Explain(t.Context(), splitRequest(512))
			var told []string
			for _, run := range explained.Trace.Screened {
				told = append(told, run.Screener+": "+strings.Join(run.Endpoints, " "))
			}
			if got := strings.Join(told, "; "); got != test.screened {
				t.Errorf("explained as %q, want %q", got, test.screened)
			}
			d, err := s.Pick(t.Context(), splitRequest(512))
			if got := outcomeOf(d, err); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			if err != nil {
				if !strings.Contains(pd.AsRefusal(err).Error(), `"one"`) || refused == nil {
					t.Errorf("refused as %v, want the screener's name", err)
				}
				return
			}
			for i, want := range test.picks {
				if got := d.Picks[i].Endpoints[0].Name; got != want {
					t.Errorf("stage %d goes to %s, want %s", i, got, want)
				}
			}
		})
	}
}
