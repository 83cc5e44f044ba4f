package transport

import (
	"bufio"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
)

// fakePeer is a listener that answers as the test wants, also wrongly.
type fakePeer struct {
	net.Listener
	identity
	regionSize uint64
}

// startFake accepts connections until the test ends, and runs serve for each, with its number from 0.
func startFake(t testing.TB, serve func(p *fakePeer, conn net.Conn, number int)) *fakePeer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &fakePeer{Listener: listener, identity: identity{"fake", 42}, regionSize: 64 << 20}
	var work sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	work.Go(func() {
		for number := 0; ; number++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			work.Go(func() {
				defer conn.Close()
				serve(p, conn, number)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for _, conn := range open {
			conn.Close()
		}
		mu.Unlock()
		work.Wait()
	})
	return p
}

// metadata returns metadata of the fake with one region, number 0.
func (p *fakePeer) metadata() []byte {
	return metadata{
		identity: p.identity, kind: kindTCP, address: p.Addr().String(),
		regions: map[uint32]uint64{0: p.regionSize},
	}.append(nil)
}

// greet answers the hello correctly.
func (p *fakePeer) greet(conn net.Conn) *bufio.Reader {
	in := bufio.NewReader(conn)
	if _, err := readHello(in); err == nil {
		_, _ = conn.Write(hello{identity: p.identity}.append(nil)) // the test sees what is missing
	}
	return in
}

// nextRead waits for a read request and returns its total length; false if the connection ended.
func nextRead(in io.Reader) (total int, ok bool) {
	var buf []byte
	_, payload, err := readRequest(in, &buf)
	if err != nil {
		return 0, false
	}
	_, total, err = parseSpans(nil, payload)
	return total, err == nil
}

// answerOK returns a complete answer of n bytes, each b.
func answerOK(n int, b byte) []byte {
	frame := appendFrame(nil, statusOK, n)
	for range n {
		frame = append(frame, b)
	}
	return append(frame, statusOK)
}

// rawSession is the dialling side of a session with an agent. The test writes every byte.
func rawSession(t testing.TB, agent *TCP) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn := rawDial(t, agent)
	if _, err := exchangeHellos(conn, hello{identity: identity{"raw", 7}}); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

func rawDial(t testing.TB, agent *TCP) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", agent.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func readRequestFor(spans ...transfer.Span) []byte {
	return appendSpans(appendFrame(nil, opRead, len(spans)*spanSize), spans)
}

// tcpPair returns both ends of a connection.
func tcpPair(t testing.TB) (a *net.TCPConn, b net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	b, err = net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn), b
}
