package pool

import (
	"bytes"
	"errors"
	"io"
)

// readSize is enough to read a page of vLLM (48 to 79 kB recorded) in one or two reads. A longer line is too long.
const readSize = 64 << 10

// Errors of pages that cannot be used.
var (
	errTooLarge = errors.New("the page is too large")
	errNoValues = errors.New("the page has none of the values wanted")
)

// reader reads pages, one at a time.
type reader struct {
	page
	buf [readSize]byte
}

// read reads a page of at most limit bytes to its end.
func (r *reader) read(from io.Reader, limit int64, program *program) error {
	r.reset(program)
	held := 0     // bytes at the start of buf that are an unfinished line
	tail := false // these, and all bytes up to the next line feed, belong to a line that was too long
	for {
		n, err := from.Read(r.buf[held:])
		if limit -= int64(n); limit < 0 {
			return errTooLarge
		}
		rest := r.buf[:held+n]
		for {
			end := bytes.IndexByte(rest, '\n')
			if end < 0 {
				break
			}
			if !tail {
				r.line(rest[:end], true)
			}
			rest, tail = rest[end+1:], false
		}
		switch {
		case tail:
			rest = nil
		case len(rest) == len(r.buf):
			r.line(rest, false)
			rest, tail = nil, true
		}
		held = copy(r.buf[:], rest)
		if err == io.EOF {
			r.line(r.buf[:held], true)
			return nil
		}
		if err != nil {
			return err
		}
	}
}
