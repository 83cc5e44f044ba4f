package extproc

import (
	"encoding/binary"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
)

// Envoy sends a request that it still has to another picker when the one that read it dies, but only until the answer has
// begun. gRPC writes when it has something to write, so an answer of some small messages may leave in several pieces, and a
// picker that is killed between two of them fails a request that nothing had to fail. So answers that can be sent again go
// out whole: the stream says in its first headers how many messages belong together, and the connection holds them, and what
// comes after them, until the last one is there. That is a matter of microseconds.

const (
	// wholeHeader is the metadata that says of how many messages the answer consists. Gateways get to see it, and ignore it.
	wholeHeader = "x-tandem-whole"
	// maxWhole is the most messages of an answer that goes out whole: headers, some parts of a body, trailers.
	maxWhole = 16
	// wholeBody is the longest body (bytes) that goes out whole. Envoy keeps up to 64 KiB of a stream to send it again.
	wholeBody = 32 << 10
	// maxHeld bounds what a connection holds (bytes). It is less than the window of a stream, or of a connection, that nobody
	// has changed: an answer that is held never waits for a window that only what is held would open.
	maxHeld = 48 << 10
	// holdTime is for a peer with a smaller window, and for what else nobody thought of: what is held goes out then.
	holdTime = 100 * time.Millisecond
	// resetsKnown is how many streams that the gateway has reset are remembered: the beginning of an answer may be on its way
	// to the connection just then, and its end will not follow.
	resetsKnown = 64
)

// wholeHeaders are the headers of answers of so many messages. They are shared: sending does not change them.
var wholeHeaders = func() (all [maxWhole + 1]metadata.MD) {
	for n := range all {
		all[n] = metadata.Pairs(wholeHeader, strconv.Itoa(n))
	}
	return all
}()

// wholeCredentials has connections hold answers that go out whole: above TLS, if there is any.
type wholeCredentials struct {
	credentials.TransportCredentials
	hold time.Duration // at most
}

// ServerHandshake implements credentials.TransportCredentials.
func (c wholeCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return conn, info, err
	}
	return newWholeConn(conn, c.hold), info, nil
}

// Clone implements credentials.TransportCredentials.
func (c wholeCredentials) Clone() credentials.TransportCredentials {
	return wholeCredentials{c.TransportCredentials.Clone(), c.hold}
}

// wholeConn is the server's end of an HTTP/2 connection. It changes nothing of what is written but when it goes out.
type wholeConn struct {
	net.Conn
	hold time.Duration
	came resets // of the reader alone

	lost    lost
	holding atomic.Bool // there may be something that a lost stream holds up
	timer   *time.Timer

	mu     sync.Mutex // held while writing, and guards what follows
	frames written    // of all that was written, held or not
	held   []byte     // what did not go out yet
	sent   int64      // bytes that did
	since  time.Time  // when what is at the beginning of held came to be there
	err    error      // of the first write that failed
	armed  bool
}

// lost are streams that the gateway has reset, and that the writer does not know of yet.
type lost struct {
	mu      sync.Mutex // never held for long: the reader waits for no writer
	streams []uint32
}

func newWholeConn(conn net.Conn, hold time.Duration) *wholeConn {
	c := &wholeConn{Conn: conn, hold: hold, came: resets{skip: len(http2.ClientPreface)}}
	c.frames.table = hpack.NewDecoder(4096, c.frames.header) // the size that gRPC's encoder begins with, and never exceeds
	c.timer = time.AfterFunc(hold, c.expire)
	c.timer.Stop()
	return c
}

// Read implements net.Conn. Of the answers to streams that the gateway resets, no more will come.
func (c *wholeConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		var stream uint32
		if stream, rest = c.came.next(rest); stream != 0 {
			c.reset(stream)
		}
	}
	return n, err
}

// reset ends the answer of a stream. What it held up is written by the timer's goroutine.
func (c *wholeConn) reset(stream uint32) {
	c.lost.mu.Lock()
	if len(c.lost.streams) == resetsKnown {
		c.lost.streams = slices.Delete(c.lost.streams, 0, 1) // the oldest one
	}
	c.lost.streams = append(c.lost.streams, stream)
	c.lost.mu.Unlock()
	if c.holding.Load() {
		c.timer.Reset(0)
	}
}

// whole gives the last place before which no answer lies in part, as far as its end may be waited for.
func (c *wholeConn) whole() int64 {
	c.lost.mu.Lock()
	for _, stream := range c.lost.streams {
		c.frames.reset(stream)
	}
	c.lost.streams = c.lost.streams[:0]
	c.lost.mu.Unlock()
	return c.frames.whole()
}

// Write implements net.Conn. What it holds it reports as written; should that fail later, the next call says so.
func (c *wholeConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.holding.Store(true) // before whole looks: a stream that is lost meanwhile sets the timer off
	defer func() { c.holding.Store(len(c.held) > 0) }()
	c.frames.follow(p)
	whole := c.whole()
	if len(c.held) == 0 && whole == c.frames.at {
		var n int
		n, c.err = c.Conn.Write(p)
		c.sent = whole
		c.frames.forget(whole)
		return n, c.err
	}
	if len(c.held) == 0 {
		c.since = time.Now()
	}
	c.held = append(c.held, p...)
	c.release(whole)
	if len(c.held) > maxHeld {
		c.release(c.frames.at)
	}
	if c.err != nil {
		return 0, c.err
	}
	if len(c.held) > 0 && !c.armed {
		c.arm(c.hold)
	}
	return len(p), nil
}

// release writes what is held up to a place in all that was written.
func (c *wholeConn) release(to int64) {
	n := int(to - c.sent)
	if n <= 0 || c.err != nil { // a part of the headers that to is at the beginning of may be out already
		return
	}
	_, c.err = c.Conn.Write(c.held[:n])
	c.held = c.held[:copy(c.held, c.held[n:])]
	c.sent, c.since = to, time.Now()
	c.frames.forget(to)
}

func (c *wholeConn) arm(d time.Duration) {
	c.armed = true
	c.timer.Reset(d)
	c.lost.mu.Lock()
	defer c.lost.mu.Unlock()
	if len(c.lost.streams) > 0 { // the reader may have set the timer just before
		c.timer.Reset(0)
	}
}

// expire lets out what is held. The timer is not stopped with every answer, so it may find one that has just begun.
func (c *wholeConn) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = false
	defer func() { c.holding.Store(len(c.held) > 0) }()
	c.release(c.whole())
	if len(c.held) == 0 || c.err != nil {
		return
	}
	if left := c.hold - time.Since(c.since); left > 0 {
		c.arm(left)
		return
	}
	c.release(c.frames.at)
}

// Close implements net.Conn. What is held goes out first, for there may be ends of streams behind it.
func (c *wholeConn) Close() error {
	if c.mu.TryLock() { // else a write is under way, which ends with the connection
		if len(c.held) > 0 {
			_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // it fails as the write does
			c.release(c.frames.at)
		}
		c.mu.Unlock()
	}
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = net.ErrClosed
	c.timer.Stop()
	return err
}

// resets finds the frames of a client that reset streams, in pieces of any size.
type resets struct {
	skip int // bytes that are no head of a frame
	head [9]byte
	have int // bytes of head that came
}

// next gives the stream of the first reset, 0 if there is none, and what comes after it.
func (r *resets) next(p []byte) (stream uint32, rest []byte) {
	for len(p) > 0 {
		if n := min(r.skip, len(p)); n > 0 {
			r.skip -= n
			p = p[n:]
			continue
		}
		n := copy(r.head[r.have:], p)
		p = p[n:]
		if r.have += n; r.have < len(r.head) {
			break
		}
		r.have = 0
		r.skip = lengthOf(&r.head)
		if http2.FrameType(r.head[3]) == http2.FrameRSTStream {
			return streamOf(&r.head), p
		}
	}
	return 0, p
}

// The parts of a frame's head.
func lengthOf(head *[9]byte) int    { return int(head[0])<<16 | int(head[1])<<8 | int(head[2]) }
func streamOf(head *[9]byte) uint32 { return binary.BigEndian.Uint32(head[5:]) &^ (1 << 31) }

// answer is the beginning of a stream that goes out whole.
type answer struct {
	stream   uint32
	begin    int64 // where in all that was written
	end      int64 // where that is known, else 0
	messages int   // that are not there yet
	prefix   [5]byte
	prefixed int    // bytes of prefix that came
	left     uint32 // bytes of the message that did not come yet
}

// take follows the messages of an answer.
func (a *answer) take(p []byte) {
	for len(p) > 0 && a.messages > 0 {
		if a.left > 0 {
			n := min(len(p), int(a.left))
			p = p[n:]
			a.left -= uint32(n)
		} else {
			n := copy(a.prefix[a.prefixed:], p)
			p = p[n:]
			if a.prefixed += n; a.prefixed < len(a.prefix) {
				return
			}
			a.prefixed = 0
			a.left = binary.BigEndian.Uint32(a.prefix[1:])
		}
		if a.left == 0 {
			a.messages--
		}
	}
}

// written follows the frames that a server writes, in pieces of any size, and knows the answers that are held.
type written struct {
	answers []answer            // in the order in which they began
	gone    [resetsKnown]uint32 // streams that the gateway has reset lately
	resets  int                 // so far
	table   *hpack.Decoder
	blind   bool // something came that is not understood: nothing is held any more

	at    int64 // bytes that came before
	begin int64 // of the frame that is coming
	head  [9]byte
	have  int // bytes of head that came
	left  int // bytes of the frame that did not come yet

	headers  http2.Flags // of the HEADERS frame whose block is coming
	began    int64       // where that was
	messages int         // that its block says belong together
}

func (f *written) kind() http2.FrameType { return http2.FrameType(f.head[3]) }
func (f *written) flags() http2.Flags    { return http2.Flags(f.head[4]) }
func (f *written) stream() uint32        { return streamOf(&f.head) }

// follow takes the next piece.
func (f *written) follow(p []byte) {
	for len(p) > 0 && !f.blind {
		var n int
		if f.have < len(f.head) {
			n = f.more(p)
		} else {
			n = min(len(p), f.left)
			f.left -= n
			f.payload(p[:n])
		}
		p = p[n:]
		f.at += int64(n)
		if f.have == len(f.head) && f.left == 0 {
			f.complete()
			f.have = 0
		}
	}
	if f.blind {
		f.answers = nil
	}
	f.at += int64(len(p))
}

// whole gives the last place before which no answer lies in part. Answers may lie within each other.
func (f *written) whole() int64 {
	at := f.at
	for i := len(f.answers) - 1; i >= 0; i-- {
		if a := &f.answers[i]; a.end == 0 || a.end > at {
			at = a.begin
		}
	}
	return at
}

// forget drops the answers that began before a place.
func (f *written) forget(before int64) {
	n := 0
	for n < len(f.answers) && f.answers[n].begin < before {
		n++
	}
	f.answers = slices.Delete(f.answers, 0, n)
}

// more takes a piece of a frame's head.
func (f *written) more(p []byte) (n int) {
	if f.have == 0 {
		f.begin = f.at
	}
	n = copy(f.head[f.have:], p)
	if f.have += n; f.have < len(f.head) {
		return n
	}
	f.left = lengthOf(&f.head)
	switch flags := f.flags(); f.kind() {
	case http2.FrameHeaders:
		f.headers, f.began, f.messages = flags, f.begin, 0
		f.blind = flags.Has(http2.FlagHeadersPadded) || flags.Has(http2.FlagHeadersPriority)
	case http2.FrameData:
		f.blind = flags.Has(http2.FlagDataPadded)
	}
	return n
}

// payload takes a piece of what is in a frame.
func (f *written) payload(p []byte) {
	switch f.kind() {
	case http2.FrameHeaders, http2.FrameContinuation:
		_, err := f.table.Write(p)
		f.blind = err != nil
	case http2.FrameData:
		if a := f.find(f.stream()); a != nil {
			a.take(p)
		}
	}
}

// complete draws the conclusions from a frame.
func (f *written) complete() {
	switch flags := f.flags(); f.kind() {
	case http2.FrameHeaders, http2.FrameContinuation:
		if !flags.Has(http2.FlagHeadersEndHeaders) {
			return
		}
		f.blind = f.table.Close() != nil
		switch {
		case f.headers.Has(http2.FlagHeadersEndStream):
			f.end(f.stream())
		case f.messages > 0 && !slices.Contains(f.gone[:], f.stream()):
			f.answers = append(f.answers, answer{stream: f.stream(), begin: f.began, messages: f.messages})
		}
	case http2.FrameData:
		if a := f.find(f.stream()); a != nil && (a.messages == 0 || flags.Has(http2.FlagDataEndStream)) {
			f.end(f.stream())
		}
	case http2.FrameRSTStream:
		f.end(f.stream())
	}
}

// header takes one header of a block.
func (f *written) header(h hpack.HeaderField) {
	if h.Name == wholeHeader {
		f.messages, _ = strconv.Atoi(h.Value) // what is no number marks nothing
	}
}

// find gives the answer of a stream if it is not whole yet, else nil.
func (f *written) find(stream uint32) *answer {
	for i := range f.answers {
		if a := &f.answers[i]; a.stream == stream && a.end == 0 {
			return a
		}
	}
	return nil
}

// end notes that the answer of a stream is whole, or never will be.
func (f *written) end(stream uint32) {
	if a := f.find(stream); a != nil {
		a.end = f.at
	}
}

// reset notes that the gateway has reset a stream.
func (f *written) reset(stream uint32) {
	f.gone[f.resets%resetsKnown] = stream
	f.resets++
	f.end(stream)
}
