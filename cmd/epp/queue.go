package main

import (
	"context"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/epp/replica"
	"github.com/tandem-serving/tandem/epp/setup"
)

// queue has requests wait while the pool is full, if the configuration in use says so. It outlives reloads.
type queue struct {
	*flow.Controller
	running *flow.Running // also those that did not wait
	pool    changing
	began   chan struct{} // holds one: requests have begun to wait
	wake    func()        // called then, unless it is nil
	// exchange knows what waits at other replicas; nil: there are none. It is set before requests come.
	exchange *replica.Exchange

	mu      sync.Mutex
	changes *epp.Subscription // nil before follow runs
	waiting bool
}

// newQueue makes a queue that lets every request pass until use. name is that of the InferencePool, "" = there is none.
func newQueue(pool changing, name string, registry *prometheus.Registry) *queue {
	q := &queue{pool: pool, began: make(chan struct{}, 1), running: flow.NewRunning(epp.SystemClock)}
	q.Controller = flow.New(flow.Settings{}, flow.OpenGate{}, flow.Options{Clock: epp.SystemClock, Waiting: q.want,
		Metrics: flow.NewMetrics(registry, name), Running: q.running, Others: q.elsewhere})
	registry.MustRegister(q.Controller, q.running)
	return q
}

// use has requests wait as a configuration says.
func (q *queue) use(b *config.Built, c *settings) {
	q.Configure(setup.Queues(b, setup.Pages{Pool: q.pool, Clock: epp.SystemClock, Interval: c.Metrics.Interval, Stale: c.Metrics.Stale,
		Others: q.others}))
}

// elsewhere returns what waits at other replicas.
func (q *queue) elsewhere() []epp.Queued {
	if q.exchange == nil {
		return nil
	}
	return q.exchange.Waiting()
}

// others returns how many other replicas tell their loads.
func (q *queue) others() int {
	if q.exchange == nil {
		return 0
	}
	return q.exchange.Others()
}

// capacityChanges are the changes of the pool after which a request may have capacity. All but the last are rare.
const capacityChanges = epp.MembersChanged | epp.LoadsChanged | epp.HealthChanged | epp.InFlightFell

// want subscribes to changes while requests wait. While none waits, the end of a request costs nothing.
func (q *queue) want(any bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = any
	q.subscribe()
	if any {
		select {
		case q.began <- struct{}{}:
		default:
		}
	}
}

// subscribe tells the pool which changes the queue needs. The caller holds mu.
func (q *queue) subscribe() {
	if q.changes == nil {
		return
	}
	wanted := epp.Changes(0)
	if q.waiting {
		wanted = capacityChanges
	}
	q.changes.Want(wanted)
}

// follow lets requests pass when the pool has capacity, and calls wake when some begin to wait, until ctx ends. Then it refuses those that wait.
func (q *queue) follow(ctx context.Context) {
	changes := q.pool.Subscribe(0)
	defer changes.Close()
	q.mu.Lock()
	q.changes = changes
	q.subscribe()
	q.mu.Unlock()
	defer q.Close()
	for {
		q.SnapshotChanged() // also at first: requests may have begun to wait before the subscription
		select {
		case <-ctx.Done():
			return
		case <-changes.Ready():
			changes.Take()
		case <-q.began:
			if q.wake != nil {
				q.wake()
			}
		}
	}
}

func (p *picker) debugQueues(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.queue.View()) }
