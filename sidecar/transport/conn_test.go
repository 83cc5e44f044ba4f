package transport

import (
	"bytes"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestSegmentReader(t *testing.T) {
	segments := [][]byte{[]byte("one "), []byte("two "), []byte("three")}
	read := func(r io.Reader) string {
		b, err := io.ReadAll(r)
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	for range 2 { // what one reader reads is there for the next
		if got := read(newSegmentReader(segments)); got != "one two three" {
			t.Errorf("read %q", got)
		}
		if got := read(iotest.OneByteReader(newSegmentReader(segments))); got != "one two three" {
			t.Errorf("read %q byte by byte", got)
		}
	}
	if got := read(newSegmentReader(nil)); got != "" {
		t.Errorf("read %q of nothing", got)
	}
}

// connPair returns a connection made by a leg's dialer, and its other end.
func connPair(t *testing.T) (near conn, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := dialPlain(new(net.Dialer))(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	near, ok := c.(conn)
	if !ok {
		t.Fatalf("the dialer gave a %T", c)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

func TestConnReadFrom(t *testing.T) {
	long := strings.Repeat("segment ", 100_000)
	segments := [][]byte{[]byte("one "), []byte(long), []byte("three")}
	whole := "one " + long + "three"
	begun := newSegmentReader(segments)
	if _, err := io.CopyN(io.Discard, begun, 6); err != nil {
		t.Fatal(err)
	}
	size := int64(len(whole))
	for _, c := range []struct {
		name string
		from io.Reader
		want string
	}{
		{"buffered", io.LimitReader(newSegmentReader(segments), size), whole},
		{"buffered, its beginning written with the header", io.LimitReader(begun, size-6), whole[6:]},
		{"buffered, longer than was declared", io.LimitReader(newSegmentReader(segments), 9), whole[:9]},
		{"streamed", io.LimitReader(strings.NewReader(whole), size), whole},
		{"of unknown length", strings.NewReader(whole), whole},
		{"empty", io.LimitReader(newSegmentReader(nil), 0), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := connPair(t)
			got := make(chan []byte, 1)
			go func() {
				b, _ := io.ReadAll(far)
				got <- b
			}()
			n, err := near.ReadFrom(c.from)
			if err != nil || n != int64(len(c.want)) {
				t.Errorf("%d bytes of %d, %v", n, len(c.want), err)
			}
			if err := near.CloseWrite(); err != nil {
				t.Error(err)
			}
			if b := wait(t, got, "the bytes"); string(b) != c.want {
				t.Errorf("%d bytes arrived, other than the %d sent", len(b), len(c.want))
			}
		})
	}
	if !bytes.Equal(slices.Concat(segments...), []byte(whole)) {
		t.Error("the segments have changed")
	}
}

func TestConnReadFromClosed(t *testing.T) {
	near, _ := connPair(t)
	near.Close()
	for name, r := range map[string]io.Reader{"buffered": newSegmentReader([][]byte{[]byte("x")}), "streamed": strings.NewReader("x")} {
		if _, err := near.ReadFrom(io.LimitReader(r, 1)); err == nil {
			t.Errorf("%s: writing to a closed connection did not fail", name)
		}
	}
}

// TestConnAllocs checks that a buffered body costs no further buffer.
func TestConnAllocs(t *testing.T) {
	near, far := connPair(t)
	drained := make(chan error, 1)
	go func() { _, err := io.Copy(io.Discard, far); drained <- err }()
	segment := make([]byte, 64<<10)
	for name, c := range map[string]struct {
		read func() io.Reader
		most float64
	}{
		// The two readers, the copy of the outer slice, and net's view of the buffers.
		"buffered": {func() io.Reader { return newSegmentReader([][]byte{segment, segment}) }, 6},
		"streamed": {func() io.Reader { return struct{ io.Reader }{bytes.NewReader(segment)} }, 5},
	} {
		allocs := testing.AllocsPerRun(100, func() {
			if _, err := near.ReadFrom(io.LimitReader(c.read(), 128<<10)); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > c.most {
			t.Errorf("%s: %v objects for one body, want at most %v", name, allocs, c.most)
		}
	}
	near.Close()
	if err := wait(t, drained, "the end"); err != nil {
		t.Error(err)
	}
}
