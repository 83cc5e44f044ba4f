package lease

import (
	"net"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

const (
	// maxRanks bounds the ranks of an engine, each of which has its own question and notices.
	maxRanks = 64
	// maxText bounds an engine's id and its host, in bytes: ids have 36, names in the DNS up to 253.
	maxText = 255
)

// key identifies an engine by its id and by the address and ranks that it names. An engine that only copies the id of another
// is a different key, and gets none of its notices.
type key struct {
	id, host               string
	port, tensor, pipeline int
}

func (k key) valid() bool {
	return k.id != "" && len(k.id) <= maxText && k.host != "" && len(k.host) <= maxText && k.port > 0 && k.port <= 65535 &&
		k.tensor > 0 && k.tensor <= maxRanks && k.pipeline > 0 && k.pipeline*k.tensor <= maxRanks
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// engine is a prefill engine that the registry knows. Registry.mu guards it.
type engine struct {
	key
	used    time.Time // time of the last use
	busy    int       // calls in progress that use it
	evicted bool

	ranks      *ranks        // nil: it cannot be notified now
	stale      *ranks        // earlier ranks, until the registry connects again
	connecting chan struct{} // closed when the registry has connected, or failed to; nil: it is not connecting
	failure    error         // why ranks is nil
	again      time.Time     // when the registry may try again to connect
	pause      time.Duration // length of the last pause; 0: it was notified since

	holds   []*Hold
	beating bool
	timer   *time.Timer // nil until the first hold
	set     bool        // the timer is, for
	setFor  time.Time
}

// ranks are all ranks of an engine, pipeline by pipeline, as one connection found them.
type ranks struct {
	peers     []transfer.Peer
	forgotten bool // the registry has had the notifier forget one of them
}

// place returns an engine. It adds a new one, and evicts another if there are too many. Errors: errClosed, errFull.
func (b *Registry) place(k key) (*engine, error) {
	if b.closed {
		return nil, errClosed
	}
	e := b.engines[k]
	if e == nil {
		if len(b.engines) >= b.config.Engines && !b.evict() {
			return nil, errFull
		}
		e = &engine{key: k}
		b.engines[k] = e
	}
	e.used = time.Now()
	return e, nil
}

// evict drops the engine that was unused for longest. It returns false if all are in use.
func (b *Registry) evict() bool {
	var oldest *engine
	for _, e := range b.engines {
		idle := e.busy == 0 && len(e.holds) == 0 && e.connecting == nil && !e.beating
		if idle && (oldest == nil || e.used.Before(oldest.used)) {
			oldest = e
		}
	}
	if oldest == nil {
		return false
	}
	delete(b.engines, oldest.key)
	oldest.evicted = true
	b.disarm(oldest)
	b.drop(oldest.ranks)
	b.drop(oldest.stale)
	oldest.ranks, oldest.stale = nil, nil
	return true
}

// leave ends a use of an engine.
func (b *Registry) leave(e *engine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.busy--
}

// take counts an engine for each of its peers.
func (b *Registry) take(c *ranks) {
	for _, p := range c.peers {
		b.loaded[p]++
	}
}

// drop undoes take, and has the notifier forget the peers that no engine uses any more: in the background, since that may
// take time.
func (b *Registry) drop(c *ranks) {
	if c == nil {
		return
	}
	var unneeded []transfer.Peer
	for _, p := range c.peers {
		if b.loaded[p]--; b.loaded[p] == 0 {
			delete(b.loaded, p)
			unneeded = append(unneeded, p)
		}
	}
	if len(unneeded) == 0 || b.closed {
		return
	}
	c.forgotten = true
	b.work.Go(func() {
		for _, p := range unneeded {
			b.config.Notifier.Forget(p)
		}
	})
}
