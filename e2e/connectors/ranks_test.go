package connectors_test

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/pd"
)

// testPlannedRanks has each rank that the prefill engine has behind its one port compute prompts for each rank of the decode engine, and
// each decode rank serve a prompt alone, as the picker's plan says.
func testPlannedRanks(t *testing.T, p *pair) {
	const tokens = 100
	s := p.sidecar(t, p.decode.Address())
	// serve sends a request with a plan, and waits until one rank of each engine has got all tokens of the prompt as it should.
	serve := func(t *testing.T, c harness.Call, plan string, verdict pd.Verdict, from ...rankSource) {
		t.Helper()
		if c.Header = map[string]string{pd.HeaderPlan: plan}; verdict == pd.Remote {
			c = c.Remote(p.prefill.Address())
		}
		before := make([]float64, len(from))
		for i, r := range from {
			before[i] = r.tokens(t)
		}
		got := harness.MustSend(t, c, s, realengine.Model)
		mustEqual(t, c, got, p.want(t, c))
		mustBe(t, got, verdict)
		for i, r := range from {
			await(t, fmt.Sprintf("rank %d counts %s", r.rank, r.source), restWithin, func() bool { return r.tokens(t)-before[i] == tokens })
		}
	}
	harness.BothForms(t, func(t *testing.T, stream bool) {
		for decode := range 2 {
			for prefill := range 2 {
				serve(t, newCall(pd.APICompletions, tokens, 8, stream),
					fmt.Sprintf("remote;id=0123456789abcdef;reason=uncached;strict=0;epp=1;prefill-ranks=%d;decode-rank=%d", prefill, decode), pd.Remote,
					rankSource{p.prefill, prefill, "local_compute"}, rankSource{p.decode, decode, "external_kv_transfer"})
			}
			serve(t, newCall(pd.APICompletions, tokens, 8, stream),
				fmt.Sprintf("local;id=0123456789abcdef;reason=short-prompt;strict=0;epp=1;decode-rank=%d", decode), pd.Local,
				rankSource{p.decode, decode, "local_compute"})
		}
	})
	p.mustRest(t, restWithin)
}

// rankSource is where a rank of an engine gets tokens of prompts from, as the engine's metrics name it.
type rankSource struct {
	engine *realengine.Engine
	rank   int
	source string
}

// tokens returns how many tokens came from there.
func (r rankSource) tokens(t *testing.T) float64 {
	t.Helper()
	resp, err := harness.Client.Get("http://" + r.engine.Address() + "/metrics")
	must(t, err)
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	must(t, err)
	_, rest, ok := strings.Cut(string(page), fmt.Sprintf("\nvllm:prompt_tokens_by_source_total{engine=\"%d\",model_name=\"%s\",source=\"%s\"} ", r.rank, realengine.Model, r.source))
	if !ok {
		t.Fatalf("no tokens of rank %d from %s", r.rank, r.source)
	}
	value, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseFloat(value, 64)
	must(t, err)
	return n
}
