package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// Source is where an engine, or one rank of it, publishes its events.
type Source struct {
	Events string // host:port
	Replay string // host:port at which it sends earlier events again; "" = nowhere
	Topic  string // with which the topics of messages begin
}

const (
	// maxMessage is the longest message that is read: 4 million tokens stored at once.
	maxMessage = 32 << 20
	// firstPause and lastPause are between two attempts to connect.
	firstPause, lastPause = 50 * time.Millisecond, 5 * time.Second
	// replayIdle is how long a replay may send nothing, and replayTime how long it may take.
	replayIdle, replayTime = 2 * time.Second, 2 * time.Minute
	// firstRetry and lastRetry are between two replays of a connection on which no message has come, until one succeeds.
	firstRetry, lastRetry = time.Second, time.Minute
	// attempts is how often a replay with a hole is asked for again while that brings nothing new.
	attempts = 3
)

var (
	errMessage = errors.New("a message is not one of KV events")
	errHoles   = errors.New("a replay has a hole again and again")
)

// follower follows one source. An engine numbers its messages from 0. One connection is always to one process, so only
// between two connections, and at the other end of a proxy, an engine can have restarted.
type follower struct {
	*Stream
	source Source
	dialer zmtp.Dialer
	seed   maphash.Seed

	began  bool   // a message was applied
	known  bool   // something of this process was read, or it has published nothing yet
	next   uint64 // number of the next message
	last   uint64 // hash of the one before it
	id     string // of the process, where messages have one
	joined bool   // the messages of this connection continue what is known
	live   uint64 // number that the next message of this connection has at least
}

// Follow keeps the holder up to date with what a source publishes, until ctx ends. It connects again whenever the connection ends.
// When it finds that the engine has restarted, the holder has nothing. Messages that were lost are replayed, where the source does so;
// else the holder has nothing, because blocks may have been dropped meanwhile, and Counts.Lost tells. Counts.Earlier tells how many messages
// there were before the first one that could be had: what they stored is not known.
func (s *Stream) Follow(ctx context.Context, d zmtp.Dialer, source Source, log *slog.Logger) {
	f := follower{Stream: s, source: source, dialer: d, seed: maphash.MakeSeed()}
	pause, told := firstPause, false
	for {
		connected, err := f.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if connected {
			pause, told = firstPause, false
		}
		if !told {
			log.Warn("no KV events: connecting again", "address", source.Events, "error", err)
			told = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
		pause = min(2*pause, lastPause)
	}
}

// session reads one connection to its end. connected says that there was one.
func (f *follower) session(ctx context.Context) (connected bool, err error) {
	conn, err := zmtp.Dial(ctx, f.dialer, f.source.Events, zmtp.Sub, maxMessage)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.Subscribe(f.source.Topic); err != nil {
		return false, err
	}
	f.Counts.Connected.Add(1)
	defer f.Counts.Connected.Add(-1)
	f.joined, f.live = false, 0
	if f.source.Replay != "" {
		// Live messages wait in the connection meanwhile, so what a replay says is never applied after them.
		f.joined = f.replay(ctx) == nil
		// An engine that has just started, and has other work, may answer late. It may be another process, which has nothing; until it publishes
		// something only a replay tells.
		for pause := firstRetry; !f.joined; pause = min(2*pause, lastRetry) {
			if come, err := conn.Wait(pause); err != nil {
				return true, err
			} else if come {
				break
			}
			f.joined = f.replay(ctx) == nil
		}
	}
	for {
		parts, err := conn.Receive()
		if err != nil {
			return true, err
		}
		if len(parts) != 3 {
			return true, fmt.Errorf("%w: it has %d parts", errMessage, len(parts))
		}
		if err := f.message(ctx, parts[1], parts[2]); err != nil {
			return true, err
		}
	}
}

// number reads the number of a message, behind which the identity of its process may be.
func number(part []byte) (n uint64, id string, err error) {
	if len(part) != 8 && len(part) != 24 {
		return 0, "", fmt.Errorf("%w: its number has %d bytes", errMessage, len(part))
	}
	return binary.BigEndian.Uint64(part), string(part[8:]), nil
}

// message applies a live message.
func (f *follower) message(ctx context.Context, numbered, payload []byte) error {
	n, id, err := number(numbered)
	if err != nil {
		return err
	}
	again := n < f.live || id != f.id && f.id != "" || f.known && !f.joined && n != f.next
	f.id, f.live = id, n+1
	if again {
		f.restarted()
	}
	if f.source.Replay != "" && (again || n > f.next && (f.known || !f.joined)) {
		// If it fails, what was lost is counted below.
		_ = f.replay(ctx)
	}
	f.joined = true
	if n < f.next {
		return nil // a replay had it
	}
	f.apply(n, payload)
	return nil
}

// apply applies the next message that there is, of which some before it may be lost.
func (f *follower) apply(n uint64, payload []byte) {
	switch missed := int64(n - f.next); {
	case missed == 0:
	case !f.began:
		f.Counts.Earlier.Add(missed)
	default:
		f.Counts.Lost.Add(missed)
		f.Holder.Clear()
	}
	_, _ = f.Apply(payload) // an error is counted, and concerns this message only
	f.began, f.known, f.next = true, true, n+1
	if f.source.Replay != "" {
		f.last = maphash.Bytes(f.seed, payload)
	}
}

// restarted notes that another process publishes now, which has nothing yet.
func (f *follower) restarted() {
	f.Counts.Restarts.Add(1)
	f.Holder.Clear()
	f.known, f.next, f.group = false, 0, -1
	if f.Stream.Restarted != nil {
		f.Stream.Restarted()
	}
}

// replay asks for the messages from the next one on and applies them. It finds out whether the engine has restarted by asking for
// the message before it too, which must be the same one.
func (f *follower) replay(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	f.Counts.Replays.Add(1)
	for tries := 0; tries < attempts; tries++ {
		before := f.next
		whole, err := f.replayOnce(ctx)
		if err != nil {
			f.Counts.ReplayErrors.Add(1)
			return err
		}
		if whole {
			return nil
		}
		if f.next != before {
			tries = -1
		}
	}
	f.Counts.ReplayErrors.Add(1)
	return errHoles
}

// replayOnce asks once. whole is false if it must be asked again, because the engine has restarted or some messages did not come.
func (f *follower) replayOnce(ctx context.Context) (whole bool, err error) {
	conn, err := zmtp.Dial(ctx, f.dialer, f.source.Replay, zmtp.Dealer, maxMessage)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	from := f.next
	check := f.known && f.next > 0
	if check {
		from--
	}
	if err := conn.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return false, err
	}
	first := true
	for ; ; first = false {
		if err := conn.SetReadDeadline(time.Now().Add(replayIdle)); err != nil {
			return false, err
		}
		parts, err := conn.Receive()
		if err != nil {
			return false, err
		}
		// An empty part, in newer versions the topic, the number, the events.
		if len(parts) != 3 && len(parts) != 4 {
			return false, fmt.Errorf("%w: its replay has %d parts", errMessage, len(parts))
		}
		n, _, err := number(parts[len(parts)-2])
		if err != nil {
			return false, err
		}
		payload := parts[len(parts)-1]
		end := n == ^uint64(0)
		if first && check {
			if end || n != from || maphash.Bytes(f.seed, payload) != f.last {
				f.restarted()
				return false, nil
			}
			continue
		}
		switch {
		case end:
			f.known = true
			return true, nil
		case n > f.next && !first:
			return false, nil // the engine drops messages if its socket is full
		case n >= f.next:
			f.replaying = true
			f.apply(n, payload)
			f.replaying = false
		}
	}
}

// Pushed applies numbered messages that reach the caller by other ways than Follow's: from engines that connect to it, which replay
// nothing, or without a network. One goroutine at a time may use it.
type Pushed struct{ follower }

// NewPushed returns what applies messages to a stream.
func NewPushed(s *Stream) *Pushed { return &Pushed{follower{Stream: s, seed: maphash.MakeSeed()}} }

// Connected notes that a new connection begins: further messages may have been lost before it, or come from another process.
func (p *Pushed) Connected() { p.joined, p.live = false, 0 }

// Message applies a message, by the part with its number and the one with its events. The error says that it is not one of KV events.
func (p *Pushed) Message(numbered, payload []byte) error {
	return p.message(context.Background(), numbered, payload)
}
