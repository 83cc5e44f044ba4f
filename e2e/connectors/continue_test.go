package connectors_test

import (
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/pd"
)

// testGoesOn breaks streams of the decode engine off. Another engine goes on, and the client reads what an undisturbed one says.
func testGoesOn(t *testing.T, p *pair) {
	cut := harness.NewCutter(t, p.decode.Address())
	s := p.sidecar(t, cut.Addr, "--continue-times=1", "--continue-burst=1000")
	const tokens = 40
	for _, api := range []pd.API{pd.APICompletions, pd.APIChat} {
		t.Run(api.String(), func(t *testing.T) {
			call := newCall(api, 100, tokens, true)
			want := p.want(t, call)
			call.Header = map[string]string{pd.HeaderDestination: cut.Addr + "," + p.plain.Address(), "TE": "trailers"}
			for at := 2; at < tokens; at += 7 {
				cut.After.Store(int64(at))
				got := harness.MustSend(t, call.Remote(p.prefill.Address()), s, realengine.Model)
				mustEqual(t, call, got, want)
				if moved := got.Trailer.Get(pd.HeaderContinued); moved != "1" {
					t.Errorf("broken off after %d events: moved %q times", at, moved)
				}
			}
		})
	}
}
