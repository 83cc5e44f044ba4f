package doctor

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
)

// TestCounted: what a picker's metrics page says about its counts of tokens.
func TestCounted(t *testing.T) {
	checked := func(model, by, result string, n float64) promtext.Series {
		return promtext.Series{Name: checkedTokens, Value: n, Labels: map[string]string{"producer": "token-producer", "model": model, "by": by, "result": result}}
	}
	for name, c := range map[string]struct {
		page promtext.Page
		want verdict
		seen string
	}{
		"equal":             {promtext.Page{checked("a", "local", "exact", 90), checked("a", "local", "off", 0)}, ok, "90 prompts"},
		"a few differ":      {promtext.Page{checked("a", "local", "exact", 99), checked("a", "local", "off", 1)}, ok, "100 prompts"},
		"one model differs": {promtext.Page{checked("a", "local", "exact", 900), checked("b", "local", "off", 7), checked("b", "local", "exact", 3)}, warn, "b (local): 7 of 10 prompts"},
		"a service":         {promtext.Page{checked("", "service", "off", 5)}, warn, "all models (service): 5 of 5"},
		"nothing reported":  {promtext.Page{checked("a", "local", "exact", 0), checked("a", "local", "off", 0)}, unknown, "no answer has reported"},
	} {
		if got := counted(c.page); got.verdict != c.want || !strings.Contains(got.seen, c.seen) {
			t.Errorf("%s: %s %q, want %s %q", name, got.verdict, got.seen, c.want, c.seen)
		}
	}
}
