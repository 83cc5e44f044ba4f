package pd_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestParseDecision(t *testing.T) {
	cases := []struct {
		in       string
		decision pd.Result
	}{
		{"remote;reason=uncached;attempts=1;candidate=0", pd.Result{Verdict: pd.Remote, Reason: pd.Uncached, Attempts: 1}},
		{"remote;reason=always", pd.Result{Verdict: pd.Remote, Reason: pd.Always}},
		{"local;reason=prefill-failed;attempts=3;candidate=2", pd.Result{Verdict: pd.Local, Reason: pd.PrefillFailed, Attempts: 3, Candidate: 2}},
		{"local;reason=bypassed", pd.Result{Verdict: pd.Local, Reason: pd.Bypassed}},
		{"refused;reason=saturated", pd.Result{Verdict: pd.Refused, Reason: pd.Saturated}},
		{"refused;reason=prefill-failed;attempts=1000;candidate=999", pd.Result{Verdict: pd.Refused, Reason: pd.PrefillFailed, Attempts: 1000, Candidate: 999}},
	}
	for _, c := range cases {
		got, err := pd.ParseResult(c.in)
		if err != nil || got != c.decision || got.String() != c.in {
			t.Errorf("%s: got %+v, which prints as %s, %v", c.in, got, got, err)
		}
	}
}

func TestParseDecisionRefuses(t *testing.T) {
	const good = "remote;reason=uncached"
	cases := []struct{ name, in, err string }{
		{"nothing", "", "begin with"},
		{"no verdict", "reason=uncached", "begin with"},
		{"an unknown verdict", "unknown;reason=uncached", "begin with"},
		{"no reason", "remote", "does not explain remote"},
		{"an empty reason", "remote;reason=", "does not explain remote"},
		{"an unknown reason", "remote;reason=luck", "does not explain remote"},
		{"the reason of another verdict", "local;reason=uncached", "does not explain local"},
		{"a local reason for a refusal", "refused;reason=bypassed", "does not explain refused"},
		{"the reason twice", good + ";reason=uncached", `"reason" twice`},
		{"an unknown member", good + ";pod=10.0.0.7", `"pod": unknown`},
		{"an empty member", good + ";;attempts=1", "empty parameter"},
		{"attempts without a number", good + ";attempts;candidate=0", "count"},
		{"attempts negative", good + ";attempts=-1;candidate=0", "count"},
		{"attempts with a sign", good + ";attempts=+1;candidate=0", "count"},
		{"attempts a fraction", good + ";attempts=1.5;candidate=0", "count"},
		{"attempts beyond all bounds", good + ";attempts=1001;candidate=0", "count"},
		{"attempts beyond integers", good + ";attempts=99999999999999999999;candidate=0", "count"},
		{"candidate minus nothing", good + ";attempts=1;candidate=-0", "count"},
		{"attempts without a candidate", good + ";attempts=1", "attempts and candidate"},
		{"a candidate without attempts", good + ";candidate=1", "attempts and candidate"},
		{"a candidate of no attempts", good + ";attempts=0;candidate=1", "attempts and candidate"},
		{"too long", good + strings.Repeat(" ", 512), "longer than 512 bytes"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := pd.ParseResult(c.in)
			if err == nil || got != (pd.Result{}) {
				t.Fatalf("got %+v, %v", got, err)
			}
			if !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), pd.HeaderDecision) {
				t.Errorf("got %q, want %q in it", err, c.err)
			}
		})
	}
}

func TestDecisionRoundTrip(t *testing.T) {
	r := seeded()
	for range rounds {
		v := oneOf(r, []pd.Verdict{pd.Local, pd.Remote, pd.Refused})
		d := pd.Result{Verdict: v, Reason: oneOf(r, pd.Reasons(v)), Attempts: r.IntN(1001)}
		if d.Attempts > 0 {
			d.Candidate = r.IntN(1001)
		}
		if back, err := pd.ParseResult(d.String()); err != nil || back != d {
			t.Fatalf("%+v prints as %s, which is %+v, %v", d, d, back, err)
		}
	}
}

func FuzzDecision(f *testing.F) {
	f.Add("remote;reason=uncached;attempts=1;candidate=0")
	f.Add("local; candidate=2; attempts=3; reason=prefill-failed")
	f.Add("refused;reason=budget;attempts=0")
	f.Fuzz(func(t *testing.T, in string) {
		d, err := pd.ParseResult(in)
		if err != nil {
			return
		}
		if !d.Reason.Explains(d.Verdict) || d.Attempts < 0 || d.Candidate < 0 {
			t.Fatalf("%q is %+v", in, d)
		}
		stable(t, in, d, pd.ParseResult)
	})
}
