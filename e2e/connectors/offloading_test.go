package connectors_test

import "testing"

// testOffloadingPrefillKilled kills the prefill engine while requests of every state are on it, and starts it again. The decode engine
// goes on with the session that it had, for 30 s for each request, until it is started again too.
func testOffloadingPrefillKilled(t *testing.T, p *pair) {
	again := killPrefill(t, p, decodeWaits, handedOff, decoding, prefilling)
	told(p, "prefill killed", "all", false, p.mustRest(t, restWithin), "")
	must(t, p.decode.Restart(t.Context()))
	again()
	p.mustRest(t, restWithin)
}
