package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// network connects to one publisher, by pipes.
type network struct {
	mu   sync.Mutex
	down bool // connections are refused
	*publisher
	later func() // lets a minute pass
}

func (n *network) DialContext(_ context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errors.New("refused")
	}
	ours, theirs := net.Pipe()
	p, kind := n.publisher, zmtp.Pub
	if address == "replay" {
		kind = zmtp.Router
	}
	p.serving.Go(func() { p.serve(newBuffered(theirs), kind) })
	return ours, nil
}

// buffered is a connection whose writes do not wait for the reader, as those of TCP.
type buffered struct {
	net.Conn
	out  chan []byte
	once sync.Once
	done chan struct{}
}

func newBuffered(conn net.Conn) *buffered {
	b := &buffered{Conn: conn, out: make(chan []byte, 1000), done: make(chan struct{})}
	go func() {
		for {
			select {
			case p := <-b.out:
				_, _ = conn.Write(p)
			case <-b.done:
				return
			}
		}
	}()
	return b
}

func (b *buffered) Write(p []byte) (int, error) {
	b.out <- slices.Clone(p)
	return len(p), nil
}

func (b *buffered) Close() error {
	b.once.Do(func() { close(b.done) })
	return b.Conn.Close()
}

// publisher is an engine process: it stores and drops blocks of one long prompt.
type publisher struct {
	serving sync.WaitGroup
	mu      sync.Mutex
	subs    []*zmtp.Conn
	sent    [][]byte // all payloads
	kept    int      // first of them that it can replay
	loses   int      // replies of the next replay that do not come
	oldForm bool     // without topics in replays
	hangs   bool     // replays have no end
	silent  int      // requests for replays that are not answered, the next ones
}

func (p *publisher) serve(conn net.Conn, kind string) {
	c, err := zmtp.Accept(context.Background(), conn, kind, 1<<20)
	if err != nil {
		return
	}
	defer c.Close()
	for {
		parts, err := c.Receive()
		if err != nil {
			return
		}
		p.mu.Lock()
		if kind == zmtp.Pub {
			p.subs = append(p.subs, c)
		} else {
			p.answer(c, int(binary.BigEndian.Uint64(parts[1])))
		}
		p.mu.Unlock()
	}
}

func (p *publisher) answer(c *zmtp.Conn, from int) {
	if p.silent > 0 {
		p.silent--
		return
	}
	for i := max(from, p.kept); i < len(p.sent); i++ {
		if p.loses > 0 && i > from+1 {
			p.loses--
			continue
		}
		p.reply(c, uint64(i), p.sent[i])
	}
	if !p.hangs {
		p.reply(c, ^uint64(0), nil)
	}
}

func (p *publisher) reply(c *zmtp.Conn, n uint64, payload []byte) {
	if p.oldForm {
		_ = c.Send(nil, binary.BigEndian.AppendUint64(nil, n), payload)
		return
	}
	_ = c.Send(nil, []byte("kv@"), binary.BigEndian.AppendUint64(nil, n), payload)
}

// publishes sends events in one message. quietly means that it is lost on the way.
func (p *publisher) publishes(quietly bool, events ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, pack(nil, list{float64(len(p.sent)), list(events), 0}))
	if quietly {
		return
	}
	for _, c := range p.subs {
		_ = c.Send([]byte("kv@"), binary.BigEndian.AppendUint64(nil, uint64(len(p.sent)-1)), p.sent[len(p.sent)-1])
	}
}

// becomes changes how the publisher behaves.
func (p *publisher) becomes(change func(*publisher)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

// hangUp ends all connections.
func (p *publisher) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.subs {
		c.Close()
	}
	p.subs = nil
}

// one is the event that stores the block with a number.
func one(i int) any {
	var parent any
	if i > 0 {
		parent = 1000 + i - 1
	}
	return dict{"type", "BlockStored", "block_hashes", list{1000 + i}, "parent_block_hash", parent,
		"token_ids", tokens(i + 1)[i*size:], "block_size", size}
}

func TestFollow(t *testing.T) {
	const nothing = "connected=1 lost=0 restarts=0"
	for name, test := range map[string]struct {
		replay bool
		when   func(n *network)
		blocks int
		counts string
	}{
		"messages arrive": {false, func(n *network) { n.publishes(false, one(0)); n.publishes(false, one(1)) }, 2, nothing},
		"a message is lost": {false, func(n *network) {
			n.publishes(false, one(0))
			n.publishes(true, removed(1000))
			n.publishes(false, one(1))
			n.publishes(false, one(0))
		}, 1, "connected=1 lost=1 restarts=0"},
		"a lost message is replayed": {true, func(n *network) {
			n.publishes(false, one(0))
			n.publishes(true, one(1))
			n.publishes(true, one(2))
			n.publishes(false, one(3))
		}, 4, nothing},
		"a lost message is replayed in the old form": {true, func(n *network) {
			n.becomes(func(p *publisher) { p.oldForm = true })
			n.publishes(false, one(0))
			n.publishes(true, one(1))
			n.publishes(false, one(2))
		}, 3, nothing},
		"a replay with holes": {true, func(n *network) {
			n.becomes(func(p *publisher) { p.loses = 2 })
			n.publishes(false, one(0))
			for i := range 6 {
				n.publishes(true, one(i+1))
			}
			n.publishes(false, one(7))
		}, 8, nothing},
		"a replay without an end": {true, func(n *network) {
			n.becomes(func(p *publisher) { p.hangs = true })
			n.publishes(false, one(0))
			n.publishes(true, one(1))
			n.publishes(false, one(2))
			synctest.Wait()
			n.publishes(false, one(3))
		}, 4, nothing},
		"what is replayed and comes again does not undo what came after": {true, func(n *network) {
			n.publishes(false, one(0))
			n.publishes(true, one(1))
			n.publishes(false, removed(1001))
		}, 1, nothing},
		"the connection ends": {false, func(n *network) {
			n.publishes(false, one(0))
			synctest.Wait()
			n.hangUp()
			n.later()
			n.publishes(false, one(1))
		}, 2, nothing},
		"the connection ends and messages are lost meanwhile": {false, func(n *network) {
			n.publishes(false, one(0), one(1))
			synctest.Wait()
			n.hangUp()
			n.publishes(true, removed(1001))
			n.later()
			n.publishes(false, one(0))
		}, 1, "connected=1 lost=2 restarts=1"},
		"the connection ends and they are replayed": {true, func(n *network) {
			n.publishes(false, one(0), one(1))
			synctest.Wait()
			n.hangUp()
			n.publishes(true, removed(1001))
			n.later()
		}, 1, nothing},
		"the engine restarts": {false, func(n *network) {
			n.publishes(false, one(0), one(1))
			n.publishes(false, one(2))
			synctest.Wait()
			n.restart()
			n.later()
			n.publishes(false, one(0))
		}, 1, "connected=1 lost=0 restarts=1"},
		"the engine restarts and replays": {true, func(n *network) {
			n.publishes(false, one(0), one(1))
			synctest.Wait()
			n.restart()
			n.publishes(true, one(0))
			n.publishes(true, one(1))
			n.publishes(true, removed(1001))
			n.later()
		}, 1, "connected=1 lost=0 restarts=1"},
		"the engine restarts and has published nothing": {true, func(n *network) {
			n.publishes(false, one(0), one(1))
			synctest.Wait()
			n.restart()
			n.later()
		}, 0, "connected=1 lost=0 restarts=1"},
		"the engine restarts, does not replay at first, and has published nothing": {true, func(n *network) {
			n.publishes(false, one(0), one(1))
			synctest.Wait()
			n.restart()
			n.becomes(func(p *publisher) { p.silent = 3 })
			n.later()
		}, 0, "connected=1 lost=0 restarts=1"},
		"the engine has forgotten what was missed": {true, func(n *network) {
			n.publishes(false, one(0), one(1))
			synctest.Wait()
			n.hangUp()
			n.publishes(true, removed(1001))
			n.publishes(true, dict{"type", "AllBlocksCleared"})
			n.publishes(true, one(0))
			n.becomes(func(p *publisher) { p.kept = 2 })
			n.later()
		}, 1, "connected=1 lost=2 restarts=1"},
		"the engine is gone": {false, func(n *network) {
			n.mu.Lock()
			n.down = true
			n.mu.Unlock()
			n.hangUp()
			n.later()
		}, 0, "connected=0 lost=0 restarts=0"},
	} {
		t.Run(name, func(t *testing.T) {
			follow(t, test.replay, func(*network) {}, test.when, func(t *testing.T, e *engine) {
				if got := e.finds("m", "", 10); got != test.blocks {
					t.Errorf("%d blocks, want %d", got, test.blocks)
				}
				if got := e.counts(); got != test.counts {
					t.Errorf("%s, want %s", got, test.counts)
				}
			})
		})
	}
}

// follow has an engine followed, before which and during which things happen, and calls then when all of that is known.
func follow(t *testing.T, replay bool, before, during func(*network), then func(*testing.T, *engine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e, n := newEngine(), &network{publisher: new(publisher), later: func() { time.Sleep(time.Minute) }}
		e.Heard = func(b Batch) {
			if b.Replayed {
				e.replayed++
			}
		}
		before(n)
		ctx, cancel := context.WithCancel(t.Context())
		source := Source{Events: "events", Topic: "kv@"}
		if replay {
			source.Replay = "replay"
		}
		var following sync.WaitGroup
		following.Go(func() { e.Follow(ctx, n, source, slog.New(slog.DiscardHandler)) })
		synctest.Wait()
		during(n)
		time.Sleep(time.Minute)
		synctest.Wait()
		then(t, e)
		cancel()
		following.Wait()
		n.hangUp()
		n.serving.Wait()
	})
}

// TestFollowLater: messages from before the follower came are replayed as far as the engine has kept them. The others are counted, and are not
// lost: nothing was known that they make wrong. Messages that lead to a replay come by it too.
func TestFollowLater(t *testing.T) {
	const earlier = 4 // messages, each of which stores a block
	for name, test := range map[string]struct {
		replay          bool
		kept            int // first message that is replayed
		silent          int // replays that are not answered
		blocks, unknown int
		replayed        int
		counts          string
	}{
		"no replay":            {false, 0, 0, 0, earlier, 0, "connected=1 lost=1 restarts=0"},
		"all are replayed":     {true, 0, 0, earlier + 2, 0, earlier + 2, "connected=1 lost=0 restarts=0"},
		"the latest are":       {true, earlier - 1, 0, 0, earlier - 1, 3, "connected=1 lost=0 restarts=0"},
		"none of them is kept": {true, earlier, 0, 0, earlier, 3, "connected=1 lost=0 restarts=0"},
		"all are replayed when it is asked again": {true, 0, 1, earlier + 2, 0, earlier + 3, "connected=1 lost=0 restarts=0"},
	} {
		t.Run(name, func(t *testing.T) {
			follow(t, test.replay, func(n *network) {
				n.becomes(func(p *publisher) { p.kept, p.silent = test.kept, test.silent })
				for i := range earlier {
					n.publishes(true, one(i))
				}
			}, func(n *network) {
				n.publishes(false, one(earlier))
				n.publishes(true, removed(2000)) // is known by a replay only
				n.publishes(false, one(earlier+1))
			}, func(t *testing.T, e *engine) {
				if got := e.finds("m", "", 10); got != test.blocks {
					t.Errorf("%d blocks, want %d", got, test.blocks)
				}
				if e.replayed != test.replayed {
					t.Errorf("%d messages were replayed, want %d", e.replayed, test.replayed)
				}
				if got := e.Counts.Earlier.Load(); got != int64(test.unknown) {
					t.Errorf("%d messages were earlier, want %d", got, test.unknown)
				}
				if got := e.counts(); got != test.counts {
					t.Errorf("%s, want %s", got, test.counts)
				}
			})
		})
	}
}

// restart makes another process take the place of the publisher.
func (n *network) restart() {
	old := n.publisher
	n.mu.Lock()
	n.publisher = new(publisher)
	n.mu.Unlock()
	old.hangUp()
	old.serving.Wait()
}

func (e *engine) counts() string {
	c := e.Counts
	return fmt.Sprintf("connected=%d lost=%d restarts=%d", c.Connected.Load(), c.Lost.Load(), c.Restarts.Load())
}
