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

// laneDepth is how many requests may wait for their answers on one connection. Those whose callers gave up count
// until the peer answers or the lane is cut, so that a stopped peer cannot make them pile up.
const laneDepth = 32

// laneBuffer takes a 4 KiB block with what surrounds it in one system call, and copies no more than that much of an answer.
const laneBuffer = 8 << 10

var (
	// errLost is a connection that ended under a request. Reads are tried once more on a new one, which also finds out
	// whether the peer is gone or restarted.
	errLost = fmt.Errorf("connection lost: %w", transfer.ErrGone)
	// errStalled is not tried again: the wait was long enough.
	errStalled = fmt.Errorf("no progress for too long: %w", transfer.ErrGone)
)

// past, as a deadline, makes what waits on a connection return now.
var past = time.Unix(1, 0)

// call is one request and what becomes of it.
type call struct {
	op      byte
	spans   []transfer.Span // of a read
	into    [][]byte        // where its bytes go; written by the lane's receiver only, and only until done
	total   int             // bytes of that
	message []byte          // of a notification

	state callState // guarded by lane.mu
	err   error     // valid after done
	done  chan struct{}
}

type callState byte

const (
	waiting   callState = iota // for an answer, or for the status behind its data
	receiving                  // the receiver writes to into
	abandoned                  // the caller has gone, or goes once the receiver lets go of into
	finished
)

// lane is a connection to a peer, on which requests are pipelined. Callers send; one goroutine receives, straight into
// the callers' buffers.
type lane struct {
	conn  *net.TCPConn
	in    *bufio.Reader // for what surrounds the data; data it happens to hold is copied, the rest is not
	vec   *vectored
	stall time.Duration
	idle  time.Duration

	tickets   chan struct{} // one for each request not yet answered
	turn      chan struct{} // held by who sends; guards frame and interrupt
	frame     []byte
	interrupt sync.WaitGroup // for the end of the sender's context, where it has come

	mu       sync.Mutex
	used     bool    // a request was sent: before that, waiting for one is not idling
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

// send puts a request on its way. After an error the request was not sent, and errLost says that another lane may be
// tried; after nil its end is to be waited for.
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
	case err != nil: // the peer answers what it was not asked, or is gone
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

// takeBack undoes enqueue for a call of which nothing was sent, unless its end has come nevertheless. The caller has the
// turn, so it is the last one.
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

// write sends the request's frame. A caller whose context ends before anything was sent gets its error, and disturbs no other call. A
// frame cut short cannot be mended, so who gives up in the middle takes the lane along (errLost); it happens only if the peer
// has stopped reading requests.
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

// wait returns when the call is over, one way or another, and its buffers are no longer written to.
func (l *lane) wait(ctx context.Context, c *call) error {
	select {
	case <-c.done:
		return verdict(ctx, c.err)
	case <-ctx.Done():
		return l.abandon(ctx, c)
	}
}

// verdict blames the context for what its end has done to the connection.
func verdict(ctx context.Context, err error) error {
	if errors.Is(err, errLost) && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// abandon returns a call up. Its answer, when it comes, is read and dropped.
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

// run receives until the connection ends, and ends what waited for it.
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

// need returns when n more bytes can be taken from in. A lane that owes nothing may be idle, others must make progress.
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

// current is the call that the next answer belongs to.
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

// answer takes in what follows the frame header, and ends the call.
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

// fill reads the data of an answer into the call's buffers, or past them from where the caller gives up.
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

// filled lets the caller give up without waiting for the rest: what is still to come of the answer is its status.
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

// some reads what there is, at least one byte.
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

// wanted lets the next piece take its time, unless the caller has gone: then it may go on without waiting for the rest.
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

// allow sets how long the receiver waits from now on. The caller holds mu.
func (l *lane) allow(d time.Duration) {
	l.deadline = time.Now().Add(d)
	_ = l.conn.SetReadDeadline(l.deadline) // fails only on a closed connection, which the next read reports
}

// spurious reports whether the interrupt was meant for a caller that has already returned, rather than being the timeout of the
// peer.
func (l *lane) spurious(err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.deadline)
}

// lost is the reason that callers get when the receiver cannot go on.
func (l *lane) lost(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(err, os.ErrDeadlineExceeded) && len(l.pending) > 0 {
		return errStalled
	}
	return errLost
}

// end tells the caller, once. The caller of end holds mu.
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

// fail ends the lane. The receiver notices, and ends the calls; no other goroutine may, because the receiver may be writing to their buffers.
func (l *lane) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	close(l.dead)
	_ = l.conn.Close() // no caller waits for anything that is buffered in it
}

func (l *lane) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}
