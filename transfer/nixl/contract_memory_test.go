//go:build nixl && cgo && linux

package nixl

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
)

func testRegions(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	first, mem := registered(t, owner, 8192, 1)
	second, _ := registered(t, owner, 10, 2)
	if first.ID() != 0 || second.ID() != 1 {
		t.Errorf("regions are numbered %d, %d, want 0, 1", first.ID(), second.ID())
	}
	for name, bad := range map[string][]byte{
		"none": nil, "empty": mem[:0], "the same": mem, "its end": mem[8000:], "its start": mem[:1],
	} {
		_, err := owner.Register(bad)
		if wantErr(t, err, transfer.ErrInvalid); err == nil {
			t.Errorf("%s was registered", name)
		}
	}
	from := learn(t, reader, owner.Metadata())
	if err := second.Write(3, []byte("abc")); err != nil {
		t.Fatal(err)
	}
	wantErr(t, second.Write(8, []byte("abc")), transfer.ErrRange)
	wantErr(t, second.Write(^uint64(0), []byte("abc")), transfer.ErrRange)
	into := [][]byte{make([]byte, 3)}
	err := reader.Read(within(t), from, []transfer.Span{{Region: 1, Offset: 3, Length: 3}}, into, nil)
	if err != nil || string(into[0]) != "abc" {
		t.Errorf("read %q, %v", into[0], err)
	}
	for range 2 {
		if err := second.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, second.Write(0, nil), transfer.ErrClosed)
	from = learn(t, reader, owner.Metadata())
	spans := []transfer.Span{{Region: 1, Length: 1}}
	wantErr(t, reader.Read(within(t), from, spans, buffers(spans), nil), transfer.ErrRange)
	mustRead(t, reader, from, []transfer.Span{{Length: 8192}}, mem)
}

// Memory of the same life is learnt on top of what is known, while reads go on.
func testRegisteredLater(t *testing.T, tls string) {
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	_, first := registered(t, owner, 4*slotSize, 1)
	before := owner.Metadata()
	from := learn(t, reader, before)
	var reading sync.WaitGroup
	defer reading.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reading.Go(func() {
		for ctx.Err() == nil {
			spans := []transfer.Span{{Length: uint64(len(first))}}
			into := buffers(spans)
			if err := reader.Read(t.Context(), from, spans, into, nil); err != nil || !bytes.Equal(into[0], first) {
				t.Errorf("a read beside Load: %v", err)
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
		learn(t, reader, owner.Metadata())
		mustRead(t, reader, from, spans, memory...)
	}
}

func testConcurrentReads(t *testing.T, tls string) {
	owner := realTransport(t, "owner", tls)
	config := Config{Name: "reader", Library: realLibrary(t), TLS: tls}
	reader := startTransport(t, TransportConfig{Config: config, Bounce: 3 * slotSize})
	_, mem := registered(t, owner, 3*slotSize, 1)
	from := learn(t, reader, owner.Metadata())
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
		told(t, owner)
	}
	if use := reader.Memory(); use.Mapped > 3*slotSize || use.Quarantined != 0 {
		t.Errorf("the reader holds %+v", use)
	}
}

// Reads, messages, loading and forgetting at the same time: nothing fails but for having been forgotten, and no read that
// succeeds has wrong bytes.
func testChurn(t *testing.T, tls string) {
	const size = 3*slotSize/2 + 1
	owner, reader := realTransport(t, "owner", tls), realTransport(t, "reader", tls)
	_, mem := registered(t, owner, size, 1)
	from := learn(t, reader, owner.Metadata())
	ctx, stop := context.WithCancel(t.Context())
	var churning sync.WaitGroup
	churning.Go(func() {
		for range owner.Notifications() {
			if ctx.Err() != nil {
				return
			}
		}
	})
	for range 3 {
		churning.Go(func() {
			spans := []transfer.Span{{Length: size}}
			into := buffers(spans)
			for ctx.Err() == nil {
				err := reader.Read(t.Context(), from, spans, into, []byte("read"))
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
		reader.Forget(from)
		learn(t, reader, owner.Metadata())
	}
	stop()
	if err := reader.Notify(within(t), from, []byte("end")); err != nil {
		t.Error(err)
	}
	churning.Wait()
	underWay(t, reader, from, 0)
	if use := reader.Memory(); use.Quarantined != 0 || use.GivenUp != 0 {
		t.Errorf("the reader holds %+v", use)
	}
}
