package body

import (
	"strings"
	"testing"
)

// plainIDs does byte by byte what runIDs does by eight.
func plainIDs(in string) (int, int) {
	at, count := 0, 0
	for {
		rest := strings.TrimPrefix(in[at:], " ")
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		if digits == 0 || rest[0] == '0' || !strings.HasPrefix(rest[digits:], ",") {
			return at, count
		}
		at = len(in) - len(rest) + digits + 1
		count++
	}
}

// TestRunIDs tries every text of six bytes out of the classes, and a comma and a
// space with the high bit set, between others that shift it over the words.
func TestRunIDs(t *testing.T) {
	const alphabet, length = "07, \xac\xa0", 6
	text := make([]byte, length)
	total := 1
	for range length {
		total *= len(alphabet)
	}
	for _, around := range [][2]string{{"", ",12345678"}, {"1234,", ",1,1,1,1,1,1"}, {"12, 34, 5", "6,7]"}, {"1111111111", "1111111111,"}} {
		for n := range total {
			for i := range text {
				text[i] = alphabet[n%len(alphabet)]
				n /= len(alphabet)
			}
			in := around[0] + string(text) + around[1]
			at, count := runIDs([]byte(in), 0)
			// An element that ends in the bytes after the last word is left to others.
			wantAt, wantCount := plainIDs(in)
			ends := at + strings.IndexByte(in[at:], ',')
			if at > wantAt || count > wantCount || at < wantAt && ends < len(in)&^7 {
				t.Fatalf("%q: stopped at %d after %d, want %d after %d", in, at, count, wantAt, wantCount)
			}
			if prefixAt, prefixCount := plainIDs(in[:at]); prefixAt != at || prefixCount != count {
				t.Fatalf("%q: stopped at %d after %d, but there were %d", in, at, count, prefixCount)
			}
		}
	}
}

func TestRunIDsGoesFar(t *testing.T) {
	in := tokenIDs(1000, ", ")
	from := len(`{"model":"m","prompt":[`)
	at, count := runIDs(in, from)
	if count != 1 {
		t.Fatalf("stopped at %d after %d", at, count)
	}
	// One id is 0, which is left to step.
	_, more := runIDs(in, at+len(" 0,"))
	if more < 990 {
		t.Errorf("%d of 998", more)
	}
}
