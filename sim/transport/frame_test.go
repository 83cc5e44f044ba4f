package transport

import (
	"bytes"
	"maps"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
)

// endless returns data and then zeros without end: a parser that trusts a wrong length reads until memory runs out.
type endless struct{ data []byte }

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.data)
	e.data = e.data[n:]
	clear(p[n:])
	return len(p), nil
}

func FuzzRequest(f *testing.F) {
	f.Add(readRequestFor(spanAt(1, 2, 3), spanAt(4, 5, 6)))
	f.Add(appendFrame(nil, opNotify, transfer.MaxMessage))
	f.Add(appendFrame(nil, opNotify, transfer.MaxMessage+1))
	f.Add(appendFrame(nil, opRead, 1<<30))
	f.Add(readRequestFor(spanAt(0, 0, maxPart), spanAt(0, 0, ^uint64(0))))
	f.Fuzz(func(t *testing.T, data []byte) {
		var buf []byte
		op, payload, err := readRequest(&endless{data: data}, &buf)
		if cap(buf) > max(transfer.MaxMessage, maxSpans*spanSize) {
			t.Fatalf("%d bytes allocated", cap(buf))
		}
		if err != nil || op != opRead {
			return
		}
		spans, total, err := parseSpans(nil, payload)
		if err != nil {
			return
		}
		sum := uint64(0)
		for _, s := range spans {
			sum += s.Length
		}
		if len(spans) > maxSpans || total > maxPart || sum != uint64(total) {
			t.Fatalf("accepted %d spans of %d bytes, counted as %d", len(spans), sum, total)
		}
		if !bytes.Equal(appendSpans(nil, spans), payload) {
			t.Fatal("spans do not say what the request said")
		}
	})
}

func FuzzHello(f *testing.F) {
	f.Add(hello{identity: identity{"owner", 1 << 63}}.append(nil))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := readHello(bytes.NewReader(data))
		if err != nil || h.version != protocolVersion {
			return
		}
		if back := h.append(nil); !bytes.HasPrefix(data, back) {
			t.Fatalf("%+v came from %x and writes %x", h, data, back)
		}
	})
}

func FuzzMetadata(f *testing.F) {
	f.Add(metadata{identity: identity{"owner", 7}, kind: kindTCP, address: "127.0.0.1:1", regions: map[uint32]uint64{0: 1, 9: 1 << 40}}.append(nil))
	f.Add(metadata{identity: identity{"owner", 7}, kind: kindMem}.append(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseMetadata(data)
		if err != nil {
			return
		}
		back, err := parseMetadata(m.append(nil))
		if err != nil {
			t.Fatal(err)
		}
		if back.identity != m.identity || back.kind != m.kind || back.address != m.address || !maps.Equal(back.regions, m.regions) {
			t.Fatalf("%+v became %+v", m, back)
		}
	})
}

func TestCutter(t *testing.T) {
	many := make([]transfer.Span, 2*maxSpans+1)
	for name, c := range map[string]struct {
		spans []transfer.Span
		parts int
	}{
		"nothing":             {nil, 1},
		"empty span":          {[]transfer.Span{spanAt(0, 5, 0)}, 1},
		"small":               {[]transfer.Span{spanAt(0, 5, 10), spanAt(1, 5, 10)}, 1},
		"too many":            {many, 3},
		"one part exactly":    {[]transfer.Span{spanAt(0, 0, maxPart-1), spanAt(0, 0, 1)}, 1},
		"one byte more":       {[]transfer.Span{spanAt(0, 0, maxPart), spanAt(0, 0, 1)}, 2},
		"large":               {[]transfer.Span{spanAt(3, 7, 2*maxPart+1)}, 3},
		"large amid small":    {[]transfer.Span{spanAt(0, 0, 1), spanAt(0, 9, maxPart+1), spanAt(0, 0, 1)}, 4},
		"two large, adjacent": {[]transfer.Span{spanAt(0, 0, maxPart+1), spanAt(0, maxPart+1, maxPart+1)}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			into := buffers(c.spans)
			parts, bytesLeft := 0, 0
			for _, s := range c.spans {
				bytesLeft += int(s.Length)
			}
			for cut := (cutter{spans: c.spans, into: into}); cut.more(); parts++ {
				a := cut.next()
				if len(a.spans) > maxSpans || a.total > maxPart || len(a.spans) != len(a.into) {
					t.Fatalf("part %d: %d spans, %d buffers, %d bytes", parts, len(a.spans), len(a.into), a.total)
				}
				for i, s := range a.spans {
					if uint64(len(a.into[i])) != s.Length {
						t.Fatalf("part %d: span of %d bytes for a buffer of %d", parts, s.Length, len(a.into[i]))
					}
					// Each buffer gets the offset of its bytes, to be compared with what was asked for.
					for k := range a.into[i] {
						a.into[i][k] = byte((s.Offset + uint64(k)) % 251)
					}
				}
				bytesLeft -= a.total
			}
			if parts != c.parts || bytesLeft != 0 {
				t.Errorf("%d parts, %d bytes left, want %d and none", parts, bytesLeft, c.parts)
			}
			for i, s := range c.spans {
				for k := range into[i] {
					if want := byte((s.Offset + uint64(k)) % 251); into[i][k] != want {
						t.Fatalf("byte %d of span %d is %d, want %d", k, i, into[i][k], want)
					}
				}
			}
		})
	}
}
