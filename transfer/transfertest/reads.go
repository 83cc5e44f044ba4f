package transfertest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
)

func readsAnySpans(t *testing.T, k Kind) {
	part := uint64(k.PartBytes)
	large := max(5*part, 32<<20)
	owner, reader := k.pair(t)
	_, first := k.register(t, owner, int(large), 1)
	_, second := k.register(t, owner, 4099, 2)
	peer := load(t, reader, owner)

	var small, mixed []transfer.Span
	for i := range 3*k.PartSpans + 5 {
		small = append(small, span(0, uint64(i*40), 13))
		mixed = append(mixed, span(uint32(i%2), uint64(i%4000), uint64(i%5)))
	}
	for name, spans := range map[string][]transfer.Span{
		"one":               {span(0, 0, 4096)},
		"several":           {span(0, 0, 100), span(1, 50, 100), span(0, 200, 100)},
		"one after another": {span(0, 0, 100), span(0, 100, 100), span(0, 200, 1)},
		"backwards":         {span(0, 200, 100), span(0, 100, 100), span(0, 0, 100)},
		"overlapping":       {span(0, 0, 100), span(0, 50, 100)},
		"unaligned":         {span(0, 1, 4095), span(0, 4097, 3)},
		"last byte":         {span(0, large-1, 1), span(1, 4098, 1)},
		"nothing":           {},
		"empty span":        {span(0, 7, 0)},
		"empty at the end":  {span(1, 4099, 0)},
		"empty amid others": {span(0, 0, 0), span(0, 5, 5), span(1, 0, 0), span(0, 9, 0), span(1, 1, 1), span(0, 0, 0)},
		"many":              small,
		"many in turns":     mixed,
		"exactly one part":  {span(0, 3, part)},
		"one too large":     {span(0, 3, part+1)},
		"large after small": {span(1, 0, 10), span(0, 3, 3*part+17), span(1, 10, 10)},
		"all":               {span(0, 0, large)},
	} {
		t.Run(name, func(t *testing.T) { mustRead(t, reader, peer, spans, first, second) })
	}
}

func refusesWrongReads(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	k.register(t, owner, 1000, 1)
	peer := load(t, reader, owner)
	for name, c := range map[string]struct {
		peer  transfer.Peer
		spans []transfer.Span
		sizes []int // of the buffers
		want  error
	}{
		"unknown peer":           {"stranger", []transfer.Span{span(0, 0, 1)}, []int{1}, transfer.ErrUnknownPeer},
		"fewer buffers":          {peer, []transfer.Span{span(0, 0, 1), span(0, 1, 1)}, []int{1}, transfer.ErrInvalid},
		"more buffers":           {peer, []transfer.Span{span(0, 0, 1)}, []int{1, 1}, transfer.ErrInvalid},
		"buffer too small":       {peer, []transfer.Span{span(0, 0, 2), span(0, 2, 2)}, []int{2, 1}, transfer.ErrInvalid},
		"buffer too large":       {peer, []transfer.Span{span(0, 0, 2)}, []int{3}, transfer.ErrInvalid},
		"unknown region":         {peer, []transfer.Span{span(1, 0, 1)}, []int{1}, transfer.ErrRange},
		"past the end":           {peer, []transfer.Span{span(0, 0, 5), span(0, 999, 2)}, []int{5, 2}, transfer.ErrRange},
		"starts past the end":    {peer, []transfer.Span{span(0, 1001, 0)}, []int{0}, transfer.ErrRange},
		"sum wraps around":       {peer, []transfer.Span{span(0, ^uint64(0), 2)}, []int{2}, transfer.ErrRange},
		"empty, unknown region":  {peer, []transfer.Span{span(9, 0, 0)}, []int{0}, transfer.ErrRange},
		"one bad of many, last":  {peer, []transfer.Span{span(0, 0, 5), span(0, 5, 5), span(2, 0, 5)}, []int{5, 5, 5}, transfer.ErrRange},
		"one bad of many, first": {peer, []transfer.Span{span(2, 0, 5), span(0, 0, 5)}, []int{5, 5}, transfer.ErrRange},
	} {
		t.Run(name, func(t *testing.T) {
			into := make([][]byte, len(c.sizes))
			for i, n := range c.sizes {
				into[i] = make([]byte, n)
			}
			wantErr(t, reader.Read(within(t), c.peer, c.spans, into, []byte("read")), c.want)
			for i, b := range into {
				if !bytes.Equal(b, make([]byte, len(b))) {
					t.Errorf("bytes moved into buffer %d", i)
				}
			}
		})
	}
	wantNoMessage(t, reader, peer, owner)
}

func notifiesAfterRead(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	_, mem := k.register(t, owner, 3*k.PartBytes, 1)
	peer := load(t, reader, owner)
	spans := []transfer.Span{span(0, 0, uint64(len(mem)))}
	for _, message := range []string{"request-1:1", ""} {
		into := buffers(spans)
		if err := reader.Read(within(t), peer, spans, into, []byte(message)); err != nil {
			t.Fatal(err)
		}
		wantBytes(t, into, spans, mem)
		if n := receive(t, owner); n.From != "reader" || string(n.Message) != message {
			t.Errorf("got %q from %s, want %q from reader", n.Message, n.From, message)
		}
	}
	mustRead(t, reader, peer, spans, mem) // without a message
	wantNoMessage(t, reader, peer, owner)
}

func servesConcurrentReads(t *testing.T, k Kind) {
	const readers, rounds = 16, 20
	owner, reader := k.pair(t)
	_, mem := k.register(t, owner, 4<<20, 1)
	peer := load(t, reader, owner)
	var reading sync.WaitGroup
	for g := range readers {
		reading.Go(func() {
			for i := range rounds {
				spans := []transfer.Span{span(0, uint64(g*1000+i), uint64(1+i*10_000)), span(0, uint64(i), 64<<10), span(0, 0, uint64(g*100_000))}
				into := buffers(spans)
				if err := reader.Read(within(t), peer, spans, into, []byte("read")); err != nil {
					t.Errorf("reader %d, round %d: %v", g, i, err)
					return
				}
				for n, s := range spans {
					if !bytes.Equal(into[n], mem[s.Offset:][:s.Length]) {
						t.Errorf("reader %d, round %d: wrong bytes in span %d", g, i, n)
					}
				}
			}
		})
	}
	reading.Wait()
	if t.Failed() {
		return
	}
	for range readers * rounds {
		receive(t, owner)
	}
	wantNoMessage(t, reader, peer, owner)
}

// readsWhilePeersChange reads while the peer is forgotten and loaded. Reads may fail because the peer is unknown; those that
// succeed have the right bytes.
func readsWhilePeersChange(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	_, mem := k.register(t, owner, 3*k.PartBytes/2+1, 1)
	peer := load(t, reader, owner)
	ctx, stop := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	for range 3 {
		changing.Go(func() {
			spans := []transfer.Span{span(0, 0, uint64(len(mem)))}
			into := buffers(spans)
			for ctx.Err() == nil {
				err := reader.Read(within(t), peer, spans, into, nil)
				if err != nil && !errors.Is(err, transfer.ErrUnknownPeer) {
					t.Error(err)
				}
				if err == nil && !bytes.Equal(into[0], mem) {
					t.Error("wrong bytes")
				}
			}
		})
	}
	for range 30 {
		reader.Forget(peer)
		load(t, reader, owner)
	}
	stop()
	changing.Wait()
	mustRead(t, reader, peer, []transfer.Span{span(0, 0, uint64(len(mem)))}, mem)
}
