//go:build !race

package kvhash

import "testing"

// The race detector has the standard library and pools allocate.
func TestAppendAllocatesNothing(t *testing.T) {
	tokens := make([]uint32, 1024)
	for _, name := range names[1:] {
		a, err := Parse(name, "0")
		if err != nil {
			t.Fatal(err)
		}
		h, p := New(a), Prompt{Tokens: tokens, BlockTokens: 16, Salt: "s"}
		if a.method == sglang {
			p.Salt = ""
		}
		dst := h.Append(nil, &p)
		if n := testing.AllocsPerRun(10, func() { dst = h.Append(dst[:0], &p) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
