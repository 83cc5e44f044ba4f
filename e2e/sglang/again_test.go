package sglang_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// testAgain breaks streams of the decode engine off: the sidecar of another decode pod runs both legs again, and the client reads what an
// undisturbed engine says. The engine of the other pod is the same one, which cannot tell.
func testAgain(t *testing.T, e *engines) {
	peer := startSidecar(t, e.decode.Address()).Addr("http")
	cut := harness.NewCutter(t, e.decode.Address())
	s := startSidecar(t, cut.Addr, "--continue-times=1", "--continue-burst=1000")
	const tokens = 40
	for _, api := range []pd.API{pd.APIChat, pd.APICompletions} {
		for name, members := range map[string]map[string]any{
			"greedy":               {},
			"a regular expression": {"regex": "[a-z]{300}"},
			"penalties":            {"frequency_penalty": 0.5},
		} {
			t.Run(fmt.Sprintf("%s, %s", api, name), func(t *testing.T) {
				a := newAsk(api, 70, tokens, true).with(members).with(map[string]any{"return_token_ids": false}) // an event cannot be cut within its ids
				want := a.at(t, e.plain.Address())
				want.Usage = ownCache.ReplaceAll(want.Usage, nil)
				for at := 1; at < tokens; at += 6 {
					cut.After.Store(int64(at))
					got := a.from(e.prefill.Address()).told(pd.HeaderDestination, cut.Addr+","+peer).told("TE", "trailers").at(t, s.Addr("http"))
					got.Usage = ownCache.ReplaceAll(got.Usage, nil)
					mustEqual(t, a, got, want)
					if moved := got.Trailer.Get(pd.HeaderContinued); moved != "1" && at < tokens/2 { // a busy engine has several tokens in one event
						t.Errorf("broken off after %d events: moved %q times", at, moved)
					}
				}
			})
		}
	}
	e.mustRest(t, restWithin)
}

// ownCache is what the usage says of an engine's cache.
var ownCache = regexp.MustCompile(`"prompt_tokens_details":\{[^}]*\},?`)
