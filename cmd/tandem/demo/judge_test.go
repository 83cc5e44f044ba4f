package demo

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/pd"
)

// sound is what a run without any fault sees: a local request and a remote one of two and a half blocks.
func sound() evidence {
	tokens := make([]int, answerTokens)
	local := exchange{question: question{number: 1, api: pd.APIChat}}
	local.decision = pd.Decision{Verdict: pd.Local, Reason: pd.BelowThreshold}
	remote := exchange{question: question{number: 2, api: pd.APICompletions, stream: true, remote: true}, kvBytes: 3 * 100}
	remote.decision = pd.Decision{Verdict: pd.Remote, Reason: pd.Uncached, Attempts: 1}
	for _, x := range []*exchange{&local, &remote} {
		x.generated = slices.Clone(tokens)
		x.reference = answer{prompt: make([]int, 2*blockSize+blockSize/2), generated: tokens}
		for ph := range pd.Phase(pd.PhaseCount) {
			if wantPhase(x.decision, ph) {
				x.phases.Set(ph, time.Millisecond)
			}
		}
		x.took = x.phases.Sum() + 100*time.Microsecond
	}
	e := evidence{exchanges: []exchange{local, remote}, blockBytes: 100}
	e.prefill.Released = 1
	return e
}

func TestJudge(t *testing.T) {
	const (
		decisions = "decisions as planned"
		tokens    = "tokens equal to an undisturbed engine's"
		moved     = "KV bytes moved"
		stranded  = "blocks stranded"
		phases    = "phases add up to the measured time"
		end       = "everything started has ended"
	)
	local := func(e *evidence) *exchange { return &e.exchanges[0] }
	remote := func(e *evidence) *exchange { return &e.exchanges[1] }
	tests := []struct {
		name   string
		spoil  func(e *evidence)
		broken []string
	}{
		{"nothing wrong", func(*evidence) {}, nil},
		{"prefilled locally", func(e *evidence) { remote(e).decision.Reason = pd.Always }, []string{decisions}},
		{"second attempt", func(e *evidence) { remote(e).decision.Attempts = 2 }, []string{decisions}},
		{"other token", func(e *evidence) { remote(e).generated[15]++ }, []string{tokens}},
		{"one token less", func(e *evidence) {
			remote(e).generated = remote(e).generated[1:]
			remote(e).reference.generated = remote(e).generated
		}, []string{tokens}},
		{"no answer", func(e *evidence) { local(e).failure = errors.New("status 500") }, []string{decisions, tokens, phases}},
		{"block not moved", func(e *evidence) { remote(e).kvBytes -= 100 }, []string{moved}},
		{"moved for the wrong request", func(e *evidence) { local(e).kvBytes, remote(e).kvBytes = 300, 0 }, []string{moved}},
		{"nothing remote", func(e *evidence) { e.exchanges = e.exchanges[:1] }, []string{moved}},
		{"blocks held by prefill", func(e *evidence) { e.prefill.Blocks.Used = 1 }, []string{stranded}},
		{"blocks held by decode", func(e *evidence) { e.decode.Blocks.Used = 1 }, []string{stranded}},
		{"lease ran out", func(e *evidence) { e.prefill.Expired = 1 }, []string{stranded}},
		{"phase missing", func(e *evidence) { remote(e).phases = pd.Phases{} }, []string{phases}},
		{"phase too many", func(e *evidence) { local(e).phases.Set(pd.PhasePrefill, 0) }, []string{phases}},
		{"more than measured", func(e *evidence) { local(e).took = time.Millisecond }, []string{phases}},
		{"time unaccounted for", func(e *evidence) { local(e).took = time.Second }, []string{phases}},
		{"did not end", func(e *evidence) { e.ended = errors.New("killed") }, []string{end}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			seen := sound()
			test.spoil(&seen)
			r := judge(seen)
			var broken []string
			for _, p := range r.Promises {
				if !p.Kept {
					broken = append(broken, p.Name)
				}
			}
			if !slices.Equal(broken, test.broken) {
				t.Errorf("broken: %q, want %q", broken, test.broken)
			}
			exit, failed := errors.AsType[boot.Exit](r.err())
			if failed != (test.broken != nil) || failed && exit.Code != boot.CodeFailed {
				t.Errorf("error %v", r.err())
			}
			for _, name := range test.broken {
				if !strings.Contains(r.err().Error(), name) || !strings.Contains(r.text(), "FAILED  "+name) {
					t.Errorf("%q is not named in %v or\n%s", name, r.err(), r.text())
				}
			}
		})
	}
}

func TestTextFitsTheScreen(t *testing.T) {
	seen := sound()
	x := &seen.exchanges[1]
	x.decision = pd.Decision{Verdict: pd.Local, Reason: pd.HandoffInvalid, Attempts: 1}
	x.took, x.kvBytes = 999*time.Millisecond, 9999<<10
	r := judge(seen)
	lines := strings.Split(r.text(), "\n")
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if len(lines[0]) != len(lines[1]) || len(lines[1]) != len(lines[2]) {
		t.Errorf("not aligned:\n%s", r.text())
	}
}

func TestTextNamesFailures(t *testing.T) {
	seen := sound()
	seen.exchanges[0].failure = errors.New("status 503: busy")
	r := judge(seen)
	if !strings.Contains(r.text(), "\nrequest 1: status 503: busy\n") {
		t.Errorf("the failure is not named:\n%s", r.text())
	}
}

func TestJSON(t *testing.T) {
	seen := sound()
	seen.exchanges[0].failure = errors.New("status 503")
	r := judge(seen)
	var b strings.Builder
	if err := r.write(&b, true); err != nil {
		t.Fatal(err)
	}
	var got struct {
		OK       bool
		Requests []jsonRow
		Promises []promise
	}
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
		t.Fatal(err)
	}
	if got.OK || len(got.Requests) != 2 || len(got.Promises) != 6 {
		t.Fatalf("%s", b.String())
	}
	if got.Requests[0].Error != "status 503" || got.Requests[0].Decision != "" {
		t.Errorf("failed request: %+v", got.Requests[0])
	}
	remote := got.Requests[1]
	if remote.KVBytes != 300 || remote.WantedKVBytes != 300 || remote.Phases["handoff"] != 1 || remote.Total != 5.1 {
		t.Errorf("remote request: %+v", remote)
	}
}
