package kv

import (
	"fmt"
	"testing"
)

// TestHost: blocks enter once and with a copy of their content, and those that were not used for longest go.
func TestHost(t *testing.T) {
	hashes := AppendHashes(nil, tokens(4*32), 32, "")
	h, told := NewHost(3), ""
	h.Stored = func(hash Hash) { told += fmt.Sprintf("+%x ", hash[0]) }
	h.Dropped = func(hash Hash) { told += fmt.Sprintf("-%x ", hash[0]) }
	data := []byte{0}
	for i := range 3 {
		data[0] = byte(i)
		h.Put(hashes[i], data)
		h.Put(hashes[i], nil)
	}
	h.Touch(hashes[:1])
	h.Put(hashes[3], data)
	if want := fmt.Sprintf("+%x +%x +%x -%x +%x ", hashes[0][0], hashes[1][0], hashes[2][0], hashes[1][0], hashes[3][0]); told != want {
		t.Errorf("told %q, want %q", told, want)
	}
	if got := fmt.Sprint(h.Find(hashes), h.Find(hashes[2:])); got != "[[0]] [[2] [2]]" {
		t.Errorf("found %s", got)
	}
	var none Host
	if none.Put(hashes[0], data); none.Find(hashes) != nil {
		t.Error("without space a block is kept")
	}
}
