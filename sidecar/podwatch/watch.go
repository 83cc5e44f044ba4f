package podwatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Groups are the API groups of an InferencePool, the newer one first.
var Groups = []string{"inference.networking.k8s.io", "inference.networking.x-k8s.io"}

// Pool names an InferencePool.
type Pool struct{ Group, Namespace, Name string }

// ParsePool reads NAMESPACE/NAME, or NAME for the namespace default, as llm-d's sidecar does.
func ParsePool(text string) (Pool, error) {
	namespace, name, both := strings.Cut(text, "/")
	if !both {
		namespace, name = "default", text
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return Pool{}, fmt.Errorf("%q is not [NAMESPACE/]NAME of an InferencePool", text)
	}
	return Pool{Group: Groups[0], Namespace: namespace, Name: name}, nil
}

// String returns NAMESPACE/NAME.
func (p Pool) String() string { return p.Namespace + "/" + p.Name }

// resource returns the list that has at most this pool.
func (p Pool) resource() resource {
	version := "v1"
	if p.Group != Groups[0] {
		version = "v1alpha2"
	}
	return resource{"/apis/" + p.Group + "/" + version + "/namespaces/" + url.PathEscape(p.Namespace) + "/inferencepools",
		url.Values{"fieldSelector": {"metadata.name=" + p.Name}}}
}

// Watch follows the pods of a pool. Make it with New; its methods are safe for concurrent use.
type Watch struct {
	api  API
	pool Pool
	log  *slog.Logger

	pods    atomic.Pointer[map[netip.Addr]bool] // nil: not known yet
	trouble atomic.Pointer[error]               // why they are not known; nil: none
	told    sync.Map                            // the text that was logged last, by what it is about, while that is not over

	// pauses bound the wait between two lists of a kind, at random from half of it on. They are fields so that tests need not wait.
	pauses [2]time.Duration
}

// New makes a Watch, which knows nothing before Run.
func New(api API, pool Pool, log *slog.Logger) *Watch {
	return &Watch{api: api, pool: pool, log: log, pauses: [2]time.Duration{time.Second, 30 * time.Second}}
}

// Has reports whether an address is that of one of the pool's pods.
func (w *Watch) Has(addr netip.Addr) bool {
	pods := w.pods.Load()
	return pods != nil && (*pods)[addr]
}

// Ready returns why the pods are not known yet, or nil. It does not change back when the API server stops answering.
func (w *Watch) Ready() error {
	if w.pods.Load() != nil {
		return nil
	}
	if trouble := w.trouble.Load(); trouble != nil {
		return *trouble
	}
	return fmt.Errorf("the pods of InferencePool %s are not known yet", w.pool)
}

// Run follows the pool and its pods until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	r := &run{Watch: w, ctx: ctx}
	defer w.api.Client.CloseIdleConnections()
	defer r.stop()
	w.follow(ctx, w.pool.resource(), r.readPools, r.poolChanged)
}

// follow lists a kind of objects and watches it, again and again until ctx ends.
func (w *Watch) follow(ctx context.Context, r resource, all func([]json.RawMessage) error, one func(event) error) {
	for pause := w.pauses[0]; ; {
		err := w.once(ctx, r, all, one)
		if ctx.Err() != nil {
			return
		}
		pause = min(2*pause, w.pauses[1])
		if err == nil {
			pause = w.pauses[0]
		}
		w.complain(r.path, err)
		timer := time.NewTimer(pause/2 + rand.N(pause/2)) // sidecars that lost the API server together must not come back together
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (w *Watch) once(ctx context.Context, r resource, all func([]json.RawMessage) error, one func(event) error) error {
	l, err := w.api.list(ctx, r)
	if err != nil {
		return fmt.Errorf("listing %s: %w", r.path, err)
	}
	if err := all(l.Items); err != nil {
		return err
	}
	if err := w.api.watch(ctx, r, l.Metadata.ResourceVersion, one); err != nil {
		return fmt.Errorf("watching %s: %w", r.path, err)
	}
	return nil
}

// complain logs a trouble with something, once until it changes. nil ends it.
func (w *Watch) complain(about string, err error) {
	if err == nil {
		w.told.Delete(about)
		return
	}
	trouble := fmt.Errorf("following the pods of InferencePool %s: %w", w.pool, err)
	w.trouble.Store(&trouble)
	if last, _ := w.told.Swap(about, err.Error()); last != err.Error() {
		w.log.Warn("the pods that prefill legs may go to are not up to date", "pool", w.pool.String(), "error", err)
	}
}

// run is one Run of a Watch. Its fields belong to the goroutine of Run.
type run struct {
	*Watch
	ctx      context.Context
	selector string             // of the pods that are followed; "": none are
	end      context.CancelFunc // of that; nil: none are
	work     sync.WaitGroup
}

// inferencePool has what a pool says about its pods. The older group has the labels one level higher.
type inferencePool struct {
	Metadata struct{ Name string }
	Spec     struct{ Selector json.RawMessage }
}

// labels returns the selector as a query of the API server has it.
func (p *inferencePool) labels() (string, error) {
	var newer struct{ MatchLabels map[string]string }
	labels := map[string]string{}
	if err := json.Unmarshal(p.Spec.Selector, &newer); err == nil && newer.MatchLabels != nil {
		labels = newer.MatchLabels
	} else if err := json.Unmarshal(p.Spec.Selector, &labels); err != nil {
		return "", fmt.Errorf("reading its selector: %w", err)
	}
	if len(labels) == 0 {
		return "", errors.New("its selector is empty and would take every pod of the namespace")
	}
	var terms []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		terms = append(terms, key+"="+labels[key])
	}
	return strings.Join(terms, ","), nil
}

// readPools follows the pods of the pool, if there is one. A deleted pool has no pods; those of one that has not existed yet are
// not known.
func (r *run) readPools(items []json.RawMessage) error {
	const existence = "existence"
	if len(items) > 0 {
		r.complain(existence, nil)
		return r.readPool(items[0])
	}
	r.stop()
	if r.pods.Load() != nil {
		r.pods.Store(&map[netip.Addr]bool{})
	}
	r.complain(existence, errors.New("there is no such InferencePool"))
	return nil
}

func (r *run) poolChanged(e event) error {
	switch e.Type {
	case "ADDED", "MODIFIED":
		return r.readPool(e.Object)
	case "DELETED":
		return r.readPools(nil)
	}
	return nil
}

// readPool follows the pods of another selector, if the pool has changed it. The addresses stay until the new ones are known.
func (r *run) readPool(item json.RawMessage) error {
	var p inferencePool
	if err := json.Unmarshal(item, &p); err != nil {
		return fmt.Errorf("reading the pool: %w", err)
	}
	selector, err := p.labels()
	if err != nil || selector == r.selector {
		return err
	}
	r.stop()
	ctx, end := context.WithCancel(r.ctx)
	r.selector, r.end = selector, end
	of := &podSet{addrs: map[string][]netip.Addr{}, publish: func(addrs map[netip.Addr]bool) { r.pods.Store(&addrs) }}
	pods := resource{"/api/v1/namespaces/" + url.PathEscape(r.pool.Namespace) + "/pods", url.Values{"labelSelector": {selector}}}
	r.work.Go(func() { r.follow(ctx, pods, of.reset, of.change) })
	return nil
}

// stop ends the following of pods.
func (r *run) stop() {
	if r.end != nil {
		r.end()
		r.work.Wait()
	}
	r.selector, r.end = "", nil
}
