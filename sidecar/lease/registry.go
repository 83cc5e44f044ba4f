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
	"github.com/tandem-serving/tandem/pd/loglimit"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// Config is the settings of a Registry. The comments name the default of a zero value.
type Config struct {
	// Notifier sends the notices. Required; the registry does not close it. If it reports a State, as a NIXL agent process
	// does, nothing is sent while the state is down.
	Notifier transfer.Notifier
	// Dialer connects to the side channels. Engines name the addresses themselves, so it must refuse those that the sidecar
	// may not reach. Default: a *net.Dialer, which refuses none.
	Dialer zmtp.Dialer
	// Lease is how long prefill engines keep a finished hand-off. Required.
	Lease time.Duration
	// Noticer is the dialect of the engines. Required.
	Noticer dialect.Noticer
	// Log gets a warning for each engine that cannot be notified, at most one a second.
	Log *slog.Logger
	// Engines is the most engines that are known at once, default 1024. For a further one, the registry drops the engine that
	// was unused for longest and has no hold.
	Engines int
}

func (c *Config) setDefaults() {
	if c.Dialer == nil {
		c.Dialer = new(net.Dialer)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Engines = cmp.Or(c.Engines, 1024)
}

const (
	// connectsAtOnce bounds how many engines the registry connects to at once: each may take a connection and connectTime.
	connectsAtOnce = 16
	// connectTime bounds the time to connect to all ranks of an engine. Decode engines wait as long for a side channel.
	connectTime = 5 * time.Second
	// maxNoticeTime bounds notifying all ranks of an engine, as does a sixth of the lease. Measured 0.1 to 1 ms a rank.
	maxNoticeTime = 5 * time.Second
	// firstPause is how long no try follows a failure to notify an engine. It doubles with each failure up to lastPause.
	firstPause, lastPause = time.Second, time.Minute
)

// Registry knows prefill engines and the holds on their hand-offs. Make it with New. Its methods are safe for concurrent use.
// A nil Registry knows no engine.
type Registry struct {
	config   Config
	notices  dialect.Notices
	agents   dialect.Agents
	renewal  time.Duration   // how long a heartbeat renews a hand-off
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	work     sync.WaitGroup // running goroutines and set timers
	warnings *loglimit.Limiter
	connects chan struct{} // has a token for each engine that is being connected to

	mu      sync.Mutex // guards the fields below, and all engines and holds
	closed  bool
	engines map[key]*engine
	loaded  map[transfer.Peer]int // number of engines that use each peer; a hostile engine may name another's peers
	counts  Counts
}

// Counts is what a Registry has done so far.
type Counts struct {
	Connects, FailedConnects uint64 // connections to all ranks of an engine
	Beats, FailedBeats       uint64 // rounds of heartbeats to all ranks of an engine
	Engines                  int    // known now, whether or not they can be notified
}

// Why an engine cannot be notified. ErrNoWay is wrapped with them.
var (
	errNoRegistry   = errors.New("this sidecar notifies no engines")
	errClosed       = errors.New("the sidecar is closing")
	errUnidentified = errors.New("the hand-off does not identify its engine, ranks and request")
	errFull         = errors.New("too many engines are in use at once")
)

// New makes a Registry without engines. It starts no goroutine before the first hand-off.
func New(c Config) *Registry {
	c.setDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	return &Registry{config: c, notices: c.Noticer.Notices(), agents: c.Noticer.Agents(), renewal: min(c.Noticer.Renewal(c.Lease), c.Lease), ctx: ctx, cancel: cancel, warnings: loglimit.New(c.Log, time.Second), connects: make(chan struct{}, connectsAtOnce),
		engines: make(map[key]*engine), loaded: make(map[transfer.Peer]int)}
}

// Close ends all work and waits for it. Holds end without a release, and later hand-offs are not renewed.
func (b *Registry) Close() {
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

// Counts returns the counts so far, for metrics.
func (b *Registry) Counts() Counts {
	if b == nil {
		return Counts{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.counts
	c.Engines = len(b.engines)
	return c
}

// Hold begins to renew a hand-off that finished at the given time, if its engine can be notified. It does not wait. The
// caller must end the result, which is nil for a nil Registry. A hand-off must have only one hold, because each hold may
// release it.
func (b *Registry) Hold(h dialect.Pin, finished time.Time) *Hold {
	if b == nil {
		return nil
	}
	lease := b.config.Lease
	hold := &Hold{registry: b, id: h.RequestID, until: finished.Add(lease), due: finished.Add(b.renewal / 2), at: notHeld}
	k := key{id: h.EngineID, host: h.Host, port: h.Port, tensor: h.Tensor, pipeline: h.Pipeline}
	if !k.valid() || !b.notices.Names(h.RequestID) {
		hold.why = errUnidentified
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
	b.beginConnect(e)
	b.arm(e, hold.due)
	return hold
}

// Connect asks the side channel at host and port (1 to 65535) which engine it belongs to, and prepares to notify that engine
// before its first hand-off. The registry connects to an engine of several ranks again at that hand-off: the side channel does
// not report their number, and engines may stop answering for good when they are asked for one too many. Errors: ErrNoWay with
// those of the connection, of the side channel and of the notifier; the context's.
func (b *Registry) Connect(ctx context.Context, host string, port int) (engineID string, err error) {
	if b == nil {
		return "", fmt.Errorf("connecting to the engine at %s: %w: %w", address(host, port), ErrNoWay, errNoRegistry)
	}
	k := key{host: host, port: port, tensor: 1, pipeline: 1}
	if k.id, err = b.connectTo(ctx, k); err != nil {
		return "", fmt.Errorf("connecting to the engine at %s: %w: %w", address(host, port), ErrNoWay, err)
	}
	return k.id, nil
}

func (b *Registry) connectTo(ctx context.Context, k key) (engineID string, err error) {
	asked, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	if k.id, _, err = b.ask(asked, k, 0, 0); err != nil {
		return "", err
	}
	if !k.valid() {
		return "", errUnidentified
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
	_, err = b.connectedRanks(ctx, e)
	return k.id, err
}
