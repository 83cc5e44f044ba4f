package epp

import (
	"bytes"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pd/body"
)

// unescaper turns the raw text of a JSON string, cut anywhere, into what it stands for: one prompt must hash and count
// equal however its newlines are spelled. It decodes as encoding/json does, but that bytes that are no UTF-8 stay, and that
// escapes JSON does not know are no error: the engine will refuse them.
type unescaper struct {
	held []byte    // the beginning of an escape, or of a pair of them that makes one character
	out  [256]byte // scratch
}

// reset forgets what is held.
func (u *unescaper) reset() { u.held = u.held[:0] }

// write decodes p into d. Text between escapes that is short is gathered, long text is hashed where it lies.
func (u *unescaper) write(d *digest, p []byte) {
	for len(u.held) > 0 && len(p) > 0 {
		u.held, p = append(u.held, p[0]), p[1:]
		u.settle(d)
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
				u.held = append(u.held[:0], p...)
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

// settle decodes the held escape if it is whole. What was held and turned out not to belong to it is text again.
func (u *unescaper) settle(d *digest) {
	r, n := escape(u.held)
	if n == 0 {
		return
	}
	d.write(utf8.AppendRune(u.out[:0], r))
	rest := u.held[n:]
	u.held = u.held[:0]
	u.write(d, rest)
}

// begun reports whether a backslash was written last whose escape has to come.
func (u *unescaper) begun() bool { return len(u.held) > 0 && u.held[len(u.held)-1] == '\\' }

// end tells that nothing follows. What is held then is a lone half of a surrogate pair, or no JSON.
func (u *unescaper) end(d *digest) {
	rest := u.held
	if len(rest) >= unitLen {
		d.write(utf8.AppendRune(u.out[:0], utf8.RuneError))
		rest = rest[unitLen:]
	}
	d.write(rest)
	u.held = u.held[:0]
}

// unitLen is the length of \uXXXX in bytes.
const unitLen = 6

// escape reads the escape at the start of raw and tells its length in bytes: 0 if more of it has to come. What follows a
// backslash that JSON does not know stands for itself.
func escape(raw []byte) (r rune, n int) {
	if r, n = body.Escape(raw, false); n < 0 {
		return rune(raw[1]), 2
	}
	return r, n
}
