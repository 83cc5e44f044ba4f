package connectors_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/pd"
)

// pushLease is how long a prefill engine that pushes keeps what no decode engine has asked for.
const pushLease = 10 * time.Second

// testPushOneID has clients give one X-Request-Id to several requests, by which the engines match legs.
func testPushOneID(t *testing.T, p *pair) {
	s := p.sidecar(t, p.decode.Address())
	var clients sync.WaitGroup
	for range 8 {
		c := newCall(pd.APICompletions, 300, 8, true)
		c.Header = map[string]string{"X-Request-Id": "one"}
		want := p.want(t, c)
		clients.Go(func() {
			got, err := c.Remote(p.prefill.Address()).Send(harness.Within(t), s, realengine.Model)
			if err != nil || fmt.Sprint(got.Tokens) != fmt.Sprint(want.Tokens) || got.Decision.Verdict != pd.Remote {
				t.Errorf("%v %v, want %v: %v", got.Tokens, got.Decision, want.Tokens, err)
			}
		})
	}
	clients.Wait()
	p.mustRest(t, restWithin)
}

// testPushPrefillKilled kills the prefill engine while requests of every state are on it, and starts it again. A decode engine
// that has told a prefill engine of the blocks of a leg keeps them until that has written to them, or for good.
func testPushPrefillKilled(t *testing.T, p *pair) {
	again := killPrefill(t, p, decodeWaits, handedOff, decoding, prefilling)
	told(p, "prefill killed", "all", false, 0, fmt.Sprintf("decode keeps %.1f %% of its blocks", 100*usage(t, p.decode)))
	again()
	must(t, p.decode.Restart(t.Context()))
	newPath(t, p)
	p.mustRest(t, restWithin)
}
