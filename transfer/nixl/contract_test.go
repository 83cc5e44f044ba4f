//go:build nixl && cgo && linux

package nixl

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
)

// What follows holds Transport to the contract of transfer.Transport, over the real library, by both means.
func TestContract(t *testing.T) {
	realLibrary(t)
	for name, test := range map[string]func(t *testing.T, tls string){
		"read":             testRead,
		"refused reads":    testRefusedReads,
		"read then tell":   testReadThenTell,
		"notify":           testNotify,
		"load":             testLoad,
		"bare metadata":    testBareMetadata,
		"forget":           testForget,
		"closed":           testClosed,
		"restarted":        testRestarted,
		"context":          testContext,
		"regions":          testRegions,
		"registered later": testRegisteredLater,
		"concurrent reads": testConcurrentReads,
		"churn":            testChurn,
	} {
		for kind, tls := range kinds {
			t.Run(name+"/"+kind, func(t *testing.T) { test(t, tls) })
		}
	}
}

// told takes the next message of a transport.
func told(t testing.TB, a *Transport) transfer.Notification {
	t.Helper()
	select {
	case n, ok := <-a.Notifications():
		if !ok {
			t.Fatal("the transport was closed")
		}
		return n
	case <-within(t).Done():
		t.Fatal("no message came")
		return transfer.Notification{}
	}
}

func mustRead(t testing.TB, a *Transport, from transfer.Peer, spans []transfer.Span, memory ...[]byte) {
	t.Helper()
	into := buffers(spans)
	if err := a.Read(within(t), from, spans, into, nil); err != nil {
		t.Fatal(err)
	}
	wantBytes(t, into, spans, memory...)
}

func span(region uint32, offset, length uint64) transfer.Span {
	return transfer.Span{Region: region, Offset: offset, Length: length}
}

func testRead(t *testing.T, tls string) {
	const large = 5 * slotSize
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	_, first := registered(t, owner, large, 1)
	_, second := registered(t, owner, 4099, 2)
	from := learn(t, reader, owner.Metadata())

	var small, mixed []transfer.Span
	for i := range 3*maxPieces + 5 {
		small = append(small, transfer.Span{Region: 0, Offset: uint64(i * 40), Length: 13})
		mixed = append(mixed, transfer.Span{Region: uint32(i % 2), Offset: uint64(i), Length: uint64(i % 5)})
	}
	for name, spans := range map[string][]transfer.Span{
		"one":               {span(0, 0, 4096)},
		"several":           {span(0, 0, 100), span(1, 50, 100), span(0, 200, 100)},
		"one after another": {span(0, 0, 100), span(0, 100, 100), span(0, 200, 1)},
		"overlapping":       {span(0, 0, 100), span(0, 50, 100)},
		"unaligned":         {span(0, 1, 4095), span(0, 4097, 3)},
		"last byte":         {span(0, large-1, 1), span(1, 4098, 1)},
		"nothing":           {},
		"empty span":        {span(0, 7, 0)},
		"empty at the end":  {span(1, 4099, 0)},
		"empty amid others": {span(0, 0, 0), span(0, 5, 5), span(1, 0, 0), span(0, 9, 0), span(1, 1, 1), span(0, 0, 0)},
		"many":              small,
		"many in turns":     mixed,
		"exactly one slot":  {span(0, 3, slotSize)},
		"one too large":     {span(0, 3, slotSize+1)},
		"large among small": {span(1, 0, 10), span(0, 3, 3*slotSize+17), span(1, 10, 10)},
		"all":               {span(0, 0, large)},
	} {
		t.Run(name, func(t *testing.T) { mustRead(t, reader, from, spans, first, second) })
	}
	if use := reader.Memory(); use.Mapped == 0 || use.Mapped > atOnce*slotSize || use.Quarantined != 0 || use.GivenUp != 0 {
		t.Errorf("the reader holds %+v", use)
	}
	if use := owner.Memory(); use.Mapped != 0 {
		t.Errorf("the owner, which reads nothing, holds %+v", use)
	}
}

func testRefusedReads(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	registered(t, owner, 1000, 1)
	from := learn(t, reader, owner.Metadata())
	span := func(region uint32, offset, length uint64) transfer.Span {
		return transfer.Span{Region: region, Offset: offset, Length: length}
	}
	for name, c := range map[string]struct {
		peer  transfer.Peer
		spans []transfer.Span
		sizes []int
		want  error
	}{
		"unknown peer":          {"stranger", []transfer.Span{span(0, 0, 1)}, []int{1}, transfer.ErrUnknownPeer},
		"fewer buffers":         {from, []transfer.Span{span(0, 0, 1), span(0, 1, 1)}, []int{1}, transfer.ErrInvalid},
		"more buffers":          {from, []transfer.Span{span(0, 0, 1)}, []int{1, 1}, transfer.ErrInvalid},
		"buffer too small":      {from, []transfer.Span{span(0, 0, 2), span(0, 2, 2)}, []int{2, 1}, transfer.ErrInvalid},
		"unknown region":        {from, []transfer.Span{span(1, 0, 1)}, []int{1}, transfer.ErrRange},
		"past the end":          {from, []transfer.Span{span(0, 0, 5), span(0, 999, 2)}, []int{5, 2}, transfer.ErrRange},
		"starts past the end":   {from, []transfer.Span{span(0, 1001, 0)}, []int{0}, transfer.ErrRange},
		"sum wraps around":      {from, []transfer.Span{span(0, ^uint64(0), 2)}, []int{2}, transfer.ErrRange},
		"empty, unknown region": {from, []transfer.Span{span(9, 0, 0)}, []int{0}, transfer.ErrRange},
		"one bad of many":       {from, []transfer.Span{span(0, 0, 5), span(2, 0, 5)}, []int{5, 5}, transfer.ErrRange},
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
	wantErr(t, reader.Read(within(t), from, nil, nil, make([]byte, transfer.MaxMessage+1)), transfer.ErrInvalid)
	if err := reader.Notify(within(t), from, []byte("first")); err != nil {
		t.Fatal(err)
	}
	if n := told(t, owner); string(n.Message) != "first" {
		t.Errorf("the owner was told %q of a read that failed", n.Message)
	}
}

func testReadThenTell(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	_, mem := registered(t, owner, 3*slotSize, 1)
	from := learn(t, reader, owner.Metadata())
	for _, message := range []string{"request-1:1", ""} {
		spans := []transfer.Span{{Length: uint64(len(mem))}}
		into := buffers(spans)
		if err := reader.Read(within(t), from, spans, into, []byte(message)); err != nil {
			t.Fatal(err)
		}
		wantBytes(t, into, spans, mem)
		if n := told(t, owner); n.From != "reader" || string(n.Message) != message {
			t.Errorf("got %q from %s, want %q from reader", n.Message, n.From, message)
		}
	}
}

func testNotify(t *testing.T, tls string) {
	a, b := realTransport(t, "a", tls), realTransport(t, "b", tls)
	to := learn(t, a, b.Metadata())
	long := pattern(transfer.MaxMessage, 3)
	reused := []byte("first")
	for _, message := range [][]byte{reused, {}, long} {
		want := bytes.Clone(message)
		if err := a.Notify(within(t), to, message); err != nil {
			t.Fatal(err)
		}
		clear(reused)
		if n := told(t, b); n.From != "a" || !bytes.Equal(n.Message, want) {
			t.Errorf("got %d bytes from %s, want %d from a", len(n.Message), n.From, len(want))
		}
	}
	wantErr(t, a.Notify(within(t), to, make([]byte, transfer.MaxMessage+1)), transfer.ErrInvalid)
	wantErr(t, a.Notify(within(t), "stranger", nil), transfer.ErrUnknownPeer)
	for i := range 20 {
		if err := a.Notify(within(t), to, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		if n := told(t, b); string(n.Message) != fmt.Sprint(i) {
			t.Errorf("message %d came as %q: out of order", i, n.Message)
		}
	}
}

func testLoad(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	_, mem := registered(t, owner, 100, 1)
	wire := owner.Metadata()
	newer := bytes.Clone(wire)
	newer[len(envelopeMagic)]++
	for name, c := range map[string]struct {
		wire []byte
		want error
	}{
		"nothing":        {nil, transfer.ErrInvalid},
		"something else": {[]byte("TDMD...."), transfer.ErrInvalid},
		"cut off":        {wire[:len(wire)-1], transfer.ErrInvalid},
		"one's own":      {reader.Metadata(), transfer.ErrInvalid},
		"a later format": {newer, transfer.ErrNotSupported},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := reader.Load(within(t), c.wire)
			wantErr(t, err, c.want)
		})
	}
	for range 3 {
		from := learn(t, reader, wire)
		mustRead(t, reader, from, []transfer.Span{{Length: 100}}, mem)
	}
}

// Another program's agent takes notifications, whatever memory it has.
func testBareMetadata(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	_, mem := registered(t, owner, 100, 1)
	bare := *owner.blob.Load()
	for range 2 {
		to := learn(t, reader, bare)
		if string(to) != owner.Name() {
			t.Errorf("the peer is called %s, want %s", to, owner.Name())
		}
		if err := reader.Notify(within(t), to, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		told(t, owner)
		spans := []transfer.Span{{Length: 100}}
		wantErr(t, reader.Read(within(t), to, spans, buffers(spans), nil), transfer.ErrNotSupported)
	}
	from := learn(t, reader, owner.Metadata())
	mustRead(t, reader, from, []transfer.Span{{Length: 100}}, mem)
	wantErr(t, reader.Notify(within(t), transfer.Peer(owner.Name()), nil), transfer.ErrUnknownPeer)
	if again := learn(t, reader, bare); again != from {
		t.Errorf("what was known with its memory is called %s now", again)
	}
	mustRead(t, reader, from, []transfer.Span{{Length: 100}}, mem)
}

func testForget(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	_, mem := registered(t, owner, 100, 1)
	from := learn(t, reader, owner.Metadata())
	spans := []transfer.Span{{Length: 100}}
	for range 2 {
		mustRead(t, reader, from, spans, mem)
		reader.Forget(from)
		reader.Forget(from)
		wantErr(t, reader.Read(within(t), from, spans, buffers(spans), nil), transfer.ErrUnknownPeer)
		wantErr(t, reader.Notify(within(t), from, nil), transfer.ErrUnknownPeer)
		learn(t, reader, owner.Metadata())
	}
}

func testClosed(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	region, _ := registered(t, reader, 100, 1)
	registered(t, owner, 100, 1)
	from := learn(t, reader, owner.Metadata())
	for range 2 {
		closeTransport(t, reader)
	}
	spans := []transfer.Span{{Length: 100}}
	_, err := reader.Load(within(t), owner.Metadata())
	wantErr(t, err, transfer.ErrClosed)
	_, err = reader.Register(pattern(10, 1))
	wantErr(t, err, transfer.ErrClosed)
	wantErr(t, reader.Read(within(t), from, spans, buffers(spans), nil), transfer.ErrClosed)
	wantErr(t, reader.Notify(within(t), from, nil), transfer.ErrClosed)
	wantErr(t, region.Write(0, []byte{1}), transfer.ErrClosed)
	if err := region.Close(); err != nil {
		t.Error(err)
	}
	reader.Forget(from)
	if _, open := <-reader.Notifications(); open {
		t.Error("a closed transport got a message")
	}
}

func testRestarted(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	_, mem := registered(t, owner, 100, 1)
	before := owner.Metadata()
	from := learn(t, reader, before)
	spans := []transfer.Span{{Length: 100}}
	mustRead(t, reader, from, spans, mem)
	closeTransport(t, owner)
	again := realTransport(t, "owner", tls)
	_, mem = registered(t, again, 100, 2)
	for range 2 {
		wantErr(t, reader.Read(within(t), from, spans, buffers(spans), []byte("read")), transfer.ErrGone)
		wantErr(t, reader.Notify(within(t), from, nil), transfer.ErrGone)
	}
	if now := learn(t, reader, again.Metadata()); now != from {
		t.Errorf("in its new life the peer is called %s", now)
	}
	mustRead(t, reader, from, spans, mem)
	_, err := reader.Load(within(t), before)
	wantErr(t, err, transfer.ErrRestarted)
	mustRead(t, reader, from, spans, mem)
}

func testContext(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	_, mem := registered(t, owner, 100, 1)
	from := learn(t, reader, owner.Metadata())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	spans := []transfer.Span{{Length: 100}}
	wantErr(t, reader.Read(ctx, from, spans, buffers(spans), nil), context.Canceled)
	wantErr(t, reader.Notify(ctx, from, nil), context.Canceled)
	_, err := reader.Load(ctx, owner.Metadata())
	wantErr(t, err, context.Canceled)
	mustRead(t, reader, from, spans, mem)
}
