package relay

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// bursts returns its parts one at a time, as an engine sends them.
type bursts struct {
	parts []string
	asked []int // how much each read could take
}

// Read implements io.Reader.
func (b *bursts) Read(p []byte) (int, error) {
	b.asked = append(b.asked, len(p))
	if len(b.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.parts[0])
	if b.parts[0] = b.parts[0][n:]; b.parts[0] == "" {
		b.parts = b.parts[1:]
	}
	return n, nil
}

func TestAnswerBuffers(t *testing.T) {
	long := strings.Repeat("x", burstBuffer+waitBuffer)
	from := &bursts{parts: []string{"token", long, "token", "token"}}
	want := "token" + long + "tokentoken"
	a := NewAnswer(from)
	var got strings.Builder
	for {
		chunk, err := a.Peek()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if again, err := a.Peek(); err != nil || &again[0] != &chunk[0] || len(again) != len(chunk) {
			t.Fatalf("unskipped bytes have changed: %d bytes, then %d, %v", len(chunk), len(again), err)
		}
		got.Write(chunk)
		a.Skip()
	}
	a.Free()
	if got.String() != want {
		t.Errorf("read %d bytes of %d, or others", got.Len(), len(want))
	}
	// Small for the token and the beginning of the burst, large until a read shows that it is over.
	sizes := []int{waitBuffer, waitBuffer, burstBuffer, burstBuffer, waitBuffer, waitBuffer}
	if len(from.asked) != len(sizes) {
		t.Fatalf("reads of %v bytes", from.asked)
	}
	for i, n := range sizes {
		if from.asked[i] != n {
			t.Errorf("read %d could take %d bytes, want %d", i, from.asked[i], n)
		}
	}
}

func TestAnswerReadReturnsPeekedBytes(t *testing.T) {
	a := NewAnswer(iotest.OneByteReader(strings.NewReader("an answer")))
	defer a.Free()
	if chunk, err := a.Peek(); err != nil || string(chunk) != "a" {
		t.Fatalf("%q, %v", chunk, err)
	}
	if b, err := io.ReadAll(a); err != nil || string(b) != "an answer" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestAnswerBreaksOff(t *testing.T) {
	broken := errors.New("broken")
	a := NewAnswer(io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)))
	defer a.Free()
	if chunk, err := a.Peek(); err != nil || string(chunk) != "half" {
		t.Fatalf("%q, %v", chunk, err)
	}
	a.Skip()
	for range 2 {
		if _, err := a.Peek(); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
	}
}

// Waiting for events allocates nothing, however many there are.
func TestAnswerAllocs(t *testing.T) {
	from := &bursts{asked: make([]int, 0, 1<<20)}
	a := NewAnswer(from)
	defer a.Free()
	parts := make([]string, 200)
	allocs := testing.AllocsPerRun(100, func() {
		for i := range parts {
			parts[i] = "data: {}\n\n"
		}
		from.parts = parts
		for range parts {
			if _, err := a.Peek(); err != nil {
				t.Fatal(err)
			}
			a.Skip()
		}
	})
	if allocs > 0 {
		t.Errorf("%v objects for %d events", allocs, len(parts))
	}
}
