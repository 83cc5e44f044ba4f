package read

import (
	"bytes"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pd/body"
)

// unescaper decodes the raw text of a JSON string that may be cut anywhere: a prompt must hash and count the same however its
// newlines are escaped. It decodes as encoding/json does, except that invalid UTF-8 is kept and an escape unknown to JSON is
// no error: the engine will refuse the request.
type unescaper struct {
	pending []byte    // the beginning of an escape, or of a pair of escapes that make one character
	out     [256]byte // scratch
}

// reset drops a pending escape.
func (u *unescaper) reset() { u.pending = u.pending[:0] }

// write decodes p into d. It collects short text between escapes in scratch space, and hashes long text without a copy.
func (u *unescaper) write(d *digest, p []byte) {
	for len(u.pending) > 0 && len(p) > 0 {
		u.pending, p = append(u.pending, p[0]), p[1:]
		u.resolve(d)
	}
	out := u.out[:0]
	for len(p) > 0 {
		if len(out)+utf8.UTFMax > len(u.out) {
			d.write(out)
			out = out[:0]
		}
		if p[0] == '\\' {
			r, n := escape(p)
			if n == 0 {
				u.pending = append(u.pending[:0], p...)
				break
			}
			out, p = utf8.AppendRune(out, r), p[n:]
			continue
		}
		n := bytes.IndexByte(p, '\\')
		if n < 0 {
			n = len(p)
		}
		if len(out)+n > len(u.out) {
			d.write(out)
			d.write(p[:n])
			out = out[:0]
		} else {
			out = append(out, p[:n]...)
		}
		p = p[n:]
	}
	d.write(out)
}

// resolve decodes the pending escape if it is complete. Pending bytes that turn out not to belong to it are decoded as text.
func (u *unescaper) resolve(d *digest) {
	r, n := escape(u.pending)
	if n == 0 {
		return
	}
	d.write(utf8.AppendRune(u.out[:0], r))
	rest := u.pending[n:]
	u.pending = u.pending[:0]
	u.write(d, rest)
}

// afterBackslash reports whether the last byte written is a backslash that starts an escape.
func (u *unescaper) afterBackslash() bool {
	return len(u.pending) > 0 && u.pending[len(u.pending)-1] == '\\'
}

// end ends the text. A pending escape is then half of a surrogate pair, or invalid JSON.
func (u *unescaper) end(d *digest) {
	rest := u.pending
	if len(rest) >= unitLen {
		d.write(utf8.AppendRune(u.out[:0], utf8.RuneError))
		rest = rest[unitLen:]
	}
	d.write(rest)
	u.pending = u.pending[:0]
}

// unitLen is the length of \uXXXX in bytes.
const unitLen = 6

// escape decodes the escape at the start of raw and returns its length in bytes, 0 if it is not complete yet. A character
// that JSON does not know after a backslash stands for itself.
func escape(raw []byte) (r rune, n int) {
	if r, n = body.Escape(raw, false); n < 0 {
		return rune(raw[1]), 2
	}
	return r, n
}
