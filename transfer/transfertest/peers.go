package transfertest

import (
	"bytes"
	"context"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
)

func refusesWrongMetadata(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	k.register(t, owner, 10, 1)
	metadata := owner.Metadata()
	for name, wrong := range map[string][]byte{
		"nothing":        nil,
		"something else": []byte("no metadata at all"),
		"cut off":        metadata[:len(metadata)-1],
		"too long":       append(bytes.Clone(metadata), 0),
		"one's own":      reader.Metadata(),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := reader.Load(within(t), wrong)
			wantErr(t, err, transfer.ErrInvalid)
		})
	}
}

func loadsPeerAgain(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	_, mem := k.register(t, owner, 100, 1)
	for range 3 {
		peer := load(t, reader, owner)
		if peer != "owner" {
			t.Errorf("loaded as %s, want owner", peer)
		}
		mustRead(t, reader, peer, []transfer.Span{span(0, 0, 100)}, mem)
	}
}

func forgetsPeer(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	_, mem := k.register(t, owner, 10, 1)
	peer := load(t, reader, owner)
	for range 2 {
		mustRead(t, reader, peer, []transfer.Span{span(0, 0, 10)}, mem)
		reader.Forget(peer)
		reader.Forget(peer)
		wantErr(t, tryRead(t, reader, peer, span(0, 0, 10)), transfer.ErrUnknownPeer)
		wantErr(t, reader.Notify(within(t), peer, nil), transfer.ErrUnknownPeer)
		load(t, reader, owner)
	}
}

func refusesCallsAfterClose(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	k.register(t, owner, 10, 1)
	region, _ := k.register(t, reader, 10, 2)
	peer := load(t, reader, owner)
	closeAgent(t, reader)
	closeAgent(t, reader)

	_, err := reader.Load(within(t), owner.Metadata())
	wantErr(t, err, transfer.ErrClosed)
	_, err = reader.Register(make([]byte, 1))
	wantErr(t, err, transfer.ErrClosed)
	wantErr(t, reader.Read(within(t), peer, nil, nil, nil), transfer.ErrClosed)
	wantErr(t, reader.Notify(within(t), peer, nil), transfer.ErrClosed)
	wantErr(t, region.Write(0, []byte{1}), transfer.ErrClosed)
	if err := region.Close(); err != nil {
		t.Errorf("closing a region of a closed agent: %v", err)
	}
	reader.Forget(peer)
	if _, open := <-reader.Notifications(); open {
		t.Error("the channel of a closed agent has a message")
	}
}

func keepsMessagesAfterClose(t *testing.T, k Kind) {
	a, b := k.Start(t, "a"), k.Start(t, "b")
	if err := a.Notify(within(t), load(t, a, b), []byte("early")); err != nil {
		t.Fatal(err)
	}
	closeAgent(t, b)
	if n := receive(t, b); string(n.Message) != "early" {
		t.Errorf("got %q, want the message from before Close", n.Message)
	}
	if _, open := <-b.Notifications(); open {
		t.Error("the channel is still open")
	}
}

func reportsClosedPeer(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	_, mem := k.register(t, owner, 10, 1)
	peer := load(t, reader, owner)
	mustRead(t, reader, peer, []transfer.Span{span(0, 0, 10)}, mem)
	closeAgent(t, owner)
	k.learnOfLoss(t, reader, peer, span(0, 0, 10))
	for range 2 {
		wantErr(t, tryRead(t, reader, peer, span(0, 0, 10)), transfer.ErrGone)
		wantErr(t, tryRead(t, reader, peer), transfer.ErrGone)
		wantErr(t, reader.Notify(within(t), peer, nil), transfer.ErrGone)
	}
}

func reportsRestartedPeer(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	_, old := k.register(t, owner, 100, 1)
	peer := load(t, reader, owner)
	spans := []transfer.Span{span(0, 0, 100)}
	mustRead(t, reader, peer, spans, old)

	owner = k.Restart(t, owner, "owner")
	_, mem := k.register(t, owner, 100, 2)
	k.learnOfLoss(t, reader, peer, spans[0])
	want := transfer.ErrRestarted
	if !k.can(RestartDetection) {
		want = transfer.ErrGone
	}
	into := buffers(spans)
	for range 2 {
		wantErr(t, reader.Read(within(t), peer, spans, into, []byte("read")), want)
		wantErr(t, reader.Notify(within(t), peer, []byte("release")), want)
	}
	if bytes.Equal(into[0], mem) {
		t.Error("the new agent's memory was read with the old one's metadata")
	}

	if again := load(t, reader, owner); again != peer {
		t.Errorf("loaded as %s, want %s as before", again, peer)
	}
	wantNoMessage(t, reader, peer, owner) // those for the old agent
	mustRead(t, reader, peer, spans, mem)
}

func endsWithContext(t *testing.T, k Kind) {
	owner, reader := k.pair(t)
	_, mem := k.register(t, owner, 10, 1)
	peer := load(t, reader, owner)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	spans := []transfer.Span{span(0, 0, 10)}
	wantErr(t, reader.Read(ctx, peer, spans, buffers(spans), nil), context.Canceled)
	wantErr(t, reader.Notify(ctx, peer, nil), context.Canceled)
	_, err := reader.Load(ctx, owner.Metadata())
	wantErr(t, err, context.Canceled)
	mustRead(t, reader, peer, spans, mem) // other calls go on
}
