package sidecar

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// nameServer answers every question with its current address and a TTL of zero.
type nameServer struct {
	conn    net.PacketConn
	address atomic.Pointer[netip.Addr]
	asked   atomic.Int64
}

func startNameServer(t *testing.T, first string) *nameServer {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{conn: conn}
	s.point(first)
	ended := make(chan struct{})
	go func() { defer close(ended); s.serve() }()
	t.Cleanup(func() { conn.Close(); <-ended })
	return s
}

func (s *nameServer) point(to string) {
	a := netip.MustParseAddr(to)
	s.address.Store(&a)
}

// serve answers by RFC 1035: the question comes back, and for A (1) one record that points at the question's name.
func (s *nameServer) serve() {
	buf := make([]byte, 512)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		end := 12 // of the question: labels, type, class
		for buf[end] != 0 {
			end += 1 + int(buf[end])
		}
		end += 5
		if n < end {
			continue
		}
		s.asked.Add(1)
		answer := append([]byte(nil), buf[:end]...)
		answer[2], answer[3] = 0x84, 0
		copy(answer[6:12], []byte{0, 0, 0, 0, 0, 0})
		if binary.BigEndian.Uint16(answer[end-4:]) == 1 {
			answer[7] = 1
			answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
			ip := s.address.Load().As4()
			answer = append(answer, ip[:]...)
		}
		_, _ = s.conn.WriteTo(answer, from)
	}
}

// A name is checked each time it is dialled, by the address it resolves to then: one that pointed at a prefill pod before may
// point at the metadata service now.
func TestSecurityNamesAreCheckedAtEachDial(t *testing.T) {
	names := startNameServer(t, "127.0.0.1")
	old := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", names.conn.LocalAddr().String())
	}}
	t.Cleanup(func() { net.DefaultResolver = old })
	prefill := startEngine(t, func(w http.ResponseWriter, r *asked) {
		w.Header().Set("Connection", "close") // the next leg resolves the name again
		offering(handoffParams)(w, r)
	})
	s := startRig(t, startEngine(t, ask(false).answer()).addr)
	_, port, err := net.SplitHostPort(prefill.addr)
	if err != nil {
		t.Fatal(err)
	}
	target := "prefill.tandem.invalid:" + port
	post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, target).mustBe(t, 200, servedRemote)
	for _, moved := range []string{"127.0.0.2", "169.254.169.254", "0.0.0.0"} {
		names.point(moved)
		post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, target).
			mustRefuse(t, http.StatusForbidden, pd.DeniedTarget)
	}
	names.point("127.0.0.1")
	post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, target).mustBe(t, 200, servedRemote)
	if names.asked.Load() < 5 || len(prefill.requests()) != 2 {
		t.Errorf("the name was asked for %d times, the engine %d times", names.asked.Load(), len(prefill.requests()))
	}
}
