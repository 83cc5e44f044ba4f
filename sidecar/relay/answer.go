package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// Answer is an engine's answer body. It reads ahead only bytes that have already arrived. The caller must Free it.
//
// A stream waits most of its time for the next token, and thousands of streams may wait at once: a waiting answer has a small
// buffer, and gets a large one when bytes arrive faster than they are sent.
type Answer struct {
	from   io.Reader
	buf    *[]byte
	unread []byte // the part of buf that was read and not skipped
	last   int    // how much the last read returned
	first  []byte // the bytes up to the end of the event that PeekEvent has read
	whole  bool   // PeekWhole has read it
}

const (
	// waitBuffer is enough for some token events (bytes).
	waitBuffer = 2 << 10
	// burstBuffer is the most that one read takes of an answer (bytes).
	burstBuffer = 32 << 10
	// MaxEvent limits one event of a stream (bytes). The largest real ones repeat a long prompt, as prefill's answers may.
	MaxEvent = 16 << 20
)

// NewAnswer makes an answer of a body.
func NewAnswer(from io.Reader) *Answer { return &Answer{from: from} }

// Peek returns at least one byte of what has arrived and was not skipped, and waits if there is none. The bytes are valid
// until Skip.
func (a *Answer) Peek() ([]byte, error) {
	if len(a.unread) > 0 {
		return a.unread, nil
	}
	a.fitBuffer()
	n, err := io.ReadAtLeast(a.from, *a.buf, 1)
	if err != nil {
		return nil, err
	}
	a.last, a.unread = n, (*a.buf)[:n]
	return a.unread, nil
}

// Skip drops the bytes that Peek returned.
func (a *Answer) Skip() { a.unread = nil }

// Read implements io.Reader.
func (a *Answer) Read(p []byte) (int, error) {
	if len(a.unread) == 0 {
		return a.from.Read(p)
	}
	n := copy(p, a.unread)
	a.unread = a.unread[n:]
	return n, nil
}

// fitBuffer takes a buffer for the next read: a large one if the last read would have filled a small one.
func (a *Answer) fitBuffer() {
	size := waitBuffer
	if a.last >= waitBuffer {
		size = burstBuffer
	}
	if a.buf == nil || len(*a.buf) != size {
		a.Free()
		a.buf = transport.TakeBuffer(size)
	}
}

// Free returns the answer's buffer.
func (a *Answer) Free() {
	if a.buf != nil {
		transport.PutBuffer(a.buf)
		a.buf, a.unread = nil, nil
	}
}

// ErrBeganFailing says that the first event of a stream is an error. The answer can be relayed all the same.
var ErrBeganFailing = errors.New("decode began its stream with an error")

// PeekEvent reads to the end of the first event with data that shows that the engine can answer: no event that opens a stream, as it
// is by itself or as opens says. It returns an error if that event is an error, or if failed says so of its data. Both functions may be
// nil.
func (a *Answer) PeekEvent(opens func(body.Event) bool, failed func(data []byte) bool) error {
	events := body.Events{Limit: MaxEvent}
	seen := false
	for !seen {
		chunk, err := a.Peek()
		if err != nil {
			return fmt.Errorf("reading the first event: %w", unexpected(err))
		}
		err = events.Feed(chunk, func(e body.Event) error {
			if seen || len(e.Data) == 0 || e.Opens() || opens != nil && opens(e) {
				return nil
			}
			seen = true
			if e.Error() || failed != nil && failed(e.Data) {
				return ErrBeganFailing
			}
			return nil
		})
		if err != nil {
			return err
		}
		a.first = append(a.first, chunk...)
		a.Skip()
	}
	return nil
}

// ErrAborted says that an engine has aborted a request, and answered it as if it were complete.
var ErrAborted = errors.New("the engine has aborted this request")

// PeekWhole reads an answer ahead that is no stream. It returns ErrAborted if aborted says so of it. size is its length, -1 if that is not
// known. Of a long answer only the first MaxBuffered bytes are read.
func (a *Answer) PeekWhole(size int64, aborted func(answer []byte) bool) error {
	if a.whole {
		return nil
	}
	chunk, err := a.Peek()
	if err == io.EOF { // an answer may be empty
		return nil
	}
	if err != nil {
		return err
	}
	if a.whole = true; int64(len(chunk)) == size {
		return errAbortedIf(aborted(chunk))
	}
	read := bytes.NewBuffer(make([]byte, 0, min(max(size, 0), MaxBuffered)+bytes.MinRead))
	if _, err := read.ReadFrom(io.LimitReader(a, MaxBuffered)); err != nil {
		return err
	}
	a.from = io.MultiReader(read, a.from)
	return errAbortedIf(aborted(read.Bytes()))
}

func errAbortedIf(aborted bool) error {
	if aborted {
		return ErrAborted
	}
	return nil
}

// unexpected turns the end of the answer into an error.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
