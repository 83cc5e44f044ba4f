package intake

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tandem-serving/tandem/pd/request"
)

func TestLookAhead(t *testing.T) {
	const limit, memory = 100_000, 1 << 20
	for _, c := range []struct {
		name   string
		length int
		memory int64
		whole  bool
	}{
		{"empty", 0, memory, true},
		{"short", 10, memory, true},
		{"one segment", firstSegment, memory, true},
		{"several segments", 90_000, memory, true},
		{"long", 300_000, memory, false},
		{"as long as nothing stops it", 5 << 20, memory, false},
		{"no memory", 10, 100, false},
		{"little memory", 40_000, firstSegment, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := New(Config{BodyLimit: 8 << 20, BufferLimit: c.memory, Table: request.NewTable(nil), Log: slog.New(slog.DiscardHandler)})
			sent := bytes.Repeat([]byte("0123456789"), c.length/10+1)[:c.length]
			r := httptest.NewRequest(http.MethodPost, "/", iotest.HalfReader(bytes.NewReader(sent)))
			r.ContentLength = -1
			whole, free, err := in.LookAhead(r, &PacedBody{ctx: t.Context()}, limit)
			if err != nil || whole != c.whole {
				t.Fatalf("whole %v, %v", whole, err)
			}
			if want := map[bool]int64{true: int64(c.length), false: -1}[whole]; r.ContentLength != want {
				t.Errorf("length %d, want %d", r.ContentLength, want)
			}
			got, err := io.ReadAll(r.Body)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes again, want %d; %v", len(got), c.length, err)
			}
			if n := in.Buffered(); n != 0 {
				t.Errorf("%v bytes are buffered after they were read", n)
			}
			free()
			if err := r.Body.Close(); err != nil || in.Buffered() != 0 {
				t.Errorf("%v bytes are buffered at the end, %v", in.Buffered(), err)
			}
		})
	}
}

// A body that breaks off, or is never read again, leaves no memory behind.
func TestLookAheadFails(t *testing.T) {
	in := New(Config{BodyLimit: 8 << 20, BufferLimit: 1 << 20, Table: request.NewTable(nil), Log: slog.New(slog.DiscardHandler)})
	r := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF)))
	whole, free, err := in.LookAhead(r, &PacedBody{ctx: t.Context()}, 100)
	if !errors.Is(err, ErrClientLeft) || whole {
		t.Errorf("whole %v, %v", whole, err)
	}
	free()
	if n := in.Buffered(); n != 0 {
		t.Errorf("%v bytes are buffered", n)
	}
}
