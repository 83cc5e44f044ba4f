package e2e

import (
	"net/http"
	"testing"
)

// TestProxyAwaitsPicker starts Envoy before its picker takes connections, as happens when all are installed at once: when
// Envoy is ready it knows the endpoints, and the first request is served.
func TestProxyAwaitsPicker(t *testing.T) {
	const refused = 8 // connections; Envoy asks for endpoints and for the picker's health about once a second each
	f := newFleet(t, 1, 1)
	g := newGate(t, f.startPicker(t).addr("extproc"), requests)
	g.refused.Store(refused)
	bootstrap, err := output("tandem", "envoy-config", "--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0", "--epp-plaintext",
		"--epp="+g.addr)
	if err != nil {
		t.Fatal(err)
	}
	f.front = startEnvoy(t, bootstrap)
	if got := f.send(t, f.tokensCall(threshold/2, false)); got.Status != http.StatusOK {
		t.Errorf("the first request of an Envoy that said that it is ready: status %d: %s", got.Status, got.Body)
	}
	if left := g.refused.Load(); left > 0 {
		t.Errorf("%d connections less than expected were refused", left)
	}
}
