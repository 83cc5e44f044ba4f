package tokens

import "testing"

// TestShortWordsAreTold: a place holds the word that was put there and no other, such as one that differs only in bits that the end has.
func TestShortWordsAreTold(t *testing.T) {
	const end = 0x6f6f6f6f6f6f6f6f
	for _, test := range []struct {
		place  shortWord
		lo, hi uint64
		length int
		want   bool
	}{
		{shortWord{}, 1, 0, 1, false},
		{shortWord{}, 2, 0, 2, false},
		{shortWord{lo: 0x61, length: 1}, 0x61, 0, 1, true},
		{shortWord{lo: 0x61, length: 1}, 0x61, 0, 2, false},
		{shortWord{lo: 0x61, length: 1}, 0x62, 0, 1, false},
		{shortWord{lo: 0x61, hi: end, length: 16}, 0x61, end, 16, true},
		{shortWord{lo: 0x61, hi: end, length: 16}, 0x63, end, 16, false},
		{shortWord{lo: 0x61, hi: end, length: 16}, 0x61, end ^ 1, 16, false},
	} {
		if got := test.place.holds(test.lo, test.hi, test.length); got != test.want {
			t.Errorf("%+v, asked for %x %x of %d bytes: %v", test.place, test.lo, test.hi, test.length, got)
		}
	}
}
