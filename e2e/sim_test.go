package e2e

import (
	"net"
	"syscall"
	"testing"
	"time"
)

// TestSimPair runs the suite on simulated engines, each a process of its own.
func TestSimPair(t *testing.T) {
	p := &pair{lease: 3 * time.Second, tokenIDs: [2]int{300, 1000}}
	prefillPort := freePort(t)
	p.prefill = startSim(t, "--role=prefill", "--kv-lease="+p.lease.String(), "--port="+prefillPort)
	p.decode = startSim(t, "--role=decode", "--kv-lease="+p.lease.String())
	p.plain = startSim(t)
	p.prefill.revive = func(*testing.T) { // it has to outlive the case that killed it
		p.prefill.signal = startSim(t, "--role=prefill", "--kv-lease="+p.lease.String(), "--port="+prefillPort).signal
	}
	var err error
	if p.model, err = decodeModel(p.decode.addr); err != nil {
		t.Fatal(err)
	}
	runPair(t, p)
}

func startSim(t *testing.T, flags ...string) engine {
	t.Helper()
	s := start(t, "sim", append([]string{"--port=0", "--admin-port=0"}, flags...)...)
	return engine{addr: s.addr("http"), signal: func(t *testing.T, sig syscall.Signal) {
		if sig == syscall.SIGSTOP {
			s.freeze(t)
			return
		}
		s.signal(sig)
	}}
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
