package ranks

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/server"
)

// TestWideExpertParallelism: 8 pods with 16 ranks each. Load and prefix caches are those of each rank, not of its pod.
func TestWideExpertParallelism(t *testing.T) {
	p := startPool(t, fmt.Sprintf(harness.PdConfig, harness.Threshold, ""))
	t.Run("local requests", func(t *testing.T) { p.spreadsLocal(t) })
	t.Run("remote requests", func(t *testing.T) { p.spreadsRemote(t) })
	t.Run("prefixes", func(t *testing.T) { p.keepsPrefixes(t) })
}

// spreadsLocal: of so many short prompts at once that each decode rank can have two, each has about two.
func (p *pool) spreadsLocal(t *testing.T) {
	const each = 2
	release := hold(t, p.decode, fault.LegDecode)
	var calls []harness.Call
	for range each * podsOf * ranksOf {
		calls = append(calls, p.ask(p.Fresh(harness.Threshold/2), 4))
	}
	answers := p.begin(t, calls)
	p.mustHold(t, p.decode, len(calls))
	release()
	p.mustAnswer(t, calls, answers, "local")
	p.mustBeFree(t)
}

// spreadsRemote: of so many long prompts at once that each prefill rank can have two, each has about two, and most decode ranks read a
// KV cache: all of them, unless what the picker has read on metrics pages says otherwise.
func (p *pool) spreadsRemote(t *testing.T) {
	const each = 2
	release := hold(t, p.prefill, fault.LegPrefill)
	read := map[string]int64{}
	eachRank(p.decode, func(name string, e *server.Server) { read[name] = e.Engine.State().KVBytesRead })
	var calls []harness.Call
	for range each * podsOf * ranksOf {
		calls = append(calls, p.ask(p.Fresh(2*harness.Threshold), 4))
	}
	answers := p.begin(t, calls)
	p.mustHold(t, p.prefill, len(calls))
	release()
	p.mustAnswer(t, calls, answers, "remote")
	p.mustBeFree(t)
	var idle []string
	eachRank(p.decode, func(name string, e *server.Server) {
		if e.Engine.State().KVBytesRead == read[name] {
			idle = append(idle, name)
		}
	})
	if len(idle) > len(read)/4 {
		t.Errorf("%d of %d decode ranks have read no KV cache: %s", len(idle), len(read), strings.Join(idle, ", "))
	}
}

// keepsPrefixes: requests whose prompts begin alike go to the decode rank that has the beginning in its prefix cache, although the other
// ranks of its pod and all other pods are as idle. It computes the rest of the prompt itself.
func (p *pool) keepsPrefixes(t *testing.T) {
	const groups, more = 24, 3
	for group := range groups {
		beginning := p.Fresh(2 * harness.Threshold)
		first := p.served(t, p.ask(beginning, 4), "remote")
		for i := range more {
			prompt := slices.Concat(beginning, p.Fresh(harness.Threshold/4))
			if rank := p.served(t, p.ask(prompt, 4), "local"); rank != first {
				t.Errorf("group %d, request %d: %s served it, and %s has the prefix cached", group, i, rank, first)
			}
		}
	}
	p.mustBeFree(t)
}

// begin sends calls at once.
func (p *pool) begin(t *testing.T, calls []harness.Call) (answers []<-chan harness.Reply) {
	t.Helper()
	for _, c := range calls {
		answers = append(answers, harness.Begin(t, c, p.Front.Addr, p.Model))
	}
	return answers
}

// mustAnswer fails unless the answers have the tokens of a plain engine, and the verdict.
func (p *pool) mustAnswer(t *testing.T, calls []harness.Call, answers []<-chan harness.Reply, verdict string) {
	t.Helper()
	want := p.Wants(t, calls)
	for i, answer := range answers {
		got := <-answer
		harness.MustMatch(t, got, false, want[i])
		mustDecide(t, got, verdict)
	}
}

func mustDecide(t *testing.T, got harness.Reply, verdict string) {
	t.Helper()
	if d := got.Header.Get(pd.HeaderDecision); got.Status != http.StatusOK || !strings.HasPrefix(d, verdict+";") {
		t.Errorf("%d %s, want %s", got.Status, d, verdict)
	}
}

// served sends a call while nothing is in flight at the picker, and returns the decode rank that served it. A client has its answer
// before the picker has seen its end: until then, the rank that served it looks busy.
func (p *pool) served(t *testing.T, c harness.Call, verdict string) (name string) {
	t.Helper()
	p.MustRest(t)
	before := map[string]int64{}
	eachRank(p.decode, func(name string, e *server.Server) { before[name] = e.Engine.State().Requests })
	got := p.Send(t, c)
	mustDecide(t, got, verdict)
	var ranks []string
	eachRank(p.decode, func(name string, e *server.Server) {
		if e.Engine.State().Requests > before[name] {
			ranks = append(ranks, name)
		}
	})
	if len(ranks) != 1 {
		t.Fatalf("the request came to %v", ranks)
	}
	return ranks[0]
}
