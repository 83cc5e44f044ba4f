package epp_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// TestOutcomeTTFT: the time to the first token is that of the phases before it, once the sidecar has told that it has come.
func TestOutcomeTTFT(t *testing.T) {
	for _, tc := range []struct {
		name, timing string
		want         time.Duration // 0: not known
	}{
		{"a local stream, at its headers", "epp;dur=2, recv;dur=1", 0},
		{"a local answer", "epp;dur=2, recv;dur=1, first;dur=30, decode;dur=900", 33 * time.Millisecond},
		{"a hand-off", "epp;dur=2, recv;dur=1, encode;dur=7, prefill;dur=100, handoff;dur=4, first;dur=20", 134 * time.Millisecond},
		{"both legs at once", "epp;dur=2, recv;dur=1, prefill;dur=100, first;dur=120, overlap;dur=90", 133 * time.Millisecond},
	} {
		phases, err := pd.ParseTiming(tc.timing)
		if err != nil {
			t.Fatal(err)
		}
		o := epp.Outcome{Phases: &phases}
		if got, ok := o.TTFT(); got != tc.want || ok != (tc.want > 0) {
			t.Errorf("%s: %v, %v; want %v", tc.name, got, ok, tc.want)
		}
	}
	if got, ok := (&epp.Outcome{}).TTFT(); ok {
		t.Errorf("%v of an answer without a report", got)
	}
}
