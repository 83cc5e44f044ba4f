package pd_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// contract is the list of tokens that dashboards, alerts and foreign parts rely on. A token may be added or taken away
// here only together with the documented list.
var contract = map[pd.Verdict]string{
	pd.Remote: "uncached always lower-cost forced external decode-only",
	pd.Local: "below-threshold short-prompt lower-cost bypassed not-splittable unplanned no-media no-prefill prefill-failed handoff-invalid " +
		"handoff-late transfer-failed wrong-protocol",
	pd.Refused: "bad-pd-header bad-request duplicate-key not-splittable too-large long-header slow-body untrusted-peer denied-target not-cached no-endpoint " +
		"no-prefill decode-only prefill-failed saturated queue-full queue-timeout evicted budget busy draining deadline internal",
}

func contractTokens(v pd.Verdict) []pd.Reason {
	var tokens []pd.Reason
	for _, word := range strings.Fields(contract[v]) {
		tokens = append(tokens, pd.Reason(word))
	}
	return tokens
}

func TestReasonsAreTheContract(t *testing.T) {
	for v := range contract {
		got, want := slices.Clone(pd.Reasons(v)), contractTokens(v)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n got %v\nwant %v", v, got, want)
		}
	}
	if got := pd.Reasons(0); got != nil {
		t.Errorf("no verdict is explained by %v", got)
	}
}

func TestReasonExplains(t *testing.T) {
	for v := range contract {
		for other := range contract {
			for _, r := range contractTokens(other) {
				if want := slices.Contains(contractTokens(v), r); r.Explains(v) != want {
					t.Errorf("%s explains %s: got %v", r, v, !want)
				}
			}
		}
		for _, r := range []pd.Reason{"", "unknown", "Uncached", "uncached "} {
			if r.Explains(v) {
				t.Errorf("%q explains %s", r, v)
			}
		}
	}
}

func TestVerdictTokens(t *testing.T) {
	for v, want := range map[pd.Verdict]string{pd.Local: "local", pd.Remote: "remote", pd.Refused: "refused", 0: "unknown", 9: "unknown"} {
		if v.String() != want {
			t.Errorf("%d prints as %s", v, v)
		}
	}
}
