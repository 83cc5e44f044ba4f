//go:build nixl && cgo && linux

package nixl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// fakePair is an owner of some memory, and a reader that knows it, on the fake library. What c has no time for is long.
func fakePair(t *testing.T, size int, c TransportConfig) (reader, owner *Transport, from transfer.Peer, mem []byte) {
	t.Helper()
	library := withFake(t)
	if c.Stall == 0 {
		c.Stall = patience
	}
	owner = startTransport(t, TransportConfig{Config: Config{Name: "owner", Library: library}})
	c.Config = Config{Name: "reader", Library: library}
	reader = startTransport(t, c)
	_, mem = registered(t, owner, size, 1)
	return reader, owner, loadPeer(t, reader, owner.Metadata()), mem
}

// eventually waits until a reader's memory is as it should be. What is waited for happens in the library's time, without
// an event that a test could see.
func eventually(t *testing.T, reader *Transport, want MemoryUse) {
	t.Helper()
	until(t, func() bool { return reader.Memory() == want }, func() string {
		return fmt.Sprintf("the reader holds %+v, want %+v", reader.Memory(), want)
	})
}

func until(t *testing.T, done func() bool, otherwise func() string) {
	t.Helper()
	ctx := within(t)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(otherwise())
		}
	}
}

// waitForRequests waits until so many requests to a peer are under way.
func waitForRequests(t *testing.T, reader *Transport, of transfer.Peer, want int) {
	t.Helper()
	until(t, func() bool { return users(reader, of) == want }, func() string {
		return fmt.Sprintf("%d requests are under way, want %d", users(reader, of), want)
	})
}

// cancelRead begins a read that does not end, and leaves it when its requests are under way.
func cancelRead(t *testing.T, reader *Transport, from transfer.Peer, into []byte, requests int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		failed <- reader.Read(ctx, from, []transfer.Span{{Length: uint64(len(into))}}, [][]byte{into}, []byte("read"))
	}()
	waitForRequests(t, reader, from, requests)
	cancel()
	wantErr(t, <-failed, context.Canceled)
}

// free is how many slots can be used at once.
func free(reader *Transport) int {
	reader.bounce.mu.Lock()
	defer reader.bounce.mu.Unlock()
	return len(reader.bounce.free)
}

func users(reader *Transport, of transfer.Peer) int {
	reader.mu.Lock()
	defer reader.mu.Unlock()
	return reader.peers[of].users
}

// The bytes of a cancelled read arrive in memory that no caller sees. That memory is not used before, and is used after.
func TestQuarantine(t *testing.T) {
	const size = 3*slotSize + 5
	reader, owner, from, mem := fakePair(t, size, TransportConfig{})
	command(t, "get_xfer_status 1")
	into := bytes.Repeat([]byte{0xee}, size)
	cancelRead(t, reader, from, into, 4)
	eventually(t, reader, MemoryUse{Mapped: 4 * slotSize, Quarantined: 4 * slotSize})
	if free(reader) != 0 {
		t.Error("memory is free that a transfer may write to")
	}
	if n := len(reader.bounce.inUse); n != 0 {
		t.Errorf("%d slots are in use without a caller", n)
	}

	command(t) // now it lands
	eventually(t, reader, MemoryUse{Mapped: 4 * slotSize})
	if !bytes.Equal(into, bytes.Repeat([]byte{0xee}, size)) {
		t.Error("bytes landed after the read had returned")
	}
	mustRead(t, reader, from, []transfer.Span{{Length: size}}, mem)
	if use := reader.Memory(); use.Mapped != 4*slotSize {
		t.Errorf("the memory was not used again: %+v", use)
	}
	if n := len(owner.Notifications()); n != 0 {
		t.Errorf("the owner was told %d times of a read that was given up", n)
	}
}

// A peer that hangs holds no more than its share, and its later callers wait for nothing but their deadlines.
func TestHangingPeerHoldsItsShare(t *testing.T) {
	const size = 8 * slotSize
	reader, _, from, _ := fakePair(t, size, TransportConfig{Stall: 50 * time.Millisecond})
	command(t, "get_xfer_status 1")
	for range 3 {
		spans := []transfer.Span{{Length: size}}
		wantErr(t, reader.Read(t.Context(), from, spans, buffers(spans), nil), transfer.ErrGone)
	}
	eventually(t, reader, MemoryUse{Mapped: atOnce * slotSize, Quarantined: atOnce * slotSize})
	command(t)
	eventually(t, reader, MemoryUse{Mapped: atOnce * slotSize})
}

// What never ends is given up in the end, with the peer; the rest goes on until there is no more memory.
func TestGivenUp(t *testing.T) {
	const size = 100
	config := TransportConfig{Bounce: 1, Stall: 20 * time.Millisecond, Quarantine: time.Millisecond}
	reader, owner, from, mem := fakePair(t, size, config)
	command(t, "get_xfer_status 1")
	spans := []transfer.Span{{Length: size}}
	for i := range int64(1 + awayFactor) {
		wantErr(t, reader.Read(within(t), from, spans, buffers(spans), nil), transfer.ErrGone)
		eventually(t, reader, MemoryUse{Mapped: (i + 1) * slotSize, GivenUp: (i + 1) * slotSize})
		wantErr(t, reader.Read(within(t), from, spans, buffers(spans), nil), transfer.ErrGone)
		waitForRequests(t, reader, from, 0)
		loadPeer(t, reader, owner.Metadata())
	}
	command(t)
	into := buffers(spans)
	wantErr(t, reader.Read(within(t), from, spans, into, nil), ErrExhausted)
	if bytes.Equal(into[0], mem) {
		t.Error("it was read nevertheless")
	}
}

func TestCloseAmidRead(t *testing.T) {
	reader, _, from, _ := fakePair(t, slotSize, TransportConfig{})
	command(t, "get_xfer_status 1")
	spans := []transfer.Span{{Length: slotSize}}
	failed := make(chan error, 1)
	go func() { failed <- reader.Read(t.Context(), from, spans, buffers(spans), nil) }()
	waitForRequests(t, reader, from, 1)
	closeTransport(t, reader)
	wantErr(t, <-failed, transfer.ErrClosed)
	if use := reader.Memory(); use != (MemoryUse{Mapped: slotSize, GivenUp: slotSize}) {
		t.Errorf("what may be written to is not kept: %+v", use)
	}
}

func TestReadFails(t *testing.T) {
	for name, c := range map[string]struct {
		command string
		want    []error
		gone    bool // and stays so until loaded again
		free    int  // slots that can be used at once
	}{
		"not covered":     {"create_xfer_req -6", []error{transfer.ErrRange, StatusNotFound}, false, 0},
		"wrong":           {"create_xfer_req -1", []error{StatusInvalid}, false, 0},
		"no list":         {"create_xfer_dlist -2", []error{transfer.ErrGone, StatusBackend}, true, 0},
		"posting fails":   {"post_xfer_req -2", []error{transfer.ErrGone, StatusBackend}, true, 0},
		"lost on the way": {"get_xfer_status -2", []error{transfer.ErrGone, StatusBackend}, true, 0},
		"forgotten":       {"get_xfer_status -6", []error{transfer.ErrGone, StatusNotFound}, true, 0},
		"not released":    {"release_xfer_req -2", nil, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			reader, owner, from, mem := fakePair(t, 100, TransportConfig{})
			command(t, c.command)
			spans := []transfer.Span{{Length: 100}}
			err := reader.Read(within(t), from, spans, buffers(spans), []byte("read"))
			if wantErr(t, err, c.want...); (err == nil) != (c.want == nil) {
				t.Fatalf("got %v", err)
			}
			command(t)
			if n := free(reader); n != c.free {
				t.Errorf("%d slots are free at once, want %d", n, c.free)
			}
			if again := reader.Read(within(t), from, spans, buffers(spans), nil); errors.Is(again, transfer.ErrGone) != c.gone {
				t.Errorf("the next read gives %v", again)
			}
			loadPeer(t, reader, owner.Metadata())
			mustRead(t, reader, from, spans, mem)
		})
	}
}

func TestRegisterFails(t *testing.T) {
	library := withFake(t)
	a := startTransport(t, TransportConfig{Config: Config{Name: "a", Library: library}})
	mem, _, err := a.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range []string{"create_reg_dlist", "reg_dlist_add_desc", "register_mem", "get_local_md"} {
		command(t, call+" -2")
		_, err := a.Register(mem)
		wantErr(t, err, StatusBackend)
	}
	command(t)
	r, err := a.Register(mem)
	if err != nil {
		t.Fatalf("after failures: %v", err)
	}
	command(t, "deregister_mem -6")
	wantErr(t, r.Close(), StatusNotFound)
	e, err := parseEnvelope(a.Metadata())
	if err != nil || len(e.regions) != 0 {
		t.Errorf("the metadata is %+v, %v", e, err)
	}
	command(t)
}

// Memory may be freed when nothing can reach it any more, not before.
func TestAlloc(t *testing.T) {
	a, err := NewTransport(TransportConfig{Config: Config{Name: "a", Library: withFake(t)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, -1} {
		_, _, err := a.Alloc(size)
		wantErr(t, err, transfer.ErrInvalid)
	}
	mem, free, err := a.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, free(), transfer.ErrInvalid)
	mem[0] = 1
	closeTransport(t, a)
	for range 2 {
		if err := free(); err != nil {
			t.Error(err)
		}
	}
}

// A call that does not return holds up its caller until the deadline, and neither others nor, for ever, Close.
func TestHangingCalls(t *testing.T) {
	reader, owner, from, mem := fakePair(t, 100, TransportConfig{})
	other := startTransport(t, TransportConfig{Config: Config{Name: "other", Library: owner.Library()}})
	to := loadPeer(t, reader, other.Metadata())
	for _, call := range []string{"create_xfer_req", "post_xfer_req", "get_xfer_status"} {
		command(t, call+" hang")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		spans := []transfer.Span{{Length: 100}}
		wantErr(t, reader.Read(ctx, from, spans, buffers(spans), nil), context.DeadlineExceeded)
		cancel()
		if err := reader.Notify(within(t), to, []byte(call)); err != nil {
			t.Fatal(err)
		}
		if n := receiveMessage(t, other); string(n.Message) != call {
			t.Errorf("got %q", n.Message)
		}
		if err := os.Remove(os.Getenv("FAKE_NIXL")); err != nil {
			t.Fatal(err)
		}
		eventually(t, reader, MemoryUse{Mapped: reader.Memory().Mapped})
		command(t)
		mustRead(t, reader, from, spans, mem)
	}
}

// A call that does not return is left behind by Close, with all that it may touch.
func TestCloseWhileCallHangs(t *testing.T) {
	library := withFake(t)
	owner := startTransport(t, TransportConfig{Config: Config{Name: "owner", Library: library}})
	registered(t, owner, 100, 1)
	reader, err := NewTransport(TransportConfig{Config: Config{Name: "reader", Library: library}})
	if err != nil {
		t.Fatal(err)
	}
	reader.closeTime = 20 * time.Millisecond
	_, free, err := reader.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	from := loadPeer(t, reader, owner.Metadata())
	command(t, "post_xfer_req hang")
	spans := []transfer.Span{{Length: 100}}
	failed := make(chan error, 1)
	go func() { failed <- reader.Read(t.Context(), from, spans, buffers(spans), nil) }()
	waitForRequests(t, reader, from, 1)
	for range 2 {
		if err := reader.Close(); err == nil || !strings.Contains(err.Error(), "does not return") {
			t.Errorf("closing gives %v", err)
		}
	}
	wantErr(t, <-failed, transfer.ErrClosed)
	wantErr(t, free(), transfer.ErrInvalid)
	if _, open := <-reader.Notifications(); open {
		t.Error("a closed transport got a message")
	}
	if err := os.Remove(os.Getenv("FAKE_NIXL")); err != nil {
		t.Fatal(err)
	}
	reader.inside.Wait()
}
