package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
)

// world is where a kind of transport lives: what the suite needs to know about it.
type world struct {
	start func(t testing.TB, name string) transfer.Transport
	// restart ends an agent and starts one of the same name in its place.
	restart func(t testing.TB, old transfer.Transport) transfer.Transport
}

func TestMem(t *testing.T) {
	testTransport(t, func() world {
		network := NewMemNetwork()
		return world{
			start: func(t testing.TB, name string) transfer.Transport { return memAgent(t, network, name) },
			restart: func(t testing.TB, old transfer.Transport) transfer.Transport {
				closeAgent(t, old)
				return memAgent(t, network, old.(*Mem).self.name)
			},
		}
	})
}

func TestTCP(t *testing.T) {
	testTransport(t, func() world {
		return world{
			start: func(t testing.TB, name string) transfer.Transport { return tcpAgent(t, name) },
			restart: func(t testing.TB, old transfer.Transport) transfer.Transport {
				closeAgent(t, old)
				return tcpWith(t, TCPConfig{Name: old.(*TCP).self.name, Listen: old.(*TCP).Addr()})
			},
		}
	})
}

// testTransport holds a transport to the contract of the interfaces.
func testTransport(t *testing.T, newWorld func() world) {
	for name, test := range map[string]func(*testing.T, world){
		"read":                      testRead,
		"refused reads":             testRefusedReads,
		"read then tell":            testReadThenTell,
		"notify":                    testNotify,
		"flood":                     testFlood,
		"without memory":            testWithoutMemory,
		"load":                      testLoad,
		"forget":                    testForget,
		"closed":                    testClosed,
		"gone":                      testGone,
		"restarted":                 testRestarted,
		"context":                   testContext,
		"regions":                   testRegions,
		"registered later":          testRegisteredLater,
		"forged metadata":           testForgedMetadata,
		"concurrent reads":          testConcurrentReads,
		"write during reads":        testWriteDuringReads,
		"region closed during read": testRegionClosedDuringRead,
	} {
		t.Run(name, func(t *testing.T) { test(t, newWorld()) })
	}
}

// pattern is n bytes that differ from their neighbours and from another seed's.
func pattern(seed, n int) []byte {
	mem := make([]byte, n)
	for i := range mem {
		mem[i] = byte(i*7 + i>>8 + seed*101)
	}
	return mem
}

func buffers(spans []transfer.Span) [][]byte {
	into := make([][]byte, len(spans))
	for i, s := range spans {
		into[i] = make([]byte, s.Length)
	}
	return into
}

func wantErr(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("got error %v, want %v", got, want)
	}
}

func testRead(t *testing.T, w world) {
	const large = 64 << 20
	memory := [][]byte{pattern(0, large), pattern(1, 4099)}
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	for _, mem := range memory {
		register(t, owner, mem)
	}
	peer := load(t, reader, owner)

	var small, mixed []transfer.Span
	for i := range 3*maxSpans + 5 {
		small = append(small, spanAt(0, uint64(i*40), 13))
		mixed = append(mixed, spanAt(uint32(i%2), uint64(i), uint64(i%5)))
	}
	for name, spans := range map[string][]transfer.Span{
		"one":               {spanAt(0, 0, 4096)},
		"several":           {spanAt(0, 0, 100), spanAt(1, 50, 100), spanAt(0, 200, 100)},
		"backwards":         {spanAt(0, 200, 100), spanAt(0, 100, 100), spanAt(0, 0, 100)},
		"overlapping":       {spanAt(0, 0, 100), spanAt(0, 50, 100)},
		"unaligned":         {spanAt(0, 1, 4095), spanAt(0, 4097, 3)},
		"last byte":         {spanAt(0, large-1, 1), spanAt(1, 4098, 1)},
		"nothing":           {},
		"empty span":        {spanAt(0, 7, 0)},
		"empty at the end":  {spanAt(1, 4099, 0)},
		"empty amid others": {spanAt(0, 0, 0), spanAt(0, 5, 5), spanAt(1, 0, 0), spanAt(0, 9, 0), spanAt(1, 1, 1), spanAt(0, 0, 0)},
		"many":              small,
		"many in turns":     mixed,
		"exactly one part":  {spanAt(0, 3, maxPart)},
		"one too large":     {spanAt(0, 3, maxPart+1)},
		"large after small": {spanAt(1, 0, 10), spanAt(0, 3, 3*maxPart+17), spanAt(1, 10, 10)},
		"all":               {spanAt(0, 0, large)},
	} {
		t.Run(name, func(t *testing.T) {
			into := buffers(spans)
			if err := reader.Read(t.Context(), peer, spans, into, nil); err != nil {
				t.Fatal(err)
			}
			for i, s := range spans {
				if !bytes.Equal(into[i], memory[s.Region][s.Offset:][:s.Length]) {
					t.Fatalf("span %d (%+v) has wrong bytes", i, s)
				}
			}
		})
	}
}

func testRefusedReads(t *testing.T, w world) {
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	register(t, owner, pattern(0, 1000))
	peer := load(t, reader, owner)
	for name, c := range map[string]struct {
		peer  transfer.Peer
		spans []transfer.Span
		sizes []int
		want  error
	}{
		"unknown peer":           {"stranger", []transfer.Span{spanAt(0, 0, 1)}, []int{1}, transfer.ErrUnknownPeer},
		"fewer buffers":          {peer, []transfer.Span{spanAt(0, 0, 1), spanAt(0, 1, 1)}, []int{1}, transfer.ErrInvalid},
		"more buffers":           {peer, []transfer.Span{spanAt(0, 0, 1)}, []int{1, 1}, transfer.ErrInvalid},
		"buffer too small":       {peer, []transfer.Span{spanAt(0, 0, 2), spanAt(0, 2, 2)}, []int{2, 1}, transfer.ErrInvalid},
		"buffer too large":       {peer, []transfer.Span{spanAt(0, 0, 2)}, []int{3}, transfer.ErrInvalid},
		"unknown region":         {peer, []transfer.Span{spanAt(1, 0, 1)}, []int{1}, transfer.ErrRange},
		"past the end":           {peer, []transfer.Span{spanAt(0, 0, 5), spanAt(0, 999, 2)}, []int{5, 2}, transfer.ErrRange},
		"starts past the end":    {peer, []transfer.Span{spanAt(0, 1001, 0)}, []int{0}, transfer.ErrRange},
		"sum wraps around":       {peer, []transfer.Span{spanAt(0, ^uint64(0), 2)}, []int{2}, transfer.ErrRange},
		"empty, unknown region":  {peer, []transfer.Span{spanAt(9, 0, 0)}, []int{0}, transfer.ErrRange},
		"one bad of many, last":  {peer, []transfer.Span{spanAt(0, 0, 5), spanAt(0, 5, 5), spanAt(2, 0, 5)}, []int{5, 5, 5}, transfer.ErrRange},
		"one bad of many, first": {peer, []transfer.Span{spanAt(2, 0, 5), spanAt(0, 0, 5)}, []int{5, 5}, transfer.ErrRange},
	} {
		t.Run(name, func(t *testing.T) {
			into := make([][]byte, len(c.sizes))
			for i, n := range c.sizes {
				into[i] = make([]byte, n)
			}
			wantErr(t, reader.Read(t.Context(), c.peer, c.spans, into, []byte("read")), c.want)
			for i, b := range into {
				if !bytes.Equal(b, make([]byte, len(b))) {
					t.Errorf("bytes moved into buffer %d", i)
				}
			}
		})
	}
	if n := len(owner.Notifications()); n != 0 {
		t.Errorf("the owner was told of %d failed reads", n)
	}
}

func testReadThenTell(t *testing.T, w world) {
	mem := pattern(0, 3*maxPart)
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	register(t, owner, mem)
	peer := load(t, reader, owner)
	for _, message := range []string{"request-1:1", ""} {
		spans := []transfer.Span{spanAt(0, 0, uint64(len(mem)))}
		into := buffers(spans)
		if err := reader.Read(t.Context(), peer, spans, into, []byte(message)); err != nil {
			t.Fatal(err)
		}
		got := <-owner.Notifications()
		if got.From != "reader" || string(got.Message) != message {
			t.Errorf("got %q from %s, want %q from reader", got.Message, got.From, message)
		}
		if !bytes.Equal(into[0], mem) {
			t.Error("told before all bytes were there")
		}
	}
	if err := reader.Read(t.Context(), peer, nil, nil, nil); err != nil {
		t.Fatal(err)
	}
	if n := len(owner.Notifications()); n != 0 {
		t.Error("told without being asked to tell")
	}
}

func testNotify(t *testing.T, w world) {
	a, b := w.start(t, "a"), w.start(t, "b")
	peer := load(t, a, b)
	long := pattern(0, transfer.MaxMessage)
	reused := []byte("first")
	for _, message := range [][]byte{reused, {}, long} {
		want := bytes.Clone(message)
		if err := a.Notify(t.Context(), peer, message); err != nil {
			t.Fatal(err)
		}
		clear(reused) // what was handed over must not change
		got := <-b.Notifications()
		if got.From != "a" || !bytes.Equal(got.Message, want) {
			t.Errorf("got %d bytes from %s, want %d from a", len(got.Message), got.From, len(want))
		}
	}
	wantErr(t, a.Notify(t.Context(), peer, make([]byte, transfer.MaxMessage+1)), transfer.ErrInvalid)
	wantErr(t, a.Notify(t.Context(), "stranger", nil), transfer.ErrUnknownPeer)
	wantErr(t, a.Read(t.Context(), peer, nil, nil, make([]byte, transfer.MaxMessage+1)), transfer.ErrInvalid)
	for i := range 5 {
		if err := a.Notify(t.Context(), peer, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		if got := <-b.Notifications(); string(got.Message) != fmt.Sprint(i) {
			t.Errorf("message %d came as %q: out of order", i, got.Message)
		}
	}
}

func testFlood(t *testing.T, w world) {
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	register(t, owner, pattern(0, 10))
	peer := load(t, reader, owner)
	for range transfer.QueueLength {
		if err := reader.Notify(t.Context(), peer, []byte("flood")); err != nil {
			t.Fatal(err)
		}
	}
	spans := []transfer.Span{spanAt(0, 0, 10)}
	wantErr(t, reader.Notify(t.Context(), peer, []byte("one too many")), transfer.ErrBusy)
	wantErr(t, reader.Read(t.Context(), peer, spans, buffers(spans), []byte("read")), transfer.ErrBusy)
	if err := reader.Read(t.Context(), peer, spans, buffers(spans), nil); err != nil {
		t.Errorf("a full queue stopped a read without a notification: %v", err)
	}
	<-owner.Notifications()
	if err := reader.Notify(t.Context(), peer, []byte("room again")); err != nil {
		t.Errorf("after one was taken: %v", err)
	}
}

func testWithoutMemory(t *testing.T, w world) {
	var sidecar, engine transfer.Notifier = w.start(t, "sidecar"), w.start(t, "engine")
	toEngine := load(t, sidecar.(transfer.Transport), engine.(transfer.Transport))
	toSidecar := load(t, engine.(transfer.Transport), sidecar.(transfer.Transport))
	if err := sidecar.Notify(t.Context(), toEngine, []byte("HB:1")); err != nil {
		t.Fatal(err)
	}
	if got := <-engine.Notifications(); got.From != toSidecar {
		t.Errorf("from %s, want %s", got.From, toSidecar)
	}
	if err := engine.Notify(t.Context(), toSidecar, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	<-sidecar.Notifications()
	wantErr(t, engine.(transfer.Transport).Read(t.Context(), toSidecar, []transfer.Span{spanAt(0, 0, 1)}, [][]byte{{0}}, nil), transfer.ErrRange)
}

func testLoad(t *testing.T, w world) {
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	register(t, owner, pattern(0, 10))
	blob := owner.Metadata()
	foreign := slices.Clone(blob)
	foreign[len(metadataMagic)+1] = 'x'
	newer := slices.Clone(blob)
	newer[len(metadataMagic)]++
	for name, c := range map[string]struct {
		blob []byte
		want error
	}{
		"nothing":                   {nil, transfer.ErrInvalid},
		"something else":            {[]byte("nixlSerDes|...."), transfer.ErrInvalid},
		"cut off":                   {blob[:len(blob)-1], transfer.ErrInvalid},
		"too long":                  {append(slices.Clone(blob), 0), transfer.ErrInvalid},
		"one's own":                 {reader.Metadata(), transfer.ErrInvalid},
		"another kind of transport": {foreign, transfer.ErrNotSupported},
		"a later format":            {newer, transfer.ErrNotSupported},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := reader.Load(t.Context(), c.blob)
			wantErr(t, err, c.want)
		})
	}
	for range 2 {
		if peer := load(t, reader, owner); peer != "owner" {
			t.Errorf("loaded as %s, want owner", peer)
		}
	}
}

func testForget(t *testing.T, w world) {
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	register(t, owner, pattern(0, 10))
	peer := load(t, reader, owner)
	spans := []transfer.Span{spanAt(0, 0, 10)}
	for range 2 {
		if err := reader.Read(t.Context(), peer, spans, buffers(spans), nil); err != nil {
			t.Fatal(err)
		}
		reader.Forget(peer)
		reader.Forget(peer)
		wantErr(t, reader.Read(t.Context(), peer, spans, buffers(spans), nil), transfer.ErrUnknownPeer)
		wantErr(t, reader.Notify(t.Context(), peer, nil), transfer.ErrUnknownPeer)
		load(t, reader, owner)
	}
}

func testClosed(t *testing.T, w world) {
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	region := register(t, reader, pattern(0, 10))
	peer := load(t, reader, owner)
	if err := owner.Notify(t.Context(), load(t, owner, reader), []byte("early")); err != nil {
		t.Fatal(err)
	}
	closeAgent(t, reader)
	closeAgent(t, reader)

	_, err := reader.Load(t.Context(), owner.Metadata())
	wantErr(t, err, transfer.ErrClosed)
	_, err = reader.Register(make([]byte, 1))
	wantErr(t, err, transfer.ErrClosed)
	wantErr(t, reader.Read(t.Context(), peer, nil, nil, nil), transfer.ErrClosed)
	wantErr(t, reader.Notify(t.Context(), peer, nil), transfer.ErrClosed)
	wantErr(t, region.Write(0, []byte{1}), transfer.ErrClosed)
	if err := region.Close(); err != nil {
		t.Errorf("closing a region of a closed agent: %v", err)
	}
	if got := <-reader.Notifications(); string(got.Message) != "early" {
		t.Errorf("got %q, want what had come before", got.Message)
	}
	if _, open := <-reader.Notifications(); open {
		t.Error("the channel is still open")
	}
}

func testGone(t *testing.T, w world) {
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	register(t, owner, pattern(0, 10))
	peer := load(t, reader, owner)
	spans := []transfer.Span{spanAt(0, 0, 10)}
	if err := reader.Read(t.Context(), peer, spans, buffers(spans), []byte("read")); err != nil {
		t.Fatal(err)
	}
	closeAgent(t, owner)
	for range 2 {
		wantErr(t, reader.Read(t.Context(), peer, spans, buffers(spans), nil), transfer.ErrGone)
		wantErr(t, reader.Read(t.Context(), peer, nil, nil, nil), transfer.ErrGone)
		wantErr(t, reader.Notify(t.Context(), peer, nil), transfer.ErrGone)
	}
}

func testRestarted(t *testing.T, w world) {
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	register(t, owner, pattern(0, 100))
	peer := load(t, reader, owner)
	spans := []transfer.Span{spanAt(0, 0, 100)}
	if err := reader.Read(t.Context(), peer, spans, buffers(spans), nil); err != nil {
		t.Fatal(err)
	}

	owner = w.restart(t, owner)
	mem := pattern(1, 100)
	register(t, owner, mem)
	into := buffers(spans)
	for range 2 {
		wantErr(t, reader.Read(t.Context(), peer, spans, into, []byte("read")), transfer.ErrRestarted)
		wantErr(t, reader.Notify(t.Context(), peer, []byte("release")), transfer.ErrRestarted)
	}
	if bytes.Equal(into[0], mem) {
		t.Error("new memory was read under old metadata")
	}
	if n := len(owner.Notifications()); n != 0 {
		t.Errorf("the new life got %d messages meant for the old one", n)
	}

	if again := load(t, reader, owner); again != peer {
		t.Errorf("loaded as %s, want %s as before", again, peer)
	}
	if err := reader.Read(t.Context(), peer, spans, into, []byte("read")); err != nil {
		t.Fatal(err)
	}
	<-owner.Notifications()
	if !bytes.Equal(into[0], mem) {
		t.Error("wrong bytes after loading the new metadata")
	}
}

func testContext(t *testing.T, w world) {
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	register(t, owner, pattern(0, 10))
	peer := load(t, reader, owner)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	spans := []transfer.Span{spanAt(0, 0, 10)}
	wantErr(t, reader.Read(ctx, peer, spans, buffers(spans), nil), context.Canceled)
	wantErr(t, reader.Notify(ctx, peer, nil), context.Canceled)
	_, err := reader.Load(ctx, owner.Metadata())
	wantErr(t, err, context.Canceled)
	if err := reader.Read(t.Context(), peer, spans, buffers(spans), nil); err != nil {
		t.Errorf("after another caller's context ended: %v", err)
	}
}

func testRegions(t *testing.T, w world) {
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	first, second := register(t, owner, make([]byte, 10)), register(t, owner, make([]byte, 10))
	if first.ID() != 0 || second.ID() != 1 {
		t.Errorf("regions are numbered %d, %d, want 0, 1", first.ID(), second.ID())
	}
	_, err := owner.Register(nil)
	wantErr(t, err, transfer.ErrInvalid)
	peer := load(t, reader, owner)

	if err := second.Write(3, []byte("abc")); err != nil {
		t.Fatal(err)
	}
	wantErr(t, second.Write(8, []byte("abc")), transfer.ErrRange)
	wantErr(t, second.Write(^uint64(0), []byte("abc")), transfer.ErrRange)
	spans := []transfer.Span{spanAt(1, 2, 5)}
	into := buffers(spans)
	if err := reader.Read(t.Context(), peer, spans, into, nil); err != nil || string(into[0]) != "\x00abc\x00" {
		t.Errorf("read %q, %v after a write", into[0], err)
	}

	for range 2 {
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, first.Write(0, []byte{1}), transfer.ErrClosed)
	both := []transfer.Span{spanAt(1, 0, 1), spanAt(0, 0, 1)}
	wantErr(t, reader.Read(t.Context(), peer, both, buffers(both), nil), transfer.ErrRange)
	if err := reader.Read(t.Context(), peer, spans, into, nil); err != nil {
		t.Errorf("the other region: %v", err)
	}
	if third := register(t, owner, make([]byte, 1)); third.ID() != 2 {
		t.Errorf("a new region has the number %d, want 2: none is given twice", third.ID())
	}
}

func testRegisteredLater(t *testing.T, w world) {
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	peer := load(t, reader, owner)
	register(t, owner, pattern(0, 10))
	spans := []transfer.Span{spanAt(0, 0, 10)}
	wantErr(t, reader.Read(t.Context(), peer, spans, buffers(spans), nil), transfer.ErrRange)
	load(t, reader, owner)
	if err := reader.Read(t.Context(), peer, spans, buffers(spans), nil); err != nil {
		t.Errorf("after loading newer metadata of the same life: %v", err)
	}
}

func testForgedMetadata(t *testing.T, w world) {
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	register(t, owner, pattern(0, 10))
	md, err := parseMetadata(owner.Metadata())
	if err != nil {
		t.Fatal(err)
	}
	md.regions[0], md.regions[1] = 1000, 1000
	peer, err := reader.Load(t.Context(), md.append(nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, spans := range [][]transfer.Span{{spanAt(0, 0, 11)}, {spanAt(1, 0, 1)}} {
		wantErr(t, reader.Read(t.Context(), peer, spans, buffers(spans), []byte("read")), transfer.ErrRange)
	}
}

func testConcurrentReads(t *testing.T, w world) {
	mem := pattern(0, 4<<20)
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	register(t, owner, mem)
	peer := load(t, reader, owner)
	var group sync.WaitGroup
	for g := range 16 {
		group.Go(func() {
			for i := range 20 {
				spans := []transfer.Span{spanAt(0, uint64(g*1000+i), uint64(1+i*10_000)), spanAt(0, uint64(i), 64<<10), spanAt(0, 0, uint64(g*100_000))}
				into := buffers(spans)
				if err := reader.Read(t.Context(), peer, spans, into, []byte("read")); err != nil {
					t.Error(err)
					return
				}
				for k, s := range spans {
					if !bytes.Equal(into[k], mem[s.Offset:][:s.Length]) {
						t.Errorf("reader %d, round %d: wrong bytes in span %d", g, i, k)
					}
				}
			}
		})
	}
	group.Wait()
	if n := len(owner.Notifications()); n != 16*20 {
		t.Errorf("%d notifications, want %d", n, 16*20)
	}
}

// testWriteDuringReads fails by the race detector, by bytes that were never written, or by half a write. The race detector
// does not see the kernel read, and only a page is sure to be read at one go, so the page has to tell.
func testWriteDuringReads(t *testing.T, w world) {
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	for name, c := range map[string]struct{ size, reads int }{"page": {4 << 10, 3000}, "more": {64 << 10, 100}} {
		t.Run(name, func(t *testing.T) {
			region := register(t, owner, make([]byte, c.size))
			peer := load(t, reader, owner)
			stop := keepWriting(t, region, c.size)
			defer stop()
			spans := []transfer.Span{spanAt(region.ID(), 0, uint64(c.size))}
			into := buffers(spans)
			for range c.reads {
				if err := reader.Read(t.Context(), peer, spans, into, nil); err != nil {
					t.Fatal(err)
				}
				ones, noughts := bytes.Count(into[0], []byte{1}), bytes.Count(into[0], []byte{0})
				if ones+noughts != c.size {
					t.Fatalf("%d bytes that were never written", c.size-ones-noughts)
				}
				if name == "page" && ones != 0 && noughts != 0 {
					t.Fatalf("%d bytes of one write and %d of another", ones, noughts)
				}
			}
		})
	}
}

// keepWriting fills the region with ones and noughts in turn until stop is called.
func keepWriting(t *testing.T, region transfer.Region, size int) (stop func()) {
	done := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		ones, noughts := bytes.Repeat([]byte{1}, size), make([]byte, size)
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := errors.Join(region.Write(0, ones), region.Write(0, noughts)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	return func() {
		close(done)
		writer.Wait()
	}
}

// testRegionClosedDuringRead uses the memory for something else after Close, without any lock: a read that still touched it
// would be seen by the race detector, or by its bytes.
func testRegionClosedDuringRead(t *testing.T, w world) {
	owner, reader := w.start(t, "owner"), w.start(t, "reader")
	for range 20 {
		mem := pattern(0, 2*maxPart)
		want := bytes.Clone(mem)
		region := register(t, owner, mem)
		peer := load(t, reader, owner)
		started := make(chan struct{}, 4)
		var readers sync.WaitGroup
		for range 4 {
			readers.Go(func() {
				spans := []transfer.Span{spanAt(region.ID(), 0, uint64(len(want)))}
				into := buffers(spans)
				for err := error(nil); err == nil; {
					err = reader.Read(t.Context(), peer, spans, into, nil)
					if err == nil && !bytes.Equal(into[0], want) {
						t.Error("a read of a closing region succeeded with other bytes")
					}
					if err != nil {
						wantErr(t, err, transfer.ErrRange)
					}
					select {
					case started <- struct{}{}:
					default:
					}
				}
			})
		}
		<-started
		if err := region.Close(); err != nil {
			t.Error(err)
		}
		clear(mem)
		readers.Wait()
	}
}
