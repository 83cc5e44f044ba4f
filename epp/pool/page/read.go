package page

import (
	"bytes"
	"errors"
	"io"

	"github.com/tandem-serving/tandem/epp"
)

// readSize is enough to read a page of vLLM (48 to 79 kB recorded) in one or two reads. A longer line is too long.
const readSize = 64 << 10

// Errors of pages that cannot be used.
var (
	ErrTooLarge = errors.New("the page is too large")
	ErrNoValues = errors.New("the page has none of the values wanted")
)

// Reader reads pages, one at a time. It takes 64 KiB of memory, which is used again for the next page.
type Reader struct {
	page
	buf [readSize]byte
}

// Read reads a page of at most limit bytes to its end and returns the load that it reports, without its time. before is the
// load that it follows. After an error, which may be ErrTooLarge, ErrNoValues or that of from, nothing is known; after
// ErrNoValues only Engine may be.
func (r *Reader) Read(from io.Reader, limit int64, program *Program, before *epp.Load) (epp.Load, error) {
	if err := r.read(from, limit, program); err != nil {
		return epp.Load{}, err
	}
	load, ok := r.load(before)
	if !ok {
		return epp.Load{Engine: r.engine}, ErrNoValues
	}
	return load, nil
}

// read reads a page of at most limit bytes to its end.
func (r *Reader) read(from io.Reader, limit int64, program *Program) error {
	r.reset(program)
	held := 0     // bytes at the start of buf that are an unfinished line
	tail := false // these, and all bytes up to the next line feed, belong to a line that was too long
	for {
		n, err := from.Read(r.buf[held:])
		if limit -= int64(n); limit < 0 {
			return ErrTooLarge
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
