//go:build nixl && cgo && linux

package nixl

import (
	"bytes"
	"context"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/transfertest"
)

// TestContract runs the suite of all transports over the real library.
func TestContract(t *testing.T) {
	transfertest.NIXLLibrary(t)
	for name, tls := range kinds {
		t.Run(name, func(t *testing.T) { transfertest.Run(t, func() transfertest.Kind { return contractKind(tls) }) })
	}
}

// contractKind returns agents of the real library. Transport's documentation says what they lack, and why.
func contractKind(tls string) transfertest.Kind {
	return transfertest.Kind{
		PartBytes: slotSize, PartSpans: maxPieces,
		Lacks: []transfertest.Ability{transfertest.Refusal, transfertest.Delivery, transfertest.RestartDetection,
			transfertest.LossDetection, transfertest.Revocation, transfertest.Exclusion},
		Start: func(t testing.TB, name string) transfer.Transport { return realTransport(t, name, tls) },
		Restart: func(t testing.TB, old transfer.Transport, name string) transfer.Transport {
			closeTransport(t, old.(*Transport))
			return realTransport(t, name, tls)
		},
		Memory: func(t testing.TB, owner transfer.Transport, size int) []byte {
			return allocated(t, owner.(*Transport), size)
		},
	}
}

// TestOwnBehaviour tests what the contract leaves open, over the real library.
func TestOwnBehaviour(t *testing.T) {
	transfertest.NIXLLibrary(t)
	for name, test := range map[string]func(t *testing.T, tls string){
		"memory of reads":                testMemoryOfReads,
		"metadata of other agents":       testBareMetadata,
		"metadata of a later format":     testLaterFormat,
		"metadata from before a restart": testMetadataFromBeforeRestart,
		"overlapping memory":             testOverlappingMemory,
		"load during reads":              testLoadDuringReads,
		"reads with little memory":       testReadsWithLittleMemory,
	} {
		for kind, tls := range kinds {
			t.Run(name+"/"+kind, func(t *testing.T) { test(t, tls) })
		}
	}
}

// receiveMessage waits for the next message of a transport.
func receiveMessage(t testing.TB, a *Transport) transfer.Notification {
	t.Helper()
	select {
	case n, ok := <-a.Notifications():
		if !ok {
			t.Fatal("the transport was closed")
		}
		return n
	case <-within(t).Done():
		t.Fatal("no message arrived")
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

// testMemoryOfReads: the memory that reads go through is bounded, and an agent that reads nothing has none.
func testMemoryOfReads(t *testing.T, tls string) {
	const large = 5 * slotSize
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	_, mem := registered(t, owner, large, 1)
	mustRead(t, reader, loadPeer(t, reader, owner.Metadata()), []transfer.Span{{Length: large}}, mem)
	if use := reader.Memory(); use.Mapped == 0 || use.Mapped > atOnce*slotSize || use.Quarantined != 0 || use.GivenUp != 0 {
		t.Errorf("the reader holds %+v", use)
	}
	if use := owner.Memory(); use.Mapped != 0 {
		t.Errorf("the owner, which reads nothing, holds %+v", use)
	}
}

func testLaterFormat(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	later := owner.Metadata()
	later[len(envelopeMagic)]++
	_, err := reader.Load(within(t), later)
	wantErr(t, err, transfer.ErrNotSupported)
}

// testMetadataFromBeforeRestart: metadata from before a restart is refused once the new one is loaded, and does not harm.
func testMetadataFromBeforeRestart(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	registered(t, owner, 100, 1)
	before := owner.Metadata()
	loadPeer(t, reader, before)
	closeTransport(t, owner)
	again := realTransport(t, "owner", tls)
	_, mem := registered(t, again, 100, 2)
	from := loadPeer(t, reader, again.Metadata())
	_, err := reader.Load(within(t), before)
	wantErr(t, err, transfer.ErrRestarted)
	mustRead(t, reader, from, []transfer.Span{{Length: 100}}, mem)
}

// testOverlappingMemory: memory that overlaps a registered region is refused.
func testOverlappingMemory(t *testing.T, tls string) {
	owner := realTransport(t, "owner", tls)
	_, mem := registered(t, owner, 8192, 1)
	for name, overlapping := range map[string][]byte{"all of it": mem, "its end": mem[8000:], "its start": mem[:1]} {
		if _, err := owner.Register(overlapping); err == nil {
			t.Errorf("%s was registered again", name)
		} else {
			wantErr(t, err, transfer.ErrInvalid)
		}
	}
}

// testBareMetadata: an agent of another program takes notifications, and its memory cannot be read.
func testBareMetadata(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	_, mem := registered(t, owner, 100, 1)
	bare := *owner.blob.Load()
	for range 2 {
		to := loadPeer(t, reader, bare)
		if string(to) != owner.Name() {
			t.Errorf("the peer is called %s, want %s", to, owner.Name())
		}
		if err := reader.Notify(within(t), to, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		receiveMessage(t, owner)
		spans := []transfer.Span{{Length: 100}}
		wantErr(t, reader.Read(within(t), to, spans, buffers(spans), nil), transfer.ErrNotSupported)
	}
	from := loadPeer(t, reader, owner.Metadata())
	mustRead(t, reader, from, []transfer.Span{{Length: 100}}, mem)
	wantErr(t, reader.Notify(within(t), transfer.Peer(owner.Name()), nil), transfer.ErrUnknownPeer)
	if again := loadPeer(t, reader, bare); again != from {
		t.Errorf("a peer whose memory was known is called %s now", again)
	}
	mustRead(t, reader, from, []transfer.Span{{Length: 100}}, mem)
}

// testLoadDuringReads: memory that a peer registered later is loaded while reads of it go on.
func testLoadDuringReads(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	_, first := registered(t, owner, 4*slotSize, 1)
	before := owner.Metadata()
	from := loadPeer(t, reader, before)
	var reading sync.WaitGroup
	defer reading.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reading.Go(func() {
		for ctx.Err() == nil {
			spans := []transfer.Span{{Length: uint64(len(first))}}
			into := buffers(spans)
			if err := reader.Read(t.Context(), from, spans, into, nil); err != nil || !bytes.Equal(into[0], first) {
				t.Errorf("a read during Load: %v", err)
				return
			}
		}
	})
	memory := [][]byte{first}
	for i := 1; i < 5; i++ {
		spans := []transfer.Span{{Region: uint32(i), Length: 100}}
		wantErr(t, reader.Read(within(t), from, spans, buffers(spans), nil), transfer.ErrRange)
		_, mem := registered(t, owner, 100, i+1)
		memory = append(memory, mem)
		loadPeer(t, reader, owner.Metadata())
		mustRead(t, reader, from, spans, memory...)
	}
}

// testReadsWithLittleMemory: concurrent reads share the memory that the configuration allows.
func testReadsWithLittleMemory(t *testing.T, tls string) {
	owner := realTransport(t, "owner", tls)
	config := Config{Name: "reader", Library: transfertest.NIXLLibrary(t), TLS: tls}
	reader := startTransport(t, TransportConfig{Config: config, Bounce: 3 * slotSize})
	_, mem := registered(t, owner, 3*slotSize, 1)
	from := loadPeer(t, reader, owner.Metadata())
	var reading sync.WaitGroup
	for i := range 8 {
		reading.Go(func() {
			for j := range 10 {
				spans := []transfer.Span{
					{Offset: uint64(i*1000 + j), Length: 100},
					{Offset: uint64(i + j), Length: slotSize + uint64(i)},
					{Offset: uint64(j), Length: 70000},
				}
				into := buffers(spans)
				if err := reader.Read(within(t), from, spans, into, []byte("done")); err != nil {
					t.Errorf("reader %d: %v", i, err)
					return
				}
				for k, s := range spans {
					if !bytes.Equal(into[k], mem[s.Offset:][:s.Length]) {
						t.Errorf("reader %d has wrong bytes in span %d", i, k)
						return
					}
				}
			}
		})
	}
	reading.Wait()
	for range 80 {
		receiveMessage(t, owner)
	}
	if use := reader.Memory(); use.Mapped > 3*slotSize || use.Quarantined != 0 {
		t.Errorf("the reader holds %+v", use)
	}
}
