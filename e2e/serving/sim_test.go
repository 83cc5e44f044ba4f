package serving

import (
	"net"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
)

// TestSimPair runs the suite on simulated engines, each a process of its own.
func TestSimPair(t *testing.T) {
	p := &harness.Pair{Lease: 3 * time.Second, TokenIDs: [2]int{300, 1000}}
	flags := []string{"--role=prefill", "--kv-lease=" + p.Lease.String(), "--port=" + freePort(t)}
	p.Prefill = harness.StartSim(t, "prefill", flags...)
	p.Decode = harness.StartSim(t, "decode", "--role=decode", "--kv-lease="+p.Lease.String())
	p.Plain = harness.StartSim(t, "plain")
	p.Revive = func(*testing.T) { p.Prefill = harness.StartSim(t, "prefill", flags...) } // it has to outlive the case that killed it
	var err error
	if p.Model, err = harness.DecodeModel(p.Decode.Addr); err != nil {
		t.Fatal(err)
	}
	runPair(t, p)
}

// freePort returns a port that was free a moment ago, for a program that has to come back to it.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
