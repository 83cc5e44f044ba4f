package replica

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

const (
	// DefaultInterval is the least time between two lines with changes. It is what a load is late by, and short beside the time that an
	// engine takes for a step.
	DefaultInterval = 10 * time.Millisecond
	// heartbeat is the longest time between two lines.
	heartbeat = time.Second
	// silence is how long a replica that tells nothing still counts.
	silence = 3 * heartbeat
	// maxLine bounds a line (bytes), and maxTold the endpoints that a replica may tell of.
	maxLine = 4 << 20
	maxTold = 1 << 16
	// maxSizes bounds the wishes of a replica for replicas of engines, and maxSize each of them.
	maxSizes = 1 << 10
	maxSize  = 1 << 16
)

// Pool is where the endpoints are found.
type Pool interface{ Snapshot() *epp.Snapshot }

// Options say which replicas there are.
type Options struct {
	Pool Pool
	With []string // HOST:PORT of the others. A host may stand for several, and for this picker itself
	// TLS returns how a connection is made; nil: without TLS. A certificate must be for the host of With, unless ServerName is set.
	TLS func() *tls.Config
	Log *slog.Logger
	// Resized is called when the sizes that others tell may have changed; nil: nothing is. It must not call the exchange.
	Resized func()
}

// Exchange tells other replicas of the load in flight of this one, and counts theirs.
type Exchange struct {
	o    Options
	id   string        // of this process
	done chan struct{} // closed when Run ends

	mu       sync.Mutex // also guards the part of others in the load of the endpoints
	interval time.Duration
	replicas map[string]*remote // by id
	members  []*epp.Endpoint    // the endpoints that named is of
	named    map[string]*epp.Endpoint
	lost     uint64         // connections that ended by themselves
	sizes    map[string]int // that this picker tells; replaced, never changed
	resized  uint64         // how often sizes was replaced
}

// remote is a replica that tells of its load.
type remote struct {
	id, address string
	told        map[string]epp.InFlight // by the endpoint's namespace and name
	charged     map[string]charge       // what of it counts
	sizes       map[string]int          // replicas that it wants, by what has them
	heard       time.Time
}

// charge is what counts on an endpoint for a replica.
type charge struct {
	to   *epp.Endpoint
	load epp.InFlight
}

// New makes an exchange. Nothing is told or counted before Run.
func New(o Options) *Exchange {
	return &Exchange{o: o, id: rand.Text(), done: make(chan struct{}), interval: DefaultInterval, replicas: map[string]*remote{}}
}

// SetInterval sets the least time between two lines with changes; 0 = DefaultInterval.
func (x *Exchange) SetInterval(d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.interval = d; d <= 0 {
		x.interval = DefaultInterval
	}
}

// SetSizes has other replicas told how many replicas of engines this picker wants, by what has them. Wishes of up to maxSizes are read.
func (x *Exchange) SetSizes(sizes map[string]int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !maps.Equal(x.sizes, sizes) {
		x.sizes = maps.Clone(sizes)
		x.resized++
	}
}

// Largest returns the larger of n and of what other replicas want of the same.
func (x *Exchange) Largest(of string, n int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range x.replicas {
		n = max(n, r.sizes[of])
	}
	return n
}

func (x *Exchange) every() time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.interval
}

var (
	errSelf  = errors.New("this picker itself")
	errKnown = errors.New("a replica that is followed at another address")
	errMany  = errors.New("the replica tells of too many endpoints")
)

// join begins to count a replica.
func (x *Exchange) join(id, address string) (*remote, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id == x.id {
		return nil, errSelf
	}
	if x.replicas[id] != nil {
		return nil, errKnown
	}
	r := &remote{id: id, address: address, told: map[string]epp.InFlight{}, charged: map[string]charge{}, heard: time.Now()}
	x.replicas[id] = r
	return r, nil
}

// leave stops counting a replica.
func (x *Exchange) leave(r *remote, lost bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range r.charged {
		c.to.ChargeOthers(c.load, epp.InFlight{})
	}
	delete(x.replicas, r.id)
	if lost {
		x.lost++
	}
	if len(r.sizes) > 0 {
		x.tellResized()
	}
}

// tellResized says that sizes of others have changed.
func (x *Exchange) tellResized() {
	if x.o.Resized != nil {
		x.o.Resized()
	}
}

// hear counts what a replica tells.
func (x *Exchange) hear(r *remote, told *news) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	r.heard = time.Now()
	if told.sizes != nil {
		r.sizes = told.sizes
		x.tellResized()
	}
	x.look()
	for name, load := range told.loads {
		if load == (epp.InFlight{}) {
			delete(r.told, name)
		} else {
			r.told[name] = load
		}
		r.charge(name, load, x.named[name])
	}
	if len(r.told) > maxTold {
		return errMany
	}
	return nil
}

// look follows the pool: what replicas have told of an endpoint that has come counts from now on.
func (x *Exchange) look() {
	endpoints := x.o.Pool.Snapshot().Endpoints
	if slices.Equal(endpoints, x.members) {
		return
	}
	x.members, x.named = endpoints, make(map[string]*epp.Endpoint, len(endpoints))
	for _, e := range endpoints {
		x.named[e.String()] = e
	}
	for _, r := range x.replicas {
		for name := range r.charged {
			if x.named[name] == nil {
				r.charge(name, epp.InFlight{}, nil)
			}
		}
		for name, load := range r.told {
			r.charge(name, load, x.named[name])
		}
	}
}

// charge has a load count on an endpoint, nil if there is none, in place of what counted under its name before.
func (r *remote) charge(name string, load epp.InFlight, to *epp.Endpoint) {
	before, has := r.charged[name]
	if has && !before.to.Is(to) {
		before.to.ChargeOthers(before.load, epp.InFlight{})
		before = charge{}
		delete(r.charged, name)
	}
	if to == nil {
		return
	}
	to.ChargeOthers(before.load, load)
	if r.charged[name] = (charge{to, load}); load == (epp.InFlight{}) {
		delete(r.charged, name)
	}
}
