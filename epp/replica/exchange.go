package replica

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
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
	// maxWaiting bounds the priorities of which a replica may have requests wait, and what it may say of each.
	maxWaiting         = 1 << 10
	maxWaitingRequests = 1 << 24
	maxWaitingBytes    = 1 << 44
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
	// Check has the page of an endpoint read at once, because another replica has found it unreachable, or reachable again; nil: nothing is.
	// It must not call the exchange.
	Check func(e *epp.Endpoint)
	// Waiting returns what waits in this picker's queues; nil: nothing does. It must not call the exchange.
	Waiting func() []epp.Queued
	// Heard is called when requests may pass that could not before others were told of this picker's load; nil: nothing is.
	Heard func()
	// Secret names the secret with which this picker hashes prompts, and must tell nothing of it. What replicas with another one learn is
	// not understood. "": no other process has it, so that nothing is told of prompts.
	Secret string
}

// Exchange tells other replicas of the load in flight of this one, and counts theirs.
type Exchange struct {
	o       Options
	id      string        // of this process
	done    chan struct{} // closed when Run ends
	journal *journal      // nil without a secret
	untold  atomic.Uint64 // prompts that replicas were not told of in time
	others  atomic.Int64  // replicas that count
	waiting atomic.Pointer[[]epp.Queued]
	dial    func(ctx context.Context, network, address string) (net.Conn, error) // nil: that of package net

	mu       sync.Mutex // also guards the part of others in the load of the endpoints
	interval time.Duration
	replicas map[string]*remote // by id
	members  []*epp.Endpoint    // the endpoints that named is of
	named    map[string]*epp.Endpoint
	place    map[string]int // of the endpoint in members
	matchers map[string]epp.SharedMatcher
	learned  uint64         // prompts of others
	unknown  uint64         // prompts of others for endpoints or matchers that this picker does not have
	lost     uint64         // connections that ended by themselves
	sizes    map[string]int // that this picker tells; replaced, never changed
	resized  uint64         // how often sizes was replaced
	apart    bool           // loads of others do not count, and they are told of none
}

// remote is a replica that tells of its load.
type remote struct {
	id, address string
	told        map[string]epp.InFlight // by the endpoint's namespace and name
	charged     map[string]charge       // what of it counts
	sizes       map[string]int          // replicas that it wants, by what has them
	down        map[string]bool         // endpoints that it finds unreachable
	waiting     []epp.Queued            // in its queues
	waited      time.Duration           // how long a prompt has waited until it was told, lately
	heard       time.Time
}

// charge is what counts on an endpoint for a replica.
type charge struct {
	to   *epp.Endpoint
	load epp.InFlight
}

// New makes an exchange. Nothing is told or counted before Run.
func New(o Options) *Exchange {
	x := &Exchange{o: o, id: rand.Text(), done: make(chan struct{}), interval: DefaultInterval, replicas: map[string]*remote{}}
	if o.Secret != "" {
		x.journal = newJournal()
	}
	return x
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
	x.countReplicas()
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
	x.countReplicas()
	x.sumWaiting()
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

// hear takes in what a replica tells.
func (x *Exchange) hear(r *remote, told *news) error {
	toLearn, err := x.take(r, told)
	for i := range toLearn {
		l := &toLearn[i]
		l.by.LearnShared(l.to, l.blocks, l.load)
	}
	return err
}

// take counts what a replica tells, and returns what it has learned. Matchers learn without the lock.
func (x *Exchange) take(r *remote, told *news) ([]learnable, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r.heard = time.Now()
	if told.sizes != nil {
		r.sizes = told.sizes
		x.tellResized()
	}
	s := x.look()
	for name, load := range told.loads {
		if load == (epp.InFlight{}) {
			delete(r.told, name)
		} else {
			r.told[name] = load
		}
		r.charge(name, load, x.counted(name))
	}
	if len(r.told) > maxTold {
		return nil, errMany
	}
	if told.down != nil {
		x.suspect(r, told.down)
	}
	if told.waiting != nil {
		r.waiting = told.waiting
		x.sumWaiting()
	}
	return x.toLearn(r, told, s)
}

// suspect has the endpoints checked that a replica has found unreachable, or reachable again. Its word alone takes no endpoint out: the
// network may be broken between the two only.
func (x *Exchange) suspect(r *remote, down []string) {
	before := r.down
	r.down = make(map[string]bool, len(down))
	for _, name := range down {
		r.down[name] = true
		if !before[name] {
			x.check(name)
		}
	}
	for name := range before {
		if !r.down[name] {
			x.check(name)
		}
	}
}

func (x *Exchange) check(name string) {
	if e := x.named[name]; e != nil && x.o.Check != nil {
		x.o.Check(e)
	}
}

// sumWaiting adds up what waits at all other replicas. The caller holds mu.
func (x *Exchange) sumWaiting() {
	var sum []epp.Queued
	for _, r := range x.replicas {
		for _, w := range r.waiting {
			i := slices.IndexFunc(sum, func(s epp.Queued) bool { return s.Priority == w.Priority })
			if i < 0 {
				sum = append(sum, w)
				continue
			}
			sum[i].Requests += w.Requests
			sum[i].Bytes += w.Bytes
		}
	}
	x.waiting.Store(&sum)
}

// Waiting returns what waits in the queues of the other replicas, by priority. It must not be changed.
func (x *Exchange) Waiting() []epp.Queued {
	if all := x.waiting.Load(); all != nil {
		return *all
	}
	return nil
}

// Others returns how many other replicas tell of their loads.
func (x *Exchange) Others() int { return int(x.others.Load()) }

// countReplicas notes how many there are. The caller holds mu.
func (x *Exchange) countReplicas() {
	n := len(x.replicas)
	if x.apart {
		n = 0
	}
	x.others.Store(int64(n))
}

// look follows the pool, and returns its snapshot: what replicas have told of an endpoint that has come counts from now on.
func (x *Exchange) look() *epp.Snapshot {
	s := x.o.Pool.Snapshot()
	if slices.Equal(s.Endpoints, x.members) {
		return s
	}
	x.members, x.named, x.place = s.Endpoints, make(map[string]*epp.Endpoint, len(s.Endpoints)), make(map[string]int, len(s.Endpoints))
	for i, e := range s.Endpoints {
		name := e.String()
		x.named[name], x.place[name] = e, i
	}
	for _, r := range x.replicas {
		for name := range r.charged {
			if x.named[name] == nil {
				r.charge(name, epp.InFlight{}, nil)
			}
		}
		for name, load := range r.told {
			r.charge(name, load, x.counted(name))
		}
	}
	return s
}

// counted returns the endpoint on which a load of another replica counts; nil: it does not count.
func (x *Exchange) counted(name string) *epp.Endpoint {
	if x.apart {
		return nil
	}
	return x.named[name]
}

// SetLoads says whether loads in flight are exchanged, as they are at first.
func (x *Exchange) SetLoads(exchanged bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.apart = !exchanged
	x.countReplicas()
	x.look()
	for _, r := range x.replicas {
		for name, load := range r.told {
			r.charge(name, load, x.counted(name))
		}
	}
}

// tells reports whether others are told of loads.
func (x *Exchange) tells() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.apart
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
