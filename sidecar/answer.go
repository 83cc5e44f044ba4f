package sidecar

import (
	"errors"
	"fmt"
	"io"

	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// answer is an engine's answer body, read ahead only as far as it has come. It has to be freed.
//
// A stream spends its life waiting for its next token, and there may be thousands of them: what waits holds a small buffer.
// A large one is taken for what comes faster than it is passed on.
type answer struct {
	from   io.Reader
	buf    *[]byte
	unread []byte // the part of buf that was read and not skipped
	last   int    // how much the last read gave
	first  []byte // the bytes up to the end of the first event, if they were looked at
}

const (
	// waitBuffer holds some token events (bytes).
	waitBuffer = 2 << 10
	// answerBuffer is how much of an answer is read at once if it is there (bytes).
	answerBuffer = 32 << 10
)

func newAnswer(from io.Reader) *answer { return &answer{from: from} }

// peek gives what has come and was not skipped, at least one byte, and waits for it if it must. It is valid until skip.
func (a *answer) peek() ([]byte, error) {
	if len(a.unread) > 0 {
		return a.unread, nil
	}
	a.fit()
	n, err := io.ReadAtLeast(a.from, *a.buf, 1)
	if err != nil {
		return nil, err
	}
	a.last, a.unread = n, (*a.buf)[:n]
	return a.unread, nil
}

// skip drops what peek gave.
func (a *answer) skip() { a.unread = nil }

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	if len(a.unread) == 0 {
		return a.from.Read(p)
	}
	n := copy(p, a.unread)
	a.unread = a.unread[n:]
	return n, nil
}

// fit takes a buffer for the next read: a large one if the last would have filled a small one.
func (a *answer) fit() {
	size := waitBuffer
	if a.last >= waitBuffer {
		size = answerBuffer
	}
	if a.buf == nil || len(*a.buf) != size {
		a.free()
		a.buf = transport.TakeBuffer(size)
	}
}

func (a *answer) free() {
	if a.buf != nil {
		transport.PutBuffer(a.buf)
		a.buf, a.unread = nil, nil
	}
}

var errEngineEvent = errors.New("decode began its stream with an error")

// peekEvent reads up to the end of the first event that carries data, and fails if it is an error.
func (a *answer) peekEvent() error {
	events := body.Events{Limit: maxEvent}
	seen := false
	for !seen {
		chunk, err := a.peek()
		if err != nil {
			return fmt.Errorf("reading the first event: %w", noEOF(err))
		}
		err = events.Feed(chunk, func(e body.Event) error {
			if seen || len(e.Data) == 0 {
				return nil
			}
			seen = true
			if e.Error() {
				return errEngineEvent
			}
			return nil
		})
		if err != nil {
			return err
		}
		a.first = append(a.first, chunk...)
		a.skip()
	}
	return nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
