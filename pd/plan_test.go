package pd_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// rounds is how many random values a round-trip property is tried on.
const rounds = 2000

// seeded returns a source that gives the same values in every run, so that a failure can be repeated.
func seeded() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

func oneOf[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

const plan = "remote;id=0123456789abcdef;reason=uncached;strict=0;epp=0.8"

func TestParsePlan(t *testing.T) {
	const id = "0123456789abcdef"
	cases := []struct {
		name, in string
		plan     pd.Plan
		out      string // "" = as it came in
	}{
		{"remote", plan, pd.Plan{Verdict: pd.Remote, ID: id, Reason: pd.Uncached, EPP: 800 * time.Microsecond}, ""},
		{"strict with report", "remote;id=" + id + ";reason=forced;strict=1;epp=12;report",
			pd.Plan{Verdict: pd.Remote, ID: id, Reason: pd.Forced, Strict: true, EPP: 12 * time.Millisecond, Report: true}, ""},
		{"local", "local;id=" + id + ";reason=short-prompt;strict=0;epp=0",
			pd.Plan{Verdict: pd.Local, ID: id, Reason: pd.ShortPrompt}, ""},
		{"any order, blanks", "local; report; epp=0.001; strict=0; reason=bypassed; id=" + id,
			pd.Plan{Verdict: pd.Local, ID: id, Reason: pd.Bypassed, EPP: time.Microsecond, Report: true},
			"local;id=" + id + ";reason=bypassed;strict=0;epp=0.001;report"},
		{"ranks of two of three candidates", plan + ";prefill-ranks=1,-,0;decode-rank=3",
			pd.Plan{Verdict: pd.Remote, ID: id, Reason: pd.Uncached, EPP: 800 * time.Microsecond,
				PrefillRanks: []pd.Rank{pd.RankOf(1), 0, pd.RankOf(0)}, DecodeRank: pd.RankOf(3)}, ""},
		{"what the source has", plan + ";decode-rank=3;source-tokens=1280",
			pd.Plan{Verdict: pd.Remote, ID: id, Reason: pd.Uncached, EPP: 800 * time.Microsecond, DecodeRank: pd.RankOf(3), SourceTokens: 1280}, ""},
		{"finer than a microsecond", "local;id=" + id + ";reason=bypassed;strict=0;epp=1.23456",
			pd.Plan{Verdict: pd.Local, ID: id, Reason: pd.Bypassed, EPP: 1235 * time.Microsecond},
			"local;id=" + id + ";reason=bypassed;strict=0;epp=1.235"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := pd.ParsePlan(c.in)
			if err != nil || !reflect.DeepEqual(got, c.plan) {
				t.Fatalf("got %+v, %v", got, err)
			}
			if want := cmp.Or(c.out, c.in); got.String() != want {
				t.Errorf("prints as %s, want %s", got, want)
			}
		})
	}
}

func TestParsePlanRefuses(t *testing.T) {
	change := func(old, new string) string {
		out := strings.Replace(plan, old, new, 1)
		if out == plan {
			t.Fatalf("%q is not in the plan", old)
		}
		return out
	}
	cases := []struct{ name, in, err string }{
		{"nothing", "", "begin with"},
		{"no verdict", strings.TrimPrefix(plan, "remote;"), "begin with"},
		{"an empty verdict", change("remote", ""), "begin with"},
		{"an unknown verdict", change("remote", "both"), "begin with"},
		{"a refusal", change("remote", "refused"), "begin with"},
		{"capitals", change("remote", "Remote"), "begin with"},
		{"the verdict alone", "remote", "needs id, reason, strict and epp"},
		{"no id", change(";id=0123456789abcdef", ""), "needs id"},
		{"no reason", change(";reason=uncached", ""), "needs id"},
		{"no strict", change(";strict=0", ""), "needs id"},
		{"no epp", change(";epp=0.8", ""), "needs id"},
		{"report instead of a member", change(";epp=0.8", ";report"), "needs id"},
		{"id twice", plan + ";id=0123456789abcdef", `"id" twice`},
		{"report twice", plan + ";report;report", `"report" twice`},
		{"an unknown member", plan + ";pod=a", `"pod": unknown`},
		{"a member in capitals", change("epp", "EPP"), `"EPP": unknown`},
		{"an empty member", plan + ";", "empty parameter"},
		{"two semicolons", change(";epp", ";;epp"), "empty parameter"},
		{"a member without a name", plan + ";=1", "empty parameter"},
		{"a blank before the equals sign", change("epp=", "epp ="), "unknown"},
		{"a short id", change("0123456789abcdef", "0123456789abcde"), "16 hex digits"},
		{"a long id", change("0123456789abcdef", "0123456789abcdef01"), "16 hex digits"},
		{"an id that is not hex", change("0123456789abcdef", "0123456789abcdeg"), "16 hex digits"},
		{"an id in capitals", change("abcdef", "ABCDEF"), "16 hex digits"},
		{"an empty id", change("0123456789abcdef", ""), "16 hex digits"},
		{"a reason that is not known", change("uncached", "because"), `reason "because" does not explain remote`},
		{"an empty reason", change("uncached", ""), "does not explain remote"},
		{"a reason for staying local", change("uncached", "bypassed"), "does not explain remote"},
		{"a reason for going remote", strings.Replace(plan, "remote", "local", 1), "does not explain local"},
		{"strict is a word", change("strict=0", "strict=true"), "0 or 1"},
		{"strict is a flag", change("strict=0", "strict"), "0 or 1"},
		{"strict is 2", change("strict=0", "strict=2"), "0 or 1"},
		{"epp is empty", change("epp=0.8", "epp="), "milliseconds"},
		{"epp is negative", change("0.8", "-0.8"), "milliseconds"},
		{"epp is not a number", change("0.8", "NaN"), "milliseconds"},
		{"epp is infinite", change("0.8", "Inf"), "milliseconds"},
		{"epp is more than a day", change("0.8", "86400001"), "milliseconds"},
		{"epp has a unit", change("0.8", "0.8ms"), "milliseconds"},
		{"epp has a sign", change("0.8", "+0.8"), "milliseconds"},
		{"epp has an exponent", change("0.8", "8e1"), "milliseconds"},
		{"epp is hexadecimal", change("0.8", "0x1p3"), "milliseconds"},
		{"a stage without a name", plan + ";stage-=always", "lower-case letters"},
		{"a stage with a long name", plan + ";stage-abcdefghijklmnopq=always", "lower-case letters"},
		{"a stage in capitals", plan + ";stage-Encode=always", "lower-case letters"},
		{"a stage that is local", plan + ";stage-encode=short-prompt", "does not explain remote"},
		{"a stage without a reason", plan + ";stage-encode", "does not explain remote"},
		{"a stage twice", plan + ";stage-encode=always;stage-encode=always", "twice"},
		{"no prefill rank", plan + ";prefill-ranks=", "number of a rank"},
		{"prefill ranks that name none", plan + ";prefill-ranks=-,-", "must name a rank"},
		{"more prefill ranks than candidates", plan + ";prefill-ranks=1" + strings.Repeat(",1", pd.MaxTargets), "at most"},
		{"a negative prefill rank", plan + ";prefill-ranks=-1", "number of a rank"},
		{"a rank beyond all engines", plan + ";decode-rank=4096", "number of a rank"},
		{"a rank in another form", plan + ";decode-rank=01", "number of a rank"},
		{"no decode rank", plan + ";decode-rank=-", "number of a rank"},
		{"a source without tokens", plan + ";source-tokens=0", "number of tokens"},
		{"tokens in another form", plan + ";source-tokens=+5", "number of tokens"},
		{"more tokens than any prompt", plan + ";source-tokens=1073741825", "number of tokens"},
		{"report with a value", plan + ";report=1", "takes no value"},
		{"too long", plan + strings.Repeat(" ", 512), "longer than 512 bytes"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := pd.ParsePlan(c.in)
			if err == nil || !reflect.DeepEqual(got, pd.Plan{}) {
				t.Fatalf("got %+v, %v", got, err)
			}
			if !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), pd.HeaderPlan) {
				t.Errorf("got %q, want %q in it", err, c.err)
			}
		})
	}
}

func TestPlanRoundTrip(t *testing.T) {
	r := seeded()
	for range rounds {
		v := oneOf(r, []pd.Verdict{pd.Local, pd.Remote})
		p := pd.Plan{
			Verdict: v, ID: fmt.Sprintf("%016x", r.Uint64()), Reason: oneOf(r, pd.Reasons(v)),
			Strict: r.IntN(2) == 0, EPP: time.Duration(r.Int64N(24*3600*1e6)) * time.Microsecond, Report: r.IntN(2) == 0,
		}
		for _, name := range []string{"encode", "re-rank"}[:r.IntN(3)] {
			p.Stages = append(p.Stages, pd.PlanStage{Name: name, Reason: oneOf(r, pd.Reasons(pd.Remote))})
		}
		for range r.IntN(3) {
			p.PrefillRanks = append(p.PrefillRanks, pd.RankOf(r.IntN(8)))
		}
		if p.PrefillRanks != nil && r.IntN(2) == 0 {
			p.PrefillRanks = append(p.PrefillRanks, 0)
		}
		p.DecodeRank = pd.RankOf(r.IntN(9) - 1)
		if back, err := pd.ParsePlan(p.String()); err != nil || !reflect.DeepEqual(back, p) {
			t.Fatalf("%+v prints as %s, which is %+v, %v", p, p, back, err)
		}
	}
}

// stable fails if what was parsed does not print as something that parses to the same again.
func stable[T fmt.Stringer](t *testing.T, in string, v T, parse func(string) (T, error)) {
	t.Helper()
	if back, err := parse(v.String()); err != nil || !reflect.DeepEqual(back, v) {
		t.Fatalf("%q is %+v, prints as %q, which is %+v, %v", in, v, v, back, err)
	}
}

func FuzzPlan(f *testing.F) {
	f.Add(plan)
	f.Add("local; report; epp=1e3; strict=1; reason=bypassed; id=0123456789abcdef")
	f.Add("remote;;id=")
	f.Add(plan + ";prefill-ranks=0,-;decode-rank=1")
	f.Add(plan + ";source-tokens=64")
	f.Fuzz(func(t *testing.T, in string) {
		p, err := pd.ParsePlan(in)
		if err != nil {
			return
		}
		if !p.Reason.Explains(p.Verdict) || len(p.ID) != 16 || p.EPP < 0 {
			t.Fatalf("%q is %+v", in, p)
		}
		stable(t, in, p, pd.ParsePlan)
	})
}
