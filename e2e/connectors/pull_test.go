package connectors_test

import (
	"net/http"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/vllm"
	"github.com/tandem-serving/tandem/pd"
)

// sourceOf returns the header value that names an engine of the pair as the one with blocks. The port does not matter.
func sourceOf(role vllm.Role) string { return tierHosts[role].String() + ":8000" }

// testPrefillPulls: the prefill engine fetches what the decode engine has, and computes the rest.
func testPrefillPulls(t *testing.T, p *pair) {
	p.mustPull(t, p.prefill, p.decode, vllm.Decode, pd.Remote)
}

// testDecodePulls: an engine that serves a request alone fetches what the prefill engine has.
func testDecodePulls(t *testing.T, p *pair) {
	p.mustPull(t, p.decode, p.prefill, vllm.Prefill, pd.Local)
}

// mustPull has a source compute prompts alone, and then the sidecar serve them, in every API: by a hand-off or not. It fails unless the
// engine that computes the prompt fetches most of it from the source.
func (p *pair) mustPull(t *testing.T, computes, source *realengine.Engine, role vllm.Role, how pd.Verdict) {
	t.Helper()
	s := p.sidecar(t, p.decode.Address())
	for _, api := range harness.SplitAPIs() {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			t.Run(api.String(), func(t *testing.T) {
				c := newCall(api, 1000, 8, stream)
				if alone := harness.MustSend(t, c, source.Address(), realengine.Model); alone.Status != http.StatusOK {
					t.Fatalf("the source answers %d %s", alone.Status, alone.Body)
				}
				before := transferred(t, computes)
				c.Header = map[string]string{pd.HeaderSource: sourceOf(role)}
				if how == pd.Remote {
					c = c.Remote(p.prefill.Address())
				}
				got := harness.MustSend(t, c, s, realengine.Model)
				mustEqual(t, c, got, p.want(t, c))
				mustBe(t, got, how)
				if moved := transferred(t, computes) - before; moved < 800 { // chats have 900 tokens
					t.Errorf("%v tokens of the prompt came from the source's memory", moved)
				}
			})
		})
	}
	p.mustRest(t, restWithin)
}

// testPullFromTheDead: the engines are not sent to an address where none listens, and go on handing over.
func testPullFromTheDead(t *testing.T, p *pair) {
	s := p.sidecar(t, p.decode.Address())
	for range 3 {
		c := newCall(pd.APICompletions, 1000, 8, false)
		c.Header = map[string]string{pd.HeaderSource: "127.0.0.3:8000"}
		before := transferred(t, p.decode)
		got := harness.MustSend(t, c.Remote(p.prefill.Address()), s, realengine.Model)
		mustEqual(t, c, got, p.want(t, c))
		mustBe(t, got, pd.Remote)
		if moved := transferred(t, p.decode) - before; moved < 800 {
			t.Errorf("decode got %v tokens of the prompt from prefill", moved)
		}
	}
	p.mustRest(t, restWithin)
}
