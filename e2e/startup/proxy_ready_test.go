package startup

import (
	"net/http"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
)

// TestProxyAwaitsPicker starts Envoy before its picker takes connections, as happens when all are installed at once: when
// Envoy is ready it knows the endpoints, and the first request is served.
func TestProxyAwaitsPicker(t *testing.T) {
	const refused = 8 // connections; Envoy asks for endpoints and for the picker's health about once a second each
	f := harness.NewFleet(t, 1, 1)
	g := harness.NewGate(t, f.StartPicker(t).Addr("extproc"), harness.Requests)
	g.Refused.Store(refused)
	bootstrap, err := harness.Output("tandem", "envoy-config", "--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0", "--epp-plaintext",
		"--epp="+g.Addr)
	if err != nil {
		t.Fatal(err)
	}
	f.Front = harness.StartEnvoy(t, bootstrap)
	if got := f.Send(t, f.TokensCall(harness.Threshold/2, false)); got.Status != http.StatusOK {
		t.Errorf("the first request of an Envoy that said that it is ready: status %d: %s", got.Status, got.Body)
	}
	if left := g.Refused.Load(); left > 0 {
		t.Errorf("%d connections less than expected were refused", left)
	}
}
