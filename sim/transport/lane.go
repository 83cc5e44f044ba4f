package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// laneDepth is how many requests may wait for their answers on one connection. Requests whose callers have left count until the
// peer answers or the lane ends, so that they do not accumulate for a stopped peer.
const laneDepth = 32

// laneBuffer is enough for a 4 KiB block with its headers in one system call. No more than that much of an answer is copied.
const laneBuffer = 8 << 10

var (
	// errLost means that the connection ended during a request. Reads are repeated once on a new connection, which also finds
	// out whether the peer was lost or restarted.
	errLost = fmt.Errorf("connection lost: %w", transfer.ErrGone)
	// errStalled means that the peer made no progress in time. The request is not repeated, because its caller has waited long
	// enough.
	errStalled = fmt.Errorf("no progress for too long: %w", transfer.ErrGone)
)

// past is a deadline that ends all waits on a connection at once.
var past = time.Unix(1, 0)

// call is one request and its outcome.
type call struct {
	op      byte
	spans   []transfer.Span // of a read
	into    [][]byte        // destination of its bytes; only the lane's receiver writes to it, and only until done
	total   int             // bytes of into
	message []byte          // of a notification

	state callState // guarded by lane.mu
	err   error     // valid after done
	done  chan struct{}
}

type callState byte

const (
	waiting   callState = iota // for an answer, or for the status after its data
	receiving                  // the receiver writes to into
	abandoned                  // the caller has left, or leaves once the receiver does not write to into
	finished
)

// lane is a connection to a peer, on which requests are pipelined. Callers send; one goroutine receives, directly into the
// callers' buffers.
type lane struct {
	conn  *net.TCPConn
	in    *bufio.Reader // for headers and statuses; data that is in its buffer already is copied, the rest is not
	vec   *vectored
	stall time.Duration
	idle  time.Duration

	tickets   chan struct{} // one for each request not yet answered
	turn      chan struct{} // held by the caller that sends; guards frame and interrupt
	frame     []byte
	interrupt sync.WaitGroup // waits for the function of the sender's context, if that has ended

	mu       sync.Mutex
	used     bool    // a request was sent; before that, the lane is not idle
	pending  []*call // in order of sending
	deadline time.Time
	err      error         // why the lane ended
	dead     chan struct{} // closed with err
}

func newLane(conn *net.TCPConn, config *TCPConfig) (*lane, error) {
	vec, err := newVectored(conn)
	if err != nil {
		return nil, err
	}
	return &lane{
		conn:    conn,
		in:      bufio.NewReaderSize(conn, laneBuffer),
		vec:     vec,
		stall:   config.StallTimeout,
		idle:    config.IdleTimeout,
		tickets: make(chan struct{}, laneDepth),
		turn:    make(chan struct{}, 1),
		dead:    make(chan struct{}),
	}, nil
}

// send sends a request. After an error the request was not sent, and errLost says that another lane may be tried. After nil the
// caller must call wait.
func (l *lane) send(ctx context.Context, c *call) error {
	if err := l.acquire(ctx, l.tickets); err != nil {
		return err
	}
	if err := l.acquire(ctx, l.turn); err != nil {
		<-l.tickets
		return err
	}
	defer func() { <-l.turn }()
	if err := l.enqueue(c); err != nil {
		<-l.tickets
		return err
	}
	switch err := l.write(ctx, c); {
	case errors.Is(err, errLost):
		l.fail(err)
	case err != nil && l.takeBack(c):
		<-l.tickets
		return err
	case err != nil: // the peer sends an answer without a request, or was lost
		l.fail(errLost)
	}
	return nil
}

func (l *lane) acquire(ctx context.Context, sem chan struct{}) error {
	select {
	case sem <- struct{}{}:
		return nil
	case <-l.dead:
		return l.cause()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *lane) enqueue(c *call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	l.used = true
	l.pending = append(l.pending, c)
	if len(l.pending) == 1 {
		l.allow(l.stall)
	}
	return nil
}

// takeBack undoes enqueue for a call of which nothing was sent, unless it has ended meanwhile. The caller has the turn, so the
// call is the last one.
func (l *lane) takeBack(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.pending) - 1
	if last < 0 || l.pending[last] != c || c.state != waiting {
		return false
	}
	l.pending[last] = nil
	l.pending = l.pending[:last]
	if last == 0 {
		l.allow(l.idle)
	}
	return true
}

// write sends the request's frame. A caller whose context ends before a byte was sent gets the context's error, and no other
// call is affected. If it ends in the middle of a frame, the lane ends as well (errLost), because the frame cannot be completed;
// that happens only if the peer has stopped reading requests.
func (l *lane) write(ctx context.Context, c *call) error {
	if c.op == opRead {
		l.frame = appendSpans(appendFrame(l.frame[:0], c.op, len(c.spans)*spanSize), c.spans)
	} else {
		l.frame = append(appendFrame(l.frame[:0], c.op, len(c.message)), c.message...)
	}
	l.interrupt.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer l.interrupt.Done()
		_ = l.conn.SetWriteDeadline(past) // fails only on a closed connection
	})
	n, err := l.conn.Write(l.frame)
	if stop() {
		l.interrupt.Done()
	} else {
		l.interrupt.Wait()
		_ = l.conn.SetWriteDeadline(time.Time{}) // as above
	}
	switch {
	case err == nil:
		return nil
	case n == 0 && errors.Is(err, os.ErrDeadlineExceeded):
		return ctx.Err()
	}
	return errLost
}

// wait returns when the call has ended, and its buffers are no longer written to.
func (l *lane) wait(ctx context.Context, c *call) error {
	select {
	case <-c.done:
		return verdict(ctx, c.err)
	case <-ctx.Done():
		return l.abandon(ctx, c)
	}
}

// verdict returns the context's error for a failure that the end of the context has caused.
func verdict(ctx context.Context, err error) error {
	if errors.Is(err, errLost) && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// abandon ends the caller's wait. The answer is read and dropped when it arrives.
func (l *lane) abandon(ctx context.Context, c *call) error {
	l.mu.Lock()
	was := c.state
	if was != finished {
		c.state = abandoned
	}
	if was == receiving {
		_ = l.conn.SetReadDeadline(past) // fails only on a closed connection, where the receiver ends anyway
	}
	l.mu.Unlock()
	switch was {
	case finished:
		return verdict(ctx, c.err)
	case receiving:
		<-c.done
	}
	return ctx.Err()
}

// run receives until the connection ends, and then ends the calls that wait.
func (l *lane) run() {
	err := l.receive()
	l.fail(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.pending {
		l.end(c, l.err)
	}
	l.pending = nil
}

func (l *lane) receive() error {
	for {
		if err := l.need(frameHeader); err != nil {
			return err
		}
		var head [frameHeader]byte
		if _, err := io.ReadFull(l.in, head[:]); err != nil {
			return l.lost(err)
		}
		c, err := l.current()
		if err != nil {
			return err
		}
		status, length := parseFrame(head)
		if err := l.answer(c, status, int64(length)); err != nil {
			return err
		}
	}
}

// need returns when in has n more bytes. A lane without pending calls may be idle; otherwise the peer must make progress.
func (l *lane) need(n int) error {
	for {
		l.mu.Lock()
		if l.used && len(l.pending) == 0 {
			l.allow(l.idle)
		} else {
			l.allow(l.stall)
		}
		l.mu.Unlock()
		_, err := l.in.Peek(n)
		if err == nil {
			return nil
		}
		if !l.spurious(err) {
			return l.lost(err)
		}
	}
}

// current returns the call that the next answer belongs to.
func (l *lane) current() (*call, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return nil, fmt.Errorf("answer without a request: %w", errLost)
	}
	c := l.pending[0]
	if c.state == waiting {
		c.state = receiving
	}
	return c, nil
}

// answer receives what follows the frame header, and ends the call.
func (l *lane) answer(c *call, status byte, length int64) error {
	want := int64(0)
	if status == statusOK {
		want = int64(c.total)
	}
	if length != want {
		return fmt.Errorf("answer of %d bytes instead of %d: %w", length, want, errLost)
	}
	if status == statusOK && c.op == opRead {
		if err := l.fill(c); err != nil {
			return err
		}
		if err := l.need(1); err != nil {
			return err
		}
		var err error
		if status, err = l.in.ReadByte(); err != nil {
			return l.lost(err)
		}
	}
	err := statusErr(status)
	if errors.Is(err, errLost) {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(c, err)
	l.pending = slices.Delete(l.pending, 0, 1)
	<-l.tickets // the sender put it there, so this cannot block
	return nil
}

// fill reads the data of an answer into the call's buffers; once the caller has left, it drops the data.
func (l *lane) fill(c *call) error {
	left := c.total
	for at := (place{}); at.advance(c.into, 0); {
		if !l.wanted(c) {
			return l.skip(left)
		}
		n, err := l.some(c.into[at.index:], at.skip)
		at.advance(c.into, n)
		left -= n
		if err != nil && !l.spurious(err) {
			return l.lost(err)
		}
	}
	l.filled(c)
	return nil
}

// filled allows the caller to leave without waiting for the rest of the answer, which is its status.
func (l *lane) filled(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch c.state {
	case receiving:
		c.state = waiting
	case abandoned:
		l.end(c, nil)
	}
}

// some reads the bytes that have arrived, at least one.
func (l *lane) some(bufs [][]byte, skip int) (int, error) {
	if l.in.Buffered() > 0 {
		return l.in.Read(bufs[0][skip:])
	}
	return l.vec.read(bufs, skip)
}

func (l *lane) skip(left int) error {
	for left > 0 {
		if err := l.need(1); err != nil {
			return err
		}
		n, _ := l.in.Discard(min(left, l.in.Buffered())) // it has them, so it cannot fail
		left -= n
	}
	return nil
}

// wanted extends the deadline for the next piece. If the caller has left, it lets the caller go on without the rest.
func (l *lane) wanted(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.state == abandoned {
		l.end(c, nil)
		return false
	}
	l.allow(l.stall)
	return true
}

// allow sets how long the receiver waits from now on. mu is held.
func (l *lane) allow(d time.Duration) {
	l.deadline = time.Now().Add(d)
	_ = l.conn.SetReadDeadline(l.deadline) // fails only on a closed connection, which the next read reports
}

// spurious reports whether the interrupt was meant for a caller that has already returned, rather than being the peer's timeout.
func (l *lane) spurious(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.deadline)
}

// lost returns the error of calls when the receiver cannot go on.
func (l *lane) lost(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(err, os.ErrDeadlineExceeded) && len(l.pending) > 0 {
		return errStalled
	}
	return errLost
}

// end ends a call, once. mu is held.
func (l *lane) end(c *call, err error) {
	select {
	case <-c.done:
		return
	default:
	}
	if c.state != abandoned {
		c.state = finished
	}
	c.err = err
	close(c.done)
}

// fail ends the lane. The receiver then ends the calls; no other goroutine may, because the receiver may be writing to their
// buffers.
func (l *lane) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	close(l.dead)
	_ = l.conn.Close() // no caller waits for bytes that it has buffered
}

func (l *lane) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}
