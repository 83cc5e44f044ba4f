package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// Config says what a Book works with. Zero values mean the defaults named here.
type Config struct {
	// Notifier sends the notices. Required; the book does not close it. If it tells its State, as a keeper does, nothing is
	// sent while that is down.
	Notifier transfer.Notifier
	// Dialer reaches the side channels, whose addresses are the engines' own word: it has to refuse what must not be
	// reached. Default: a *net.Dialer, which refuses nothing.
	Dialer zmtp.Dialer
	// Lease is how long prefill engines keep a finished hand-off: their kv_lease_duration. Default 30 s, vLLM's own.
	Lease time.Duration
	// Notices are the messages that the engines take. Required.
	Notices dialect.Notices
	// Log gets the engines that cannot be told (Warn, one line a second at most).
	Log *slog.Logger
	// Engines is how many are known at once, default 1024. Beyond it, the one that was unused for longest is forgotten; one
	// with a hand-off that is held never is.
	Engines int
}

func (c *Config) setDefaults() {
	if c.Dialer == nil {
		c.Dialer = new(net.Dialer)
	}
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Engines = cmp.Or(c.Engines, 1024)
}

const (
	// joinsAtOnce bounds the engines that are being met at a time: each may take a connection and joinTime.
	joinsAtOnce = 16
	// joinTime bounds meeting an engine with all its ranks. Decode engines wait as long for a side channel.
	joinTime = 5 * time.Second
	// maxNoticeTime bounds telling all ranks of an engine, where a sixth of the lease is longer. Measured 0.1 to 1 ms a rank.
	maxNoticeTime = 5 * time.Second
	// firstPause is how long an engine that could not be told is left alone. It doubles each time up to lastPause.
	firstPause, lastPause = time.Second, time.Minute
)

// Book knows prefill engines and what is held of them. Use New. All methods may be called from several goroutines, and on a
// nil Book, which knows nobody.
type Book struct {
	config Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // goroutines, and timers that are set
	joins  chan struct{}  // one place for each engine that is being met

	mu      sync.Mutex // guards what follows, and all engines and holds
	closed  bool
	engines map[key]*engine
	loaded  map[transfer.Peer]int // by how many engines; hostile ones may name those of others
	counts  Counts
	warned  time.Time
}

// Counts is what a Book has done so far.
type Counts struct {
	Joins, FailedJoins uint64 // of engines, with all ranks
	Beats, FailedBeats uint64 // rounds of heartbeats to all ranks of an engine
	Engines            int    // known now, whether or not they can be told
}

// Why an engine cannot be told. They come beside ErrNoWay.
var (
	errNoBook = errors.New("this sidecar tells no engines")
	errClosed = errors.New("the book is closed")
	errOdd    = errors.New("the hand-off does not say well enough which engine, rank or request it is of")
	errFull   = errors.New("too many engines are in use at once")
)

// New makes an empty book. It starts nothing until the first hand-off.
func New(c Config) *Book {
	c.setDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	return &Book{config: c, ctx: ctx, cancel: cancel, joins: make(chan struct{}, joinsAtOnce),
		engines: make(map[key]*engine), loaded: make(map[transfer.Peer]int)}
}

// Close ends everything the book has under way, and waits for it. Hand-offs that are still held are dropped without a word,
// and later ones are not held.
func (b *Book) Close() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.closed = true
	b.cancel()
	for _, e := range b.engines {
		for _, h := range e.holds {
			h.at = notHeld
		}
		e.holds = nil
		b.disarm(e)
	}
	b.mu.Unlock()
	b.work.Wait()
}

// Counts tells what has been done, for metrics.
func (b *Book) Counts() Counts {
	if b == nil {
		return Counts{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.counts
	c.Engines = len(b.engines)
	return c
}

// Hold begins to hold a hand-off that finished at the given time, as well as that can be done; it never waits. The result,
// which is nil for a nil Book, has to be ended. A hand-off is to be held once: of two holds, each could be released.
func (b *Book) Hold(h dialect.Pin, finished time.Time) *Hold {
	if b == nil {
		return nil
	}
	lease := b.config.Lease
	hold := &Hold{book: b, id: h.RequestID, until: finished.Add(lease), due: finished.Add(lease / beatEvery), at: notHeld}
	k := key{id: h.EngineID, host: h.Host, port: h.Port, tensor: h.Tensor, pipeline: h.Pipeline}
	if !k.valid() || !b.config.Notices.Names(h.RequestID) {
		hold.why = errOdd
		return hold
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e, err := b.place(k)
	if err != nil {
		hold.why = err
		return hold
	}
	hold.engine = e
	hold.at = len(e.holds)
	e.holds = append(e.holds, hold)
	b.beginJoin(e)
	b.arm(e, hold.due)
	return hold
}

// Meet asks the side channel at host and port (1 to 65535) which engine is there, and prepares to tell it, before its first
// hand-off comes. An engine of several ranks is met again with that: the side channel does not say how many there are, and
// vLLM 0.32 stops answering for good when it is asked for one too many.
// Errors: ErrNoWay with those of the connection, of the side channel and of the notifier; the context's.
func (b *Book) Meet(ctx context.Context, host string, port int) (engineID string, err error) {
	if b == nil {
		return "", fmt.Errorf("meeting the engine at %s: %w: %w", address(host, port), ErrNoWay, errNoBook)
	}
	k := key{host: host, port: port, tensor: 1, pipeline: 1}
	if k.id, err = b.meet(ctx, k); err != nil {
		return "", fmt.Errorf("meeting the engine at %s: %w: %w", address(host, port), ErrNoWay, err)
	}
	return k.id, nil
}

func (b *Book) meet(ctx context.Context, k key) (string, error) {
	asked, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	said, err := b.ask(asked, k, 0, 0)
	if err != nil {
		return "", err
	}
	if k.id = said.EngineID; !k.valid() {
		return "", errOdd
	}
	b.mu.Lock()
	e, err := b.place(k)
	if err != nil {
		b.mu.Unlock()
		return "", err
	}
	e.busy++
	b.mu.Unlock()
	defer b.leave(e)
	_, err = b.crew(ctx, e)
	return k.id, err
}

// warn logs what can happen to a thousand engines at once.
func (b *Book) warn(msg string, args ...any) {
	b.mu.Lock()
	level, now := slog.LevelDebug, time.Now()
	if now.Sub(b.warned) >= time.Second {
		level, b.warned = slog.LevelWarn, now
	}
	b.mu.Unlock()
	b.config.Log.Log(context.Background(), level, msg, args...)
}
