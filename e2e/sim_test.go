package e2e

import (
	"net"
	"testing"
	"time"
)

// TestSimPair runs the suite on simulated engines, each a process of its own.
func TestSimPair(t *testing.T) {
	p := &pair{lease: 3 * time.Second, tokenIDs: [2]int{300, 1000}}
	flags := []string{"--role=prefill", "--kv-lease=" + p.lease.String(), "--port=" + freePort(t)}
	p.prefill = startSim(t, "prefill", flags...)
	p.decode = startSim(t, "decode", "--role=decode", "--kv-lease="+p.lease.String())
	p.plain = startSim(t, "plain")
	p.revive = func(*testing.T) { p.prefill = startSim(t, "prefill", flags...) } // it has to outlive the case that killed it
	var err error
	if p.model, err = decodeModel(p.decode.addr); err != nil {
		t.Fatal(err)
	}
	runPair(t, p)
}

// freePort is a port that was free a moment ago, for a program that has to come back to it.
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
