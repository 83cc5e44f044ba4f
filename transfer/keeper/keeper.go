package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// Config configures the process.
type Config struct {
	// Path is the program, and Args are its arguments. The program has to call Serve on Socket.
	Path string
	Args []string
	// Log logs starts (Info) and deaths (Warn).
	Log *slog.Logger
	// Pause is the wait before the second start, default 100 ms. It doubles with each start up to MaxPause, default 30 s,
	// and is reset after the process has lived for MaxPause.
	Pause, MaxPause time.Duration
	// CallLimit is how long a call may take before the process counts as hung and is killed, default 5 s.
	CallLimit time.Duration
}

func (c *Config) setDefaults() {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Pause == 0 {
		c.Pause = 100 * time.Millisecond
	}
	if c.MaxPause == 0 {
		c.MaxPause = 30 * time.Second
	}
	if c.CallLimit == 0 {
		c.CallLimit = callLimit + time.Second
	}
}

// ErrDown means that the process was not running, or ended during the call. It is a transfer.ErrGone that says nothing about
// the peer.
var ErrDown = fmt.Errorf("%w: the keeper process is down", transfer.ErrGone)

// Keeper runs a notifying process. It is a transfer.Notifier; while the process is down, its calls fail with ErrDown.
type Keeper struct {
	config   Config
	incoming chan transfer.Notification
	cancel   context.CancelFunc
	closed   chan struct{}
	ending   sync.WaitGroup // processes that are being ended

	mu      sync.Mutex // guards the fields below
	life    *life      // nil while the process is down
	state   State
	changed chan struct{} // closed and replaced when state changes
}

// State is the state of the process.
type State struct {
	Starts int    // how many times it was started
	About  string // describes its notifier while it is up; else ""
	Err    error  // why it is down, or was last time; nil if it never was
}

// Up reports whether calls can be made.
func (s State) Up() bool { return s.About != "" }

var _ transfer.Notifier = (*Keeper)(nil)

// Start starts the process and keeps it running. It does not wait for the start; problems are in State.
func Start(c Config) *Keeper {
	c.setDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	k := &Keeper{config: c, incoming: make(chan transfer.Notification, transfer.QueueLength), cancel: cancel,
		closed: make(chan struct{}), changed: make(chan struct{})}
	go k.keep(ctx)
	return k
}

// Close ends the process, and waits until it has ended.
func (k *Keeper) Close() error {
	k.cancel()
	<-k.closed
	return nil
}

// State returns the state of the process, and a channel that is closed when the state changes.
func (k *Keeper) State() (State, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state, k.changed
}

func (k *Keeper) change(l *life, set func(s *State)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.life = l
	set(&k.state)
	close(k.changed)
	k.changed = make(chan struct{})
}

// keep starts the process again whenever it ends.
func (k *Keeper) keep(ctx context.Context) {
	defer close(k.closed)
	defer close(k.incoming)
	defer k.ending.Wait()
	pause := k.config.Pause
	for {
		began := time.Now()
		err := k.live(ctx)
		if ctx.Err() != nil {
			k.change(nil, func(s *State) { s.About, s.Err = "", transfer.ErrClosed })
			return
		}
		if time.Since(began) > k.config.MaxPause {
			pause = k.config.Pause
		}
		k.change(nil, func(s *State) { s.About, s.Err = "", err })
		k.config.Log.Warn("the keeper process ended", "error", err, "again_in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, k.config.MaxPause)
	}
}

// live runs the process once. The error says why it ended.
func (k *Keeper) live(ctx context.Context) error {
	l, err := k.start()
	if err != nil {
		return err
	}
	k.change(nil, func(s *State) { s.Starts++ })
	// Calls are accepted only after the greeting, so that none waits for a process that cannot start.
	if err := l.greet(ctx); err != nil {
		return l.end(err)
	}
	k.change(l, func(s *State) { s.About = l.about })
	k.config.Log.Info("the keeper process runs", "about", l.about, "pid", l.process.Pid)
	cause := l.read(ctx, k.receive)
	k.change(nil, func(s *State) { s.About, s.Err = "", cause })
	return k.end(l, cause)
}

// endPatience is how long the next start waits for the end of the previous process. A busy kernel takes seconds to close
// everything that the process had open, and none of that is needed again.
const endPatience = time.Second

// end ends a process, and returns the cause as far as it is known in time.
func (k *Keeper) end(l *life, cause error) error {
	ended := make(chan error, 1)
	k.ending.Go(func() { ended <- l.end(cause) })
	select {
	case err := <-ended:
		return err
	case <-time.After(endPatience):
		return fmt.Errorf("%w (it has not ended yet)", cause)
	}
}

func (k *Keeper) receive(n transfer.Notification) {
	select {
	case k.incoming <- n:
	default: // as documented at Notifications
	}
}

// Notifications returns the messages of other agents. Messages that arrive while the channel is full are dropped.
func (k *Keeper) Notifications() <-chan transfer.Notification { return k.incoming }

// Load makes a peer known to the process. If the metadata kills the process, the error is transfer.ErrGone.
func (k *Keeper) Load(ctx context.Context, metadata []byte) (transfer.Peer, error) {
	if len(metadata) > MaxMetadata {
		return "", fmt.Errorf("loading a peer: %w: metadata of %d bytes, at most %d", transfer.ErrInvalid, len(metadata), MaxMetadata)
	}
	answer, err := k.ask(ctx, request{Op: opLoad, Data: metadata})
	return answer.Peer, err
}

// Forget undoes Load. It does not wait.
func (k *Keeper) Forget(peer transfer.Peer) {
	if l, err := k.alive(); err == nil {
		l.tell(request{Op: opForget, Peer: peer})
	}
}

// Notify sends a message to a peer that was loaded since the last start of the process.
func (k *Keeper) Notify(ctx context.Context, to transfer.Peer, message []byte) error {
	if len(message) > transfer.MaxMessage {
		return fmt.Errorf("notifying %s: %w: %d bytes, at most %d", to, transfer.ErrInvalid, len(message), transfer.MaxMessage)
	}
	_, err := k.ask(ctx, request{Op: opNotify, Peer: to, Data: message})
	return err
}

// alive returns the running process, or ErrDown.
func (k *Keeper) alive() (*life, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.life != nil:
		return k.life, nil
	case errors.Is(k.state.Err, transfer.ErrClosed):
		return nil, transfer.ErrClosed
	case k.state.Err != nil:
		return nil, fmt.Errorf("%w: %w", ErrDown, k.state.Err)
	}
	return nil, fmt.Errorf("%w: it is not up yet", ErrDown)
}

func (k *Keeper) ask(ctx context.Context, r request) (reply, error) {
	if ctx.Err() != nil {
		return reply{}, context.Cause(ctx)
	}
	l, err := k.alive()
	if err != nil {
		return reply{}, err
	}
	return l.ask(ctx, r)
}
