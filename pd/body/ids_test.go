package body

import (
	"bytes"
	"strconv"
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

func TestOnlyIDs(t *testing.T) {
	cases := []struct {
		list string
		want bool
	}{
		{`[]`, true},
		{`[5]`, true},
		{`[0, 5,6,	7]`, true},
		{"[\n  128000,\r\n  999999\n]", true},
		{`[[5,6],[7],[]]`, true},
		{`[[[5]]]`, true},
		{`[1000000]`, false},
		{`[5,2147483648]`, false},
		{`[5,18446744073709551616]`, false},
		{`[-1]`, false},
		{`[5,-0]`, false},
		{`[5,1.5]`, false},
		{`[5,1e3]`, false},
		{`[5,1E3]`, false},
		{`[5,"7"]`, false},
		{`[5,"ø"]`, false},
		{`[5,true]`, false},
		{`[5,null]`, false},
		{`[5,NaN]`, false},
		{`[5,-Infinity]`, false},
		{`[5,{}]`, false},
	}
	for _, c := range cases {
		for shift := range 9 { // over the words
			in := "[" + strings.Repeat(" ", shift) + c.list + ",123456,123456,123456]"
			for cut := range len(in) + 1 {
				var b Body
				b.Append([]byte(in[:cut]))
				b.Append([]byte(in[cut:]))
				if got := b.OnlyIDs(Span{0, b.Len()}); got != c.want {
					t.Fatalf("%q, cut at %d: got %v", in, cut, got)
				}
			}
		}
	}
	var b Body
	b.Append([]byte(`{"temperature":-1.5,"prompt":[123456],"n":-1}`))
	if !b.OnlyIDs(Span{29, 37}) {
		t.Error("something beside the list counts")
	}
}

func BenchmarkOnlyIDs(b *testing.B) {
	for _, n := range []int{1_000, 1_000_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			text := tokenIDs(n, ",")
			from, to := bytes.IndexByte(text, '['), bytes.IndexByte(text, ']')+1
			var list Body
			for at := from; at < to; at += 64 << 10 {
				list.Append(text[at:min(at+64<<10, to)])
			}
			b.SetBytes(list.Len())
			b.ReportAllocs()
			for b.Loop() {
				if !list.OnlyIDs(Span{0, list.Len()}) {
					b.Fatal("no list of ids")
				}
			}
		})
	}
}
