package doctor

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
)

// TestHeard: what a picker's metrics page says about the KV events that it gets.
func TestHeard(t *testing.T) {
	one := func(name string, value float64, labels ...string) promtext.Series {
		s := promtext.Series{Name: name, Value: value, Labels: map[string]string{}}
		for i := 0; i < len(labels); i += 2 {
			s.Labels[labels[i]] = labels[i+1]
		}
		return s
	}
	connected, waiting := one("tandem_prefix_sources", 3, "state", "connected"), one("tandem_prefix_sources", 1, "state", "waiting")
	for name, c := range map[string]struct {
		page promtext.Page
		want verdict
		seen string
	}{
		"all is well":    {promtext.Page{connected, one("tandem_prefix_mismatch_total", 0, "kind", "parents")}, ok, "3 engines"},
		"not connected":  {promtext.Page{connected, waiting}, fail, "1 of 4"},
		"unknown":        {promtext.Page{connected, one("tandem_prefix_engines_unknown", 2)}, fail, "where 2 engines publish"},
		"mismatch":       {promtext.Page{connected, one("tandem_prefix_mismatch_total", 1, "kind", "cached-tokens")}, warn, "cached-tokens"},
		"no token ids":   {promtext.Page{connected, one("tandem_prefix_prompts_total", 0, "ids", "known"), one("tandem_prefix_prompts_total", 9, "ids", "unknown")}, warn, "no request had token ids"},
		"some token ids": {promtext.Page{connected, one("tandem_prefix_prompts_total", 1, "ids", "known"), one("tandem_prefix_prompts_total", 9, "ids", "unknown")}, ok, ""},
		"cold":           {promtext.Page{connected, one("tandem_prefix_events_earlier_total", 8)}, ok, "3 engines (or ranks) are heard; not known: what they stored in 8 messages"},
		"lost":           {promtext.Page{connected, one("tandem_prefix_events_lost_total", 7)}, warn, "7 messages were lost"},
	} {
		if got := heard(c.page); got.verdict != c.want || !strings.Contains(got.seen, c.seen) {
			t.Errorf("%s: %s %q, want %s %q", name, got.verdict, got.seen, c.want, c.seen)
		}
	}
}
