package pd_test

import (
	"math"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestParseOutcome(t *testing.T) {
	cases := []struct {
		in      string
		outcome pd.AnswerSummary
	}{
		{"done;prompt=100;cached=96;completion=300", pd.AnswerSummary{End: pd.EndDone, Prompt: 100, Cached: 96, Completion: 300}},
		{"done;prompt=0;cached=0;completion=0", pd.AnswerSummary{End: pd.EndDone}},
		{"error", pd.AnswerSummary{End: pd.EndError, Prompt: -1, Cached: -1, Completion: -1}},
		{"aborted;completion=7", pd.AnswerSummary{End: pd.EndAborted, Prompt: -1, Cached: -1, Completion: 7}},
	}
	for _, c := range cases {
		got, err := pd.ParseAnswerSummary(c.in)
		if err != nil || got != c.outcome || got.String() != c.in {
			t.Errorf("%s: got %+v, which prints as %s, %v", c.in, got, got, err)
		}
	}
}

// TestZeroOutcomeIsAborted: an answer that no code path has ended was aborted, and the zero value must say so.
func TestZeroOutcomeIsAborted(t *testing.T) {
	var o pd.AnswerSummary
	if o.End != pd.EndAborted || !strings.HasPrefix(o.String(), "aborted") {
		t.Errorf("the zero value is %s", o)
	}
}

func TestParseOutcomeRefuses(t *testing.T) {
	cases := []struct{ name, in, err string }{
		{"nothing", "", "begin with"},
		{"an unknown end", "finished;prompt=1", "begin with"},
		{"counts without an end", "prompt=1;cached=0", "begin with"},
		{"capitals", "Done", "begin with"},
		{"a count twice", "done;prompt=1;prompt=1", `"prompt" twice`},
		{"an unknown count", "done;total=1", `"total": unknown`},
		{"an empty member", "done;", "empty parameter"},
		{"a count without a value", "done;prompt", "number of tokens"},
		{"a negative count", "done;prompt=-1", "number of tokens"},
		{"a count with a sign", "done;prompt=+1", "number of tokens"},
		{"minus nothing", "done;prompt=-0", "number of tokens"},
		{"a fraction", "done;prompt=1.0", "number of tokens"},
		{"beyond integers", "done;prompt=9223372036854775808", "number of tokens"},
		{"too long", "done" + strings.Repeat(" ", 512), "longer than 512 bytes"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := pd.ParseAnswerSummary(c.in)
			if err == nil || got != (pd.AnswerSummary{}) {
				t.Fatalf("got %+v, %v", got, err)
			}
			if !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), pd.HeaderOutcome) {
				t.Errorf("got %q, want %q in it", err, c.err)
			}
		})
	}
}

func TestOutcomeRoundTrip(t *testing.T) {
	r := seeded()
	count := func() int64 { return oneOf(r, []int64{-1, 0, r.Int64N(1 << 20), math.MaxInt64}) }
	for range rounds {
		o := pd.AnswerSummary{End: oneOf(r, []pd.End{pd.EndAborted, pd.EndDone, pd.EndError}), Prompt: count(), Cached: count(), Completion: count()}
		if back, err := pd.ParseAnswerSummary(o.String()); err != nil || back != o {
			t.Fatalf("%+v prints as %s, which is %+v, %v", o, o, back, err)
		}
	}
}

func FuzzOutcome(f *testing.F) {
	f.Add("done;prompt=100;cached=96;completion=300")
	f.Add("error; completion=0")
	f.Fuzz(func(t *testing.T, in string) {
		o, err := pd.ParseAnswerSummary(in)
		if err != nil {
			return
		}
		if min(o.Prompt, o.Cached, o.Completion) < -1 {
			t.Fatalf("%q is %+v", in, o)
		}
		stable(t, in, o, pd.ParseAnswerSummary)
	})
}
