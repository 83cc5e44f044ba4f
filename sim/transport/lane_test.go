package transport

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// silent accepts a connection and sends nothing.
func silent(_ *fakePeer, conn net.Conn, _ int) { _, _ = io.Copy(io.Discard, conn) }

// deaf greets, and then neither answers nor reads. It reports each request to reached while that has room: on a slow machine
// readers time out and dial again.
func deaf(reached chan<- struct{}) func(*fakePeer, net.Conn, int) {
	return func(p *fakePeer, conn net.Conn, _ int) {
		in := p.greet(conn)
		if _, ok := nextRead(in); ok {
			select {
			case reached <- struct{}{}:
			default:
			}
		}
		_, _ = io.Copy(io.Discard, in)
	}
}

func TestStoppedPeer(t *testing.T) {
	spans := []transfer.Span{spanAt(0, 0, 10)}
	soon := func(t *testing.T) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	reached := make(chan struct{}, 100)
	for name, serve := range map[string]func(*fakePeer, net.Conn, int){"before the hello": silent, "after it": deaf(reached)} {
		t.Run(name+", deadline", func(t *testing.T) {
			fake, reader := startFake(t, serve), tcpAgent(t, "reader")
			peer := loadFake(t, reader, fake)
			wantErr(t, reader.Read(soon(t), peer, spans, buffers(spans), nil), context.DeadlineExceeded)
			wantErr(t, reader.Notify(soon(t), peer, nil), context.DeadlineExceeded)
		})
		t.Run(name+", no deadline", func(t *testing.T) {
			fake := startFake(t, serve)
			reader := tcpWith(t, TCPConfig{Name: "reader", DialTimeout: 50 * time.Millisecond, StallTimeout: 20 * time.Millisecond})
			peer := loadFake(t, reader, fake)
			wantErr(t, reader.Read(t.Context(), peer, spans, buffers(spans), nil), transfer.ErrGone)
			wantErr(t, reader.Notify(t.Context(), peer, nil), transfer.ErrGone)
		})
	}
	t.Run("a stall is not tried again", func(t *testing.T) {
		asked := make(chan struct{}, 10)
		fake := startFake(t, deaf(asked))
		reader := tcpWith(t, TCPConfig{Name: "reader", StallTimeout: 20 * time.Millisecond})
		wantErr(t, reader.Read(t.Context(), loadFake(t, reader, fake), spans, buffers(spans), nil), transfer.ErrGone)
		if n := len(asked); n > 1 {
			t.Errorf("the peer was asked %d times", n)
		}
	})
	t.Run("closed meanwhile", func(t *testing.T) {
		asked := make(chan struct{}, 1)
		fake, reader := startFake(t, deaf(asked)), tcpAgent(t, "reader")
		peer := loadFake(t, reader, fake)
		ended := make(chan error)
		go func() { ended <- reader.Read(t.Context(), peer, spans, buffers(spans), nil) }()
		<-asked
		closeAgent(t, reader)
		wantErr(t, <-ended, transfer.ErrClosed)
	})
}

// TestStoppedPeerIsBounded: cancelled requests do not accumulate, and the lane ends in time.
func TestStoppedPeerIsBounded(t *testing.T) {
	reached := make(chan struct{}, 1)
	fake := startFake(t, deaf(reached))
	reader := tcpWith(t, TCPConfig{Name: "reader", Connections: 1})
	peer := loadFake(t, reader, fake)
	spans := []transfer.Span{spanAt(0, 0, 10)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	first := make(chan error)
	go func() { first <- reader.Read(ctx, peer, spans, buffers(spans), nil) }()
	<-reached
	for range 2 * laneDepth {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		wantErr(t, reader.Read(ctx, peer, spans, buffers(spans), nil), context.DeadlineExceeded)
		cancel()
	}
	l := reader.peers[peer].data[0].lane
	l.mu.Lock()
	if n := len(l.pending); n > laneDepth {
		t.Errorf("%d requests wait, want at most %d", n, laneDepth)
	}
	l.mu.Unlock()
	cancel()
	wantErr(t, <-first, context.Canceled)
}

// TestCancelledSendKeepsTheLane: if a caller leaves before its request is sent, the connection stays.
func TestCancelledSendKeepsTheLane(t *testing.T) {
	owner, reader := tcpAgent(t, "owner"), tcpWith(t, TCPConfig{Name: "reader", Connections: 1})
	register(t, owner, pattern(0, 100))
	peer, spans := load(t, reader, owner), []transfer.Span{spanAt(0, 0, 10)}
	read := func(ctx context.Context) error { return reader.Read(ctx, peer, spans, buffers(spans), nil) }
	if err := read(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := reader.peers[peer].data[0].lane
	for range 2000 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if err := read(ctx); err != nil {
			wantErr(t, err, context.Canceled)
		}
		cancel()
		// A context that has already ended gets as far as the connection half of the time.
		c := &call{op: opRead, spans: spans, into: buffers(spans), total: 10, done: make(chan struct{})}
		err := l.send(ctx, c)
		if err == nil {
			err = l.wait(ctx, c)
		}
		if err != nil {
			wantErr(t, err, context.Canceled)
		}
	}
	if err := l.cause(); err != nil {
		t.Errorf("the connection was lost: %v", err)
	}
	if err := read(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestCancelInTheMiddle: when the caller returns, the receiver does not use its buffers any more, and the connection serves the
// next read. The race detector does not see the kernel's writes, so the test checks c.done and the bytes.
func TestCancelInTheMiddle(t *testing.T) {
	half, rest := make(chan struct{}), make(chan struct{})
	fake := startFake(t, func(p *fakePeer, conn net.Conn, number int) {
		if number > 0 {
			t.Error("a second connection was opened")
		}
		_ = conn.(*net.TCPConn).SetWriteBuffer(64 << 10)
		in := p.greet(conn)
		if _, ok := nextRead(in); !ok {
			return
		}
		answer := answerOK(maxPart, 1)
		_, _ = conn.Write(answer[:maxPart/2]) // more than the sockets hold: when it returns, the receiver is at it
		close(half)
		<-rest
		_, _ = conn.Write(answer[maxPart/2:])
		if _, ok := nextRead(in); ok {
			_, _ = conn.Write(answerOK(maxPart, 2))
		}
		_, _ = io.Copy(io.Discard, in)
	})
	reader := tcpWith(t, TCPConfig{Name: "reader", Connections: 1})
	peer := loadFake(t, reader, fake)
	l, err := reader.peers[peer].lane(t.Context(), reader.peers[peer].data[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := l.conn.SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	spans := []transfer.Span{spanAt(0, 0, maxPart)}
	c := &call{op: opRead, spans: spans, into: buffers(spans), total: maxPart, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	if err := l.send(ctx, c); err != nil {
		t.Fatal(err)
	}
	<-half
	cancel()
	wantErr(t, l.wait(ctx, c), context.Canceled)
	select {
	case <-c.done:
	default:
		t.Error("the caller was told before the receiver let go of its buffers")
	}
	clear(c.into[0])
	close(rest)

	next := buffers(spans)
	if err := reader.Read(t.Context(), peer, spans, next, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(next[0], bytes.Repeat([]byte{2}, maxPart)) {
		t.Error("the next read got bytes of the one given up")
	}
	if !bytes.Equal(c.into[0], make([]byte, maxPart)) {
		t.Error("bytes landed after the caller was told")
	}
}

// TestCancelBeforeTheEndStatus: a read with all its data does not wait for a peer that stops before the last byte.
func TestCancelBeforeTheEndStatus(t *testing.T) {
	conn, peer := tcpPair(t)
	l, err := newLane(conn, &TCPConfig{StallTimeout: time.Hour, IdleTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	spans := []transfer.Span{spanAt(0, 0, 10)}
	c := &call{op: opRead, spans: spans, into: buffers(spans), total: 10, done: make(chan struct{})}
	if err := l.enqueue(c); err != nil {
		t.Fatal(err)
	}
	if _, err := l.current(); err != nil {
		t.Fatal(err)
	}
	if _, err := peer.Write(bytes.Repeat([]byte{1}, 10)); err != nil {
		t.Fatal(err)
	}
	if err := l.fill(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantErr(t, l.wait(ctx, c), context.Canceled)
}

// TestLostConnection: a read survives the loss of one connection, a second loss is an error.
func TestLostConnection(t *testing.T) {
	for name, c := range map[string]struct {
		losses int
		want   error
	}{"once": {1, nil}, "twice": {2, transfer.ErrGone}} {
		t.Run(name, func(t *testing.T) {
			fake := startFake(t, func(p *fakePeer, conn net.Conn, number int) {
				in := p.greet(conn)
				for {
					total, ok := nextRead(in)
					if !ok {
						return
					}
					answer := answerOK(total, byte(number))
					if number < c.losses {
						_, _ = conn.Write(answer[:total/2])
						return
					}
					_, _ = conn.Write(answer)
				}
			})
			reader := tcpWith(t, TCPConfig{Name: "reader", Connections: 1})
			spans := []transfer.Span{spanAt(0, 0, 50_000)}
			into := buffers(spans)
			wantErr(t, reader.Read(t.Context(), loadFake(t, reader, fake), spans, into, nil), c.want)
			if c.want == nil && !bytes.Equal(into[0], bytes.Repeat([]byte{1}, 50_000)) {
				t.Error("bytes of the broken answer remained")
			}
		})
	}
}

func TestLostNotificationIsNotRepeated(t *testing.T) {
	got := make(chan string, 10)
	fake := startFake(t, func(p *fakePeer, conn net.Conn, _ int) {
		in := p.greet(conn)
		var buf []byte
		if op, message, err := readRequest(in, &buf); err == nil && op == opNotify {
			got <- string(message)
		}
	})
	reader := tcpAgent(t, "reader")
	wantErr(t, reader.Notify(t.Context(), loadFake(t, reader, fake), []byte("release")), transfer.ErrGone)
	if <-got != "release" || len(got) > 0 {
		t.Error("the message was sent more than once")
	}
}

func TestAnswerOfWrongLength(t *testing.T) {
	for name, answer := range map[string][]byte{
		"too short":          answerOK(9, 1),
		"too long":           answerOK(11, 1),
		"with a bad status":  appendFrame(nil, statusRange, 10),
		"unknown status":     appendFrame(nil, 99, 0),
		"no end status":      answerOK(10, 1)[:frameHeader+10],
		"unknown end status": append(answerOK(10, 1)[:frameHeader+10], 99),
	} {
		t.Run(name, func(t *testing.T) {
			fake := startFake(t, func(p *fakePeer, conn net.Conn, _ int) {
				if _, ok := nextRead(p.greet(conn)); ok {
					_, _ = conn.Write(answer)
				}
			})
			reader := tcpAgent(t, "reader")
			spans := []transfer.Span{spanAt(0, 0, 10)}
			wantErr(t, reader.Read(t.Context(), loadFake(t, reader, fake), spans, buffers(spans), nil), transfer.ErrGone)
		})
	}
}

// TestAnswerUnasked: a connection with an unexpected answer is not used again, because later answers could not be matched.
func TestAnswerUnasked(t *testing.T) {
	fake := startFake(t, func(p *fakePeer, conn net.Conn, number int) {
		in := p.greet(conn)
		for total, ok := nextRead(in); ok; total, ok = nextRead(in) {
			_, _ = conn.Write(append(answerOK(total, byte(number)), 99, 0, 0, 0, 0))
		}
	})
	reader := tcpWith(t, TCPConfig{Name: "reader", Connections: 1})
	peer := loadFake(t, reader, fake)
	spans := []transfer.Span{spanAt(0, 0, 10)}
	for round := range 3 {
		into := buffers(spans)
		if err := reader.Read(t.Context(), peer, spans, into, nil); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(into[0], bytes.Repeat([]byte{byte(round)}, 10)) {
			t.Errorf("round %d was answered by connection %d", round, into[0][0])
		}
	}
}

// TestCancelWhileSending: a peer that reads no requests delays no caller beyond its context.
func TestCancelWhileSending(t *testing.T) {
	release := make(chan struct{})
	fake := startFake(t, func(p *fakePeer, conn net.Conn, _ int) {
		_ = conn.(*net.TCPConn).SetReadBuffer(1 << 10)
		p.greet(conn)
		<-release
	})
	defer close(release)
	reader := tcpAgent(t, "reader")
	peer := loadFake(t, reader, fake)
	r := reader.peers[peer]
	l, err := r.lane(t.Context(), r.notes)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.conn.SetWriteBuffer(1 << 10); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		wantErr(t, reader.Notify(ctx, peer, make([]byte, transfer.MaxMessage)), context.DeadlineExceeded)
		cancel()
	}
}

func TestForgetEndsReadsUnderWay(t *testing.T) {
	reached := make(chan struct{}, 1)
	fake, reader := startFake(t, deaf(reached)), tcpAgent(t, "reader")
	peer := loadFake(t, reader, fake)
	spans := []transfer.Span{spanAt(0, 0, 10)}
	ended := make(chan error)
	go func() { ended <- reader.Read(t.Context(), peer, spans, buffers(spans), nil) }()
	<-reached
	reader.Forget(peer)
	wantErr(t, <-ended, transfer.ErrUnknownPeer)
}

// TestMetadataOfALaterLifeEndsReads: loading metadata of another generation ends the running reads of the earlier one.
func TestMetadataOfALaterLifeEndsReads(t *testing.T) {
	reached := make(chan struct{}, 1)
	fake, reader := startFake(t, deaf(reached)), tcpAgent(t, "reader")
	peer := loadFake(t, reader, fake)
	spans := []transfer.Span{spanAt(0, 0, 10)}
	ended := make(chan error)
	go func() { ended <- reader.Read(t.Context(), peer, spans, buffers(spans), nil) }()
	<-reached
	later := *fake
	later.generation++
	loadFake(t, reader, &later)
	wantErr(t, <-ended, transfer.ErrRestarted)
}

// TestFailedDialIsShared: callers that waited for one dial do not repeat it one after the other.
func TestFailedDialIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(&TCP{config: TCPConfig{Connections: 1}}, metadata{})
		s := r.data[0]
		s.dialing <- struct{}{}
		ended := make(chan error)
		for range 3 {
			go func() {
				_, err := r.lane(t.Context(), s)
				ended <- err
			}()
		}
		synctest.Wait()
		wantErr(t, r.dialFailed(t.Context(), s, transfer.ErrRestarted), transfer.ErrRestarted)
		<-s.dialing
		for range 3 {
			wantErr(t, <-ended, transfer.ErrRestarted) // dialling themselves they would find ErrGone: there is no address
		}
		_, err := r.lane(t.Context(), s)
		wantErr(t, err, transfer.ErrGone) // a later call tries anew

		s.dialing <- struct{}{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // of the bubble's time
		defer cancel()
		_, err = r.lane(ctx, s)
		wantErr(t, err, context.DeadlineExceeded)
	})
}

// earlyTimer is a context whose deadline has passed, but which has not ended yet.
type earlyTimer struct{ context.Context }

func (earlyTimer) Deadline() (time.Time, bool) { return past, true }

func TestDialTimerBeforeContextTimer(t *testing.T) {
	timeout := &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
	wantErr(t, peerError(earlyTimer{t.Context()}, timeout), context.DeadlineExceeded)
	wantErr(t, peerError(t.Context(), timeout), transfer.ErrGone)
}
