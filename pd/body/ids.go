package body

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// skipIDs reads elements of an array while they are token ids: positive integers, each with its comma and at most one space.
// It begins and ends before a value, and leaves everything else to step.
func (s *Scanner) skipIDs(p []byte, i int) int {
	if s.depth != s.tracked {
		i, _ = runIDs(p, i)
		return i
	}
	f := s.top()
	if f.node.any != nil {
		return i // every element is a member
	}
	i, n := runIDs(p, i)
	f.count += n
	return i
}

// ones has 1 in each byte, highs has the high bit in each byte.
const (
	ones  = 0x0101010101010101
	highs = 0x80 * ones
)

// runIDs skips elements of p from index i, where a value must begin. It returns the index where it stopped, where a value
// must begin again, and how many elements it skipped.
//
// It looks at eight bytes at once. A mask has the high bit in each byte that is not in a class of bytes, and the masks say
// whether each byte may follow the one before: a comma follows only a digit, a space only a comma, a digit anything. It also
// stops at a zero that begins a number, which is either the number 0 or wrong.
func runIDs(p []byte, i int) (int, int) {
	if i == len(p) || p[i] > '9' {
		return i, 0 // usually an object
	}
	start, count := i, 0
	// The masks of the byte before p[i], as if it were a comma.
	var lastDigit, lastComma, lastSpace uint64 = 0x80, 0, 0x80
	for ; i+8 <= len(p); i += 8 {
		w := binary.LittleEndian.Uint64(p[i:])
		// Now a digit is at most 9, which stays below 0x80 after adding 0x76; a byte that is equal is 0, which stays below
		// 0x80 after adding 0x7F. A byte beyond ASCII may carry into the next, but it is wrong itself, and only the first
		// wrong byte counts.
		x := w ^ '0'*ones
		zero := x + 0x7F*ones
		digit := x + 0x76*ones
		comma := (x ^ ('0'^',')*ones) + 0x7F*ones
		space := (x ^ ('0'^' ')*ones) + 0x7F*ones
		beforeDigit := digit<<8 | lastDigit
		beforeComma := comma<<8 | lastComma
		beforeSpace := space<<8 | lastSpace
		wrong := (w | digit&comma&space | beforeDigit&^comma | beforeComma&^space | ^(zero | beforeComma&beforeSpace)) & highs
		if wrong != 0 {
			// All bytes before the wrong one are right.
			n := bits.TrailingZeros64(wrong) / 8
			count += bits.OnesCount64(^comma & highs & (1<<(8*n) - 1))
			i += n
			break
		}
		count += bits.OnesCount64(^comma & highs)
		lastDigit, lastComma, lastSpace = digit>>56, comma>>56, space>>56
	}
	if count == 0 {
		return start, 0
	}
	return start + bytes.LastIndexByte(p[start:i], ',') + 1, count
}

// idDigits is the most digits of a token id that OnlyIDs accepts. No vocabulary has a million tokens.
const idDigits = 6

// OnlyIDs reports whether a span that is an array has nothing in it but token ids and further arrays: integers without a sign, a
// fraction or an exponent, and less than a million. The span must be valid JSON.
func (b *Body) OnlyIDs(s Span) bool {
	run := 0 // digits at the end of the segments so far
	for k := b.segment(s.Start); s.Start < s.End; k++ {
		from, to := s.Start-b.start(k), min(s.End, b.ends[k])-b.start(k)
		if run = onlyIDs(b.segments[k][from:to], run); run > idDigits {
			return false
		}
		s.Start = b.ends[k]
	}
	return true
}

// onlyIDs reads a part of an array of ids that comes after run digits. It returns how many digits the part ends in, and more than
// idDigits if something in it is no id. Like runIDs it looks at eight bytes at once, of which one must be no digit.
func onlyIDs(p []byte, run int) int {
	for ; len(p) >= 8; p = p[8:] {
		w := binary.LittleEndian.Uint64(p)
		// A byte beyond ASCII may carry into the next, but it is in a string, whose quote is wrong before it.
		other := (w | ((w ^ '0'*ones) + 0x76*ones)) & highs
		comma := (w ^ ','*ones) + 0x7F*ones
		white := w + (0x80-'!')*ones
		bracket := ((w | ('['^']')*ones) ^ ('['|']')*ones) + 0x7F*ones
		if other&(w|comma&white&bracket) != 0 || run+bits.TrailingZeros64(other)/8 > idDigits {
			return idDigits + 1
		}
		run = bits.LeadingZeros64(other) / 8
	}
	for _, c := range p {
		switch {
		case c >= '0' && c <= '9':
			run++
		case c == ',', c == '[', c == ']', isSpace(c):
			if run > idDigits {
				return run
			}
			run = 0
		default:
			return idDigits + 1
		}
	}
	return run
}
