package intake

import (
	"io"
	"strings"
	"testing"
)

// What is kept of a body for sending it again is released when the answer begins, but not while it is being read again.
func TestKeptBodyIsReleased(t *testing.T) {
	in := New(testConfig)
	text := `{"prompt":"` + strings.Repeat("a", 2000) + `"}`
	g := in.Guard(strings.NewReader(text))
	defer g.Free()
	first, err := g.Again()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(first); string(b) != text || err != nil {
		t.Fatalf("%q, %v", b, err)
	}
	second, err := g.Again()
	if err != nil {
		t.Fatal(err)
	}
	begin := make([]byte, 100)
	if _, err := io.ReadFull(second, begin); err != nil {
		t.Fatal(err)
	}
	g.Answered() // early, while the body is sent again
	if rest, err := io.ReadAll(second); string(begin)+string(rest) != text || err != nil {
		t.Errorf("%q and %q, %v", begin, rest, err)
	}
	if g.Answered(); g.kept != nil {
		t.Error("the body is still kept")
	}
	if n, err := second.Read(begin); n != 0 || err != io.EOF {
		t.Errorf("%d bytes after the end, %v", n, err)
	}
}
