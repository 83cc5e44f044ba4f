package transport

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

func loadFake(t testing.TB, reader *TCP, p *fakePeer) transfer.Peer {
	t.Helper()
	peer, err := reader.Load(t.Context(), p.metadata())
	if err != nil {
		t.Fatal(err)
	}
	return peer
}

func TestTCPConfigRefused(t *testing.T) {
	for name, config := range map[string]TCPConfig{
		"no name":              {},
		"name too long":        {Name: strings.Repeat("x", transfer.MaxName+1)},
		"zero byte in name":    {Name: "a\x00b"},
		"advertise no port":    {Name: "a", Advertise: "host"},
		"advertise too long":   {Name: "a", Advertise: strings.Repeat("x", maxAddress) + ":1"},
		"nothing to advertise": {Name: "a", Listen: "0.0.0.0:0"},
		"negative connections": {Name: "a", Connections: -1},
		"negative timeout":     {Name: "a", IdleTimeout: -1},
	} {
		t.Run(name, func(t *testing.T) {
			agent, err := NewTCP(config)
			wantErr(t, err, transfer.ErrInvalid)
			if agent != nil {
				closeAgent(t, agent)
			}
		})
	}
	_, err := NewTCP(TCPConfig{Name: "a", Listen: "no such address"})
	if err == nil {
		t.Error("listened on nonsense")
	}
	_, err = NewMem(NewMemNetwork(), "")
	wantErr(t, err, transfer.ErrInvalid)
}

// TestForeignAnswers: a reader returns the right error for a peer that is no agent of this version.
func TestForeignAnswers(t *testing.T) {
	later := hello{identity: identity{"fake", 42}}.append(nil)
	later[len(protocolMagic)+1]++
	greeting := hello{identity: identity{"fake", 42}}.append(nil)
	for name, c := range map[string]struct {
		answer []byte
		want   error
	}{
		"nothing":           {nil, transfer.ErrGone},
		"web server":        {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), transfer.ErrNotSupported},
		"later version":     {later, transfer.ErrNotSupported},
		"half a hello":      {greeting[:9], transfer.ErrGone},
		"no answer":         {greeting, transfer.ErrGone},
		"unknown status":    {append(slices.Clone(greeting), 77, 0, 0, 0, 0), transfer.ErrGone},
		"answer cut off":    {append(slices.Clone(greeting), statusOK, 0, 0, 0, 10, 1), transfer.ErrGone},
		"answer too short":  {append(slices.Clone(greeting), statusOK, 0, 0, 0, 0), transfer.ErrGone},
		"endless answer":    {append(slices.Clone(greeting), statusOK, 255, 255, 255, 255), transfer.ErrGone},
		"another agent":     {hello{identity: identity{"fake", 43}}.append(nil), transfer.ErrRestarted},
		"another's address": {hello{identity: identity{"other", 42}}.append(nil), transfer.ErrRestarted},
	} {
		t.Run(name, func(t *testing.T) {
			fake := startFake(t, func(_ *fakePeer, conn net.Conn, _ int) {
				_, _ = readHello(conn)
				_, _ = conn.Write(c.answer)
			})
			reader := tcpAgent(t, "reader")
			spans := []transfer.Span{spanAt(0, 0, 10)}
			wantErr(t, reader.Read(t.Context(), loadFake(t, reader, fake), spans, buffers(spans), nil), c.want)
		})
	}
}

// TestGarbageOnThePort: an agent closes connections that are not of agents, and serves others.
func TestGarbageOnThePort(t *testing.T) {
	greeting := hello{identity: identity{"raw", 7}}.append(nil)
	later := slices.Clone(greeting)
	later[len(protocolMagic)+1]++
	request := func(op byte, length int) []byte { return appendFrame(slices.Clone(greeting), op, length) }
	tooMuch := append(slices.Clone(greeting), readRequestFor(spanAt(0, 0, maxPart), spanAt(0, 0, 1))...)
	owner := tcpAgent(t, "owner")
	register(t, owner, pattern(0, 2*maxPart))
	for name, garbage := range map[string][]byte{
		"web client":           []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
		"zeros":                make([]byte, 100),
		"other version":        later,
		"no name":              hello{}.append(nil),
		"unknown request":      request('W', 0),
		"endless notification": request(opNotify, transfer.MaxMessage+1),
		"endless read":         request(opRead, 1<<30/spanSize*spanSize),
		"too many spans":       request(opRead, (maxSpans+1)*spanSize),
		"half a span":          request(opRead, spanSize/2),
		"too many bytes":       tooMuch,
		"bytes wrapping":       append(slices.Clone(greeting), readRequestFor(spanAt(0, 0, 5), spanAt(0, 0, ^uint64(0)-4))...),
	} {
		t.Run(name, func(t *testing.T) {
			conn := rawDial(t, owner)
			if _, err := conn.Write(garbage); err != nil {
				t.Fatal(err)
			}
			answer, _ := io.ReadAll(conn) // returns only once the agent hangs up; with a reset if it left bytes unread
			if len(answer) > len(greeting)+10 {
				t.Errorf("answered %d bytes to garbage", len(answer))
			}
		})
	}
	reader := tcpAgent(t, "reader")
	spans := []transfer.Span{spanAt(0, 0, 10)}
	if err := reader.Read(t.Context(), load(t, reader, owner), spans, buffers(spans), nil); err != nil {
		t.Errorf("reading after the garbage: %v", err)
	}
}

// TestRegionClosedUnderAnAnswer: memory of a region that is closed after its length was sent is not used any more.
func TestRegionClosedUnderAnAnswer(t *testing.T) {
	owner := tcpAgent(t, "owner")
	mem := pattern(0, 1000)
	closing, staying := register(t, owner, mem), register(t, owner, pattern(1, 10))
	conn, other := tcpPair(t)
	out, err := newVectored(conn)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{agent: owner, conn: conn, out: out}
	s.spans = []transfer.Span{spanAt(staying.ID(), 0, 10), spanAt(closing.ID(), 0, 1000), spanAt(staying.ID(), 0, 10)}
	if !s.gather(1020) {
		t.Fatal("refused")
	}
	if err := closing.Close(); err != nil {
		t.Fatal(err)
	}
	from := 0
	for _, r := range s.runs {
		if err := s.send(from, r.end, r.region); err != nil {
			t.Fatal(err)
		}
		from = r.end
	}
	want := appendFrame(nil, statusOK, 1020)
	want = append(want, pattern(1, 10)...)
	want = append(want, make([]byte, 1000)...)
	want = append(want, pattern(1, 10)...)
	want = append(want, statusRange)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(other, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v; closed memory was sent, or its loss not reported", err)
	}
}

// TestOwnerChecksSpans: the owner checks spans itself, refuses wrong ones, and serves the next request.
func TestOwnerChecksSpans(t *testing.T) {
	owner := tcpAgent(t, "owner")
	register(t, owner, pattern(0, 100))
	conn, in := rawSession(t, owner)
	for name, c := range map[string]struct {
		spans []transfer.Span
		want  []byte
	}{
		"inside":          {[]transfer.Span{spanAt(0, 90, 10)}, append(appendFrame(nil, statusOK, 10), append(pattern(0, 100)[90:], statusOK)...)},
		"nothing":         {nil, []byte{statusOK, 0, 0, 0, 0, statusOK}},
		"past the end":    {[]transfer.Span{spanAt(0, 0, 10), spanAt(0, 91, 10)}, []byte{statusRange, 0, 0, 0, 0}},
		"offset wraps":    {[]transfer.Span{spanAt(0, ^uint64(0), 10)}, []byte{statusRange, 0, 0, 0, 0}},
		"unknown region":  {[]transfer.Span{spanAt(0, 0, 10), spanAt(1, 0, 10)}, []byte{statusRange, 0, 0, 0, 0}},
		"nothing of none": {[]transfer.Span{spanAt(1, 0, 0)}, []byte{statusRange, 0, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := conn.Write(readRequestFor(c.spans...)); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(c.want))
			if _, err := io.ReadFull(in, got); err != nil || !bytes.Equal(got, c.want) {
				t.Errorf("got % x, %v, want % x", got, err, c.want)
			}
		})
	}
}

func TestTooManyPeersAreTurnedAway(t *testing.T) {
	owner := tcpAgent(t, "owner")
	owner.mu.Lock()
	for range maxSessions {
		owner.sessions[&session{}] = struct{}{}
	}
	owner.mu.Unlock()
	reader := tcpAgent(t, "reader")
	peer := load(t, reader, owner)
	wantErr(t, reader.Notify(t.Context(), peer, nil), transfer.ErrGone)
	owner.mu.Lock()
	clear(owner.sessions)
	owner.mu.Unlock()
	if err := reader.Notify(t.Context(), peer, nil); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// TestSlowPeer: a peer that stops reading its answers delays neither the owner's program nor other peers, and memory of a region
// that is closed meanwhile is not sent.
func TestSlowPeer(t *testing.T) {
	const parts = 64 // more than the buffers of both sockets hold
	mem := pattern(0, maxPart)
	owner, reader := tcpAgent(t, "owner"), tcpAgent(t, "reader")
	region := register(t, owner, mem)
	peer := load(t, reader, owner)
	want := bytes.Clone(mem)

	conn, in := rawSession(t, owner)
	for range parts {
		if _, err := conn.Write(readRequestFor(spanAt(0, 0, maxPart))); err != nil {
			t.Fatal(err)
		}
	}
	body := make([]byte, maxPart+1)
	status := func() byte {
		var head [frameHeader]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			t.Fatal(err)
		}
		status, length := parseFrame(head)
		if status != statusOK {
			clear(body)
			return status
		}
		if _, err := io.ReadFull(in, body[:length+1]); err != nil {
			t.Fatal(err)
		}
		return body[length]
	}
	if s := status(); s != statusOK {
		t.Fatalf("the first answer has status %d", s)
	}
	// From here on the answers are not read.
	if err := region.Write(0, want[:10]); err != nil {
		t.Error(err)
	}
	spans := []transfer.Span{spanAt(0, 0, maxPart)}
	if err := reader.Read(t.Context(), peer, spans, buffers(spans), nil); err != nil {
		t.Error(err)
	}
	if err := region.Close(); err != nil {
		t.Error(err)
	}
	for i := range mem {
		mem[i] ^= 0x55
	}
	cutOff := 0
	for i := range parts - 1 {
		switch status() {
		case statusOK:
			if !bytes.Equal(body[:maxPart], want) {
				t.Fatalf("answer %d has other bytes", i+1)
			}
		case statusRange:
			cutOff++
			for k, b := range body[:maxPart] {
				if b != want[k] && b != 0 {
					t.Fatalf("answer %d was taken from memory that had been released", i+1)
				}
			}
		default:
			t.Errorf("answer %d has neither status ok nor range", i+1)
		}
	}
	if cutOff == 0 {
		t.Error("everything was sent before the region was closed: the test shows nothing")
	}
}

// lines passes each line of a log on.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// TestStalledSessionIsCut: the connection of a peer that does not read its answers is closed in the end.
func TestStalledSessionIsCut(t *testing.T) {
	log := make(lines, 10)
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	owner := tcpWith(t, TCPConfig{Name: "owner", StallTimeout: 10 * time.Millisecond, Logger: logger})
	register(t, owner, make([]byte, maxPart))
	conn, _ := rawSession(t, owner)
	for range 64 {
		if _, err := conn.Write(readRequestFor(spanAt(0, 0, maxPart))); err != nil {
			t.Fatal(err)
		}
	}
	if line := <-log; !strings.Contains(line, "i/o timeout") {
		t.Errorf("the connection ended otherwise: %s", line)
	}
}

func TestIdleConnectionsClose(t *testing.T) {
	t.Run("by who opened them", func(t *testing.T) {
		closed := make(chan error)
		fake := startFake(t, func(p *fakePeer, conn net.Conn, _ int) {
			in := p.greet(conn)
			if total, ok := nextRead(in); ok {
				_, _ = conn.Write(answerOK(total, 1))
			}
			_, err := in.ReadByte()
			closed <- err
		})
		reader := tcpWith(t, TCPConfig{Name: "reader", IdleTimeout: time.Millisecond})
		peer := loadFake(t, reader, fake)
		spans := []transfer.Span{spanAt(0, 0, 10)}
		for range 2 { // and opened again when needed
			if err := reader.Read(t.Context(), peer, spans, buffers(spans), nil); err != nil {
				t.Fatal(err)
			}
			wantErr(t, <-closed, io.EOF)
		}
	})
	t.Run("by who accepted them", func(t *testing.T) {
		_, in := rawSession(t, tcpWith(t, TCPConfig{Name: "owner", IdleTimeout: time.Millisecond}))
		_, err := in.ReadByte()
		wantErr(t, err, io.EOF)
	})
	t.Run("before the hello", func(t *testing.T) {
		conn := rawDial(t, tcpWith(t, TCPConfig{Name: "owner", DialTimeout: time.Millisecond}))
		_, err := conn.Read(make([]byte, 1))
		wantErr(t, err, io.EOF)
	})
}

// brokenListener fails a few times before it is closed.
type brokenListener struct {
	net.Listener
	failures int
}

func (l *brokenListener) Accept() (net.Conn, error) {
	if l.failures--; l.failures < 0 {
		return nil, net.ErrClosed
	}
	return nil, errors.New("too many open files")
}

func TestAcceptGoesOnAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		agent := &TCP{listener: &brokenListener{failures: 3}, done: make(chan struct{})}
		agent.config.Logger = slog.New(slog.NewTextHandler(&log, nil))
		agent.accept()
		if n := strings.Count(log.String(), "too many open files"); n != 3 {
			t.Errorf("%d failures logged, want 3:\n%s", n, log.String())
		}

		agent.listener = &brokenListener{failures: 1 << 30}
		close(agent.done)
		agent.accept() // returns, because the agent is closed
	})
}

func TestErrorsNameThePeerAndTheCause(t *testing.T) {
	reader := tcpAgent(t, "reader")
	err := reader.Notify(t.Context(), "stranger", nil)
	if want := "notifying stranger: unknown peer: load its metadata first"; err == nil || err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if !errors.Is(errLost, transfer.ErrGone) || !errors.Is(errStalled, transfer.ErrGone) {
		t.Error("internal errors are not those of the contract")
	}
}
