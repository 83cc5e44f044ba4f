package transfertest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
)

func notifiesInOrder(t *testing.T, k Kind) {
	a, b := k.Start(t, "a"), k.Start(t, "b")
	peer := load(t, a, b)
	long := make([]byte, transfer.MaxMessage)
	Fill(long, 3)
	reused := []byte("first")
	for _, message := range [][]byte{reused, {}, []byte("a\x00b"), long} {
		want := bytes.Clone(message)
		if err := a.Notify(within(t), peer, message); err != nil {
			t.Fatal(err)
		}
		clear(reused) // the caller may reuse its buffer
		if n := receive(t, b); n.From != "a" || !bytes.Equal(n.Message, want) {
			t.Errorf("got %d bytes from %s, want %d from a", len(n.Message), n.From, len(want))
		}
	}
	for i := range 20 {
		if err := a.Notify(within(t), peer, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		if n := receive(t, b); string(n.Message) != fmt.Sprint(i) {
			t.Errorf("message %d came as %q: out of order", i, n.Message)
		}
	}
}

func refusesWrongNotifications(t *testing.T, k Kind) {
	a, b := k.Start(t, "a"), k.Start(t, "b")
	peer := load(t, a, b)
	long := make([]byte, transfer.MaxMessage+1)
	wantErr(t, a.Notify(within(t), peer, long), transfer.ErrInvalid)
	wantErr(t, a.Read(within(t), peer, nil, nil, long), transfer.ErrInvalid)
	wantErr(t, a.Notify(within(t), "stranger", nil), transfer.ErrUnknownPeer)
	wantErr(t, b.Notify(within(t), "a", nil), transfer.ErrUnknownPeer) // a peer that loaded this agent is not loaded here
	wantNoMessage(t, a, peer, b)
}

func refusesMessagesForFullReceiver(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	_, mem := k.register(t, owner, 10, 1)
	peer := load(t, reader, owner)
	for range transfer.QueueLength {
		if err := reader.Notify(within(t), peer, []byte("one of many")); err != nil {
			t.Fatal(err)
		}
	}
	spans := []transfer.Span{span(0, 0, 10)}
	wantErr(t, reader.Notify(within(t), peer, []byte("one too many")), transfer.ErrBusy)
	wantErr(t, reader.Read(within(t), peer, spans, buffers(spans), []byte("read")), transfer.ErrBusy)
	mustRead(t, reader, peer, spans, mem) // a read without a message needs no place in the queue
	receive(t, owner)
	if err := reader.Notify(within(t), peer, []byte("one more")); err != nil {
		t.Errorf("after the receiver has read one: %v", err)
	}
}

func connectsAgentsWithoutMemory(t *testing.T, k Kind) {
	sidecar, engine := k.Start(t, "sidecar"), k.Start(t, "engine")
	toEngine, toSidecar := load(t, sidecar, engine), load(t, engine, sidecar)
	if err := sidecar.Notify(within(t), toEngine, []byte("HB:1")); err != nil {
		t.Fatal(err)
	}
	if n := receive(t, engine); n.From != toSidecar {
		t.Errorf("from %s, want %s", n.From, toSidecar)
	}
	if err := engine.Notify(within(t), toSidecar, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	receive(t, sidecar)
	wantErr(t, tryRead(t, engine, toSidecar, span(0, 0, 1)), transfer.ErrRange)
}
