package transfertest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// Ability is a part of the contract that a transport can lack.
type Ability string

// The abilities.
const (
	// Refusal: a receiver that does not read its notifications makes senders fail with ErrBusy. Without it, messages are dropped.
	Refusal Ability = "refuse messages for a full receiver"
	// Delivery: nil from Notify means that the message is in the receiver's queue. Without it, the message is on its way.
	Delivery Ability = "wait until a message is delivered"
	// RestartDetection: calls to a restarted peer fail with ErrRestarted. Without it, they fail with ErrGone until the peer's new
	// metadata is loaded.
	RestartDetection Ability = "detect that a peer was restarted"
	// LossDetection: every call to a peer that has closed fails. Without it, reads of memory that the peer's process still has can
	// succeed until the transport learns that the peer has closed.
	LossDetection Ability = "detect at once that a peer has closed"
	// Revocation: a closed region cannot be read. Without it, peers can read it until they load newer metadata.
	Revocation Ability = "prevent reads of a closed region"
	// Exclusion: Region.Write excludes reads. Without it, a read can return parts of two writes.
	Exclusion Ability = "exclude reads during a write"
)

// Kind says how to use a kind of transport.
type Kind struct {
	// Start starts an agent, and closes it when the test ends.
	Start func(t testing.TB, name string) transfer.Transport
	// Restart closes an agent and starts one of the same name in its place.
	Restart func(t testing.TB, old transfer.Transport, name string) transfer.Transport
	// Memory allocates memory that an agent can register, until the test ends; nil: the Go heap.
	Memory func(t testing.TB, owner transfer.Transport, bytes int) []byte
	// PartBytes and PartSpans are the most that the transport moves in one request. The suite reads less, as much, and more.
	PartBytes, PartSpans int
	// Lacks lists what the transport cannot do.
	Lacks []Ability
}

func (k Kind) can(a Ability) bool { return !slices.Contains(k.Lacks, a) }

// behaviours is the contract. A behaviour that needs an ability is skipped for transports that lack it.
var behaviours = []struct {
	name  string
	needs Ability
	test  func(*testing.T, Kind)
}{
	{"reads any spans", "", readsAnySpans},
	{"refuses wrong reads", "", refusesWrongReads},
	{"notifies after a read", "", notifiesAfterRead},
	{"notifies in order", "", notifiesInOrder},
	{"refuses wrong notifications", "", refusesWrongNotifications},
	{"refuses messages for a full receiver", Refusal, refusesMessagesForFullReceiver},
	{"connects agents without memory", "", connectsAgentsWithoutMemory},
	{"refuses wrong metadata", "", refusesWrongMetadata},
	{"loads a peer again", "", loadsPeerAgain},
	{"forgets a peer", "", forgetsPeer},
	{"refuses calls after Close", "", refusesCallsAfterClose},
	{"keeps received messages after Close", Delivery, keepsMessagesAfterClose},
	{"reports a closed peer", "", reportsClosedPeer},
	{"reports a restarted peer", "", reportsRestartedPeer},
	{"ends with the context", "", endsWithContext},
	{"numbers regions", "", numbersRegions},
	{"writes to a region", "", writesToRegion},
	{"closes a region", "", closesRegion},
	{"reads what was registered later", "", readsWhatWasRegisteredLater},
	{"serves concurrent reads", "", servesConcurrentReads},
	{"reads while peers are loaded and forgotten", "", readsWhilePeersChange},
	{"excludes reads during a write", Exclusion, excludesReadsDuringWrite},
	{"ends reads of a closing region", Revocation, endsReadsOfClosingRegion},
}

// Run runs the suite. newKind is called for each behaviour, so that agents of two behaviours never meet.
func Run(t *testing.T, newKind func() Kind) {
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			k := newKind()
			if b.needs != "" && !k.can(b.needs) {
				t.Skip("this transport cannot " + string(b.needs))
			}
			b.test(t, k)
		})
	}
}

// timeout bounds every call of a test. No call is expected to take a noticeable part of it.
const timeout = time.Minute

// within returns a context for one call.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	return ctx
}

// pair starts an owner and a reader.
func (k Kind) pair(t testing.TB) (owner, reader transfer.Transport) {
	t.Helper()
	return k.Start(t, "owner"), k.Start(t, "reader")
}

// register registers memory of an agent, filled with a pattern.
func (k Kind) register(t testing.TB, owner transfer.Transport, size, seed int) (transfer.Region, []byte) {
	t.Helper()
	var mem []byte
	if k.Memory == nil {
		mem = make([]byte, size)
	} else {
		mem = k.Memory(t, owner, size)
	}
	Fill(mem, seed)
	r, err := owner.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	return r, mem
}

// Fill fills memory with bytes that differ from their neighbours, from those a page or a block away, and from those of another
// seed.
func Fill(mem []byte, seed int) {
	x := uint64(seed)*0x9e3779b97f4a7c15 + 1
	for ; len(mem) >= 8; mem = mem[8:] {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.NativeEndian.PutUint64(mem, x)
	}
	for i := range mem {
		mem[i] = byte(seed + i)
	}
}

// load loads the owner's present metadata at the reader.
func load(t testing.TB, reader, owner transfer.Transport) transfer.Peer {
	t.Helper()
	peer, err := reader.Load(within(t), owner.Metadata())
	if err != nil {
		t.Fatal(err)
	}
	return peer
}

// receive waits for the next message of an agent.
func receive(t testing.TB, a transfer.Notifier) transfer.Notification {
	t.Helper()
	select {
	case n, open := <-a.Notifications():
		if !open {
			t.Fatal("the agent was closed")
		}
		return n
	case <-within(t).Done():
		t.Fatal("no message arrived")
		return transfer.Notification{}
	}
}

// wantNoMessage checks that no message reached an agent before one that is sent now.
func wantNoMessage(t testing.TB, from transfer.Transport, to transfer.Peer, receiver transfer.Transport) {
	t.Helper()
	if err := from.Notify(within(t), to, []byte("the first")); err != nil {
		t.Fatal(err)
	}
	if n := receive(t, receiver); string(n.Message) != "the first" {
		t.Errorf("the agent got %q", n.Message)
	}
}

func closeAgent(t testing.TB, a transfer.Transport) {
	t.Helper()
	if err := a.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

func wantErr(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("got error %v, want %v", got, want)
	}
}

func span(region uint32, offset, length uint64) transfer.Span {
	return transfer.Span{Region: region, Offset: offset, Length: length}
}

func buffers(spans []transfer.Span) [][]byte {
	into := make([][]byte, len(spans))
	for i, s := range spans {
		into[i] = make([]byte, s.Length)
	}
	return into
}

// mustRead reads spans of regions whose memory is given, and checks the bytes.
func mustRead(t testing.TB, reader transfer.Transport, from transfer.Peer, spans []transfer.Span, memory ...[]byte) {
	t.Helper()
	into := buffers(spans)
	if err := reader.Read(within(t), from, spans, into, nil); err != nil {
		t.Fatal(err)
	}
	wantBytes(t, into, spans, memory...)
}

func wantBytes(t testing.TB, into [][]byte, spans []transfer.Span, memory ...[]byte) {
	t.Helper()
	for i, s := range spans {
		if !bytes.Equal(into[i], memory[s.Region][s.Offset:][:s.Length]) {
			t.Fatalf("span %d (%+v) has wrong bytes", i, s)
		}
	}
}

// learnOfLoss reads until the reader has learnt that the peer has closed, where that takes time.
func (k Kind) learnOfLoss(t testing.TB, reader transfer.Transport, from transfer.Peer, s transfer.Span) {
	t.Helper()
	if k.can(LossDetection) {
		return
	}
	var err error
	for ctx := within(t); err == nil; {
		err = reader.Read(ctx, from, []transfer.Span{s}, buffers([]transfer.Span{s}), nil)
	}
	wantErr(t, err, transfer.ErrGone)
}

// tryRead reads spans into buffers of its own.
func tryRead(t testing.TB, reader transfer.Transport, from transfer.Peer, spans ...transfer.Span) error {
	t.Helper()
	return reader.Read(within(t), from, spans, buffers(spans), nil)
}
