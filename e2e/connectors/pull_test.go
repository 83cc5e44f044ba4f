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

// warmed returns a call whose prompt an engine has computed alone, and the plain engine's answer.
func (p *pair) warmed(t *testing.T, e *realengine.Engine, api pd.API, stream bool) (c harness.Call, source func(vllm.Role) harness.Call) {
	t.Helper()
	c = newCall(api, 1000, 8, stream)
	if first := harness.MustSend(t, c, e.Address(), realengine.Model); first.Status != http.StatusOK {
		t.Fatalf("the engine answers %d %s", first.Status, first.Body)
	}
	return c, func(role vllm.Role) harness.Call {
		named := c
		named.Header = map[string]string{pd.HeaderSource: sourceOf(role)}
		return named
	}
}

// testPrefillPulls: the prefill engine fetches what the decode engine has, and computes the rest.
func testPrefillPulls(t *testing.T, p *pair) {
	s := p.sidecar(t, p.decode.Address())
	for _, api := range harness.SplitAPIs() {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			t.Run(api.String(), func(t *testing.T) {
				c, source := p.warmed(t, p.decode, api, stream)
				before := transferred(t, p.prefill)
				got := harness.MustSend(t, source(vllm.Decode).Remote(p.prefill.Address()), s, realengine.Model)
				mustEqual(t, c, got, p.want(t, c))
				mustBe(t, got, pd.Remote)
				if moved := transferred(t, p.prefill) - before; moved < 800 {
					t.Errorf("prefill got %v tokens of the prompt from decode's memory", moved)
				}
			})
		})
	}
	p.mustRest(t, restWithin)
}

// testDecodePulls: an engine that serves a request alone fetches what the prefill engine has.
func testDecodePulls(t *testing.T, p *pair) {
	s := p.sidecar(t, p.decode.Address())
	for _, api := range harness.SplitAPIs() {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			t.Run(api.String(), func(t *testing.T) {
				c, source := p.warmed(t, p.prefill, api, stream)
				before := transferred(t, p.decode)
				got := harness.MustSend(t, source(vllm.Prefill), s, realengine.Model)
				mustEqual(t, c, got, p.want(t, c))
				mustBe(t, got, pd.Local)
				if moved := transferred(t, p.decode) - before; moved < 800 {
					t.Errorf("decode got %v tokens of the prompt from prefill's memory", moved)
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
