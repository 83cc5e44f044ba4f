package leaving

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/bits"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/epp/scale"
	"github.com/tandem-serving/tandem/pd/loglimit"
)

const (
	// Cost is the deletion cost of a pod that is to go. Pods without the annotation have 0.
	Cost = "-1000"
	// Pace is the least time between two writes to a pod.
	Pace = time.Minute
)

// logEvery is how often failed writes are logged.
const logEvery = time.Minute

// Pod is a pod that serves a role.
type Pod struct {
	Role, Name string
	Requests   int     // that it has
	Reused     float64 // tokens that requests have lately found in its cache
	Variant    string  // by which the size of its role is computed
}

// Cluster is the pods of the API server.
type Cluster interface {
	// DeletionCosts returns the annotation of the pods that have it, by name, as far as is known.
	DeletionCosts() map[string]string
	// SetDeletionCost annotates a pod; "" removes the annotation.
	SetDeletionCost(ctx context.Context, pod, cost string) error
}

// Options are what a Marker needs.
type Options struct {
	Sizes   scale.Source
	Pods    func() []Pod
	Cluster Cluster
	Now     func() time.Time
	Log     *slog.Logger
}

// Marker annotates the pods that are to go.
type Marker struct {
	options Options
	log     *loglimit.Limiter
	written map[string]write // by pod
}

// write is the latest known value of a pod's annotation.
type write struct {
	cost string
	at   time.Time // when it changed; zero: not while it was looked at
}

// New makes a Marker.
func New(o Options) *Marker {
	return &Marker{options: o, log: loglimit.New(o.Log, logEvery), written: map[string]write{}}
}

// Run annotates pods whenever sizes change, until ctx ends.
func (m *Marker) Run(ctx context.Context) {
	for {
		changed := m.options.Sizes.Changed()
		m.look(ctx)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// look compares the pods with the sizes. While sizes are not known, annotations stay.
func (m *Marker) look(ctx context.Context) {
	sizes, err := m.options.Sizes.Sizes()
	if err != nil {
		return
	}
	now, pods, costs := m.options.Now(), m.options.Pods(), m.options.Cluster.DeletionCosts()
	m.follow(now, pods, costs)
	for i := range sizes {
		size := &sizes[i]
		first := choose(pods, costs, size, size.Current-min(size.Desired, size.Soon))
		for k := range pods {
			if p := &pods[k]; p.is(size) {
				m.mark(ctx, now, p.Name, costs[p.Name], slices.Contains(first, p.Name))
			}
		}
	}
}

// follow notes which values have changed, also by other pickers, and forgets pods that are gone.
func (m *Marker) follow(now time.Time, pods []Pod, costs map[string]string) {
	there := make(map[string]write, len(pods))
	for i := range pods {
		name := pods[i].Name
		w, known := m.written[name]
		if cost := costs[name]; cost != w.cost {
			w = write{cost: cost}
			if known {
				w.at = now
			}
		}
		there[name] = w
	}
	m.written = there
}

// mark has a pod have the cost of those that go, or not. cost is what it has.
func (m *Marker) mark(ctx context.Context, now time.Time, pod, cost string, goes bool) {
	want := ""
	if goes {
		want = Cost
	}
	if cost == want || cost != "" && cost != Cost || now.Sub(m.written[pod].at) < Pace {
		return
	}
	m.written[pod] = write{want, now} // failed writes count, too
	if err := m.options.Cluster.SetDeletionCost(ctx, pod, want); err != nil && !errors.Is(err, context.Canceled) {
		m.log.Warn("a pod that is to go first could not be annotated, so Kubernetes chooses by itself: the picker needs the right to patch pods", "pod", pod, "error", err)
	}
}

// is reports whether a size is that of the pod's role and variant.
func (p *Pod) is(s *scale.Size) bool { return p.Role == s.Role && p.Variant == s.Variant }

// choose returns the pods of a size that are to go, so many: those with the fewest requests, of these those with the coldest caches, of these those that
// were chosen before.
func choose(pods []Pod, costs map[string]string, size *scale.Size, many int) (names []string) {
	var of []Pod
	for _, p := range pods {
		if cost := costs[p.Name]; p.is(size) && (cost == "" || cost == Cost) {
			of = append(of, p)
		}
	}
	chosen := func(p Pod) int { return min(1, len(costs[p.Name])) }
	slices.SortFunc(of, func(a, b Pod) int {
		return cmp.Or(bits.Len(uint(a.Requests))-bits.Len(uint(b.Requests)), bits.Len(uint(a.Reused))-bits.Len(uint(b.Reused)),
			chosen(b)-chosen(a), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range of[:max(0, min(many, len(of)))] {
		names = append(names, p.Name)
	}
	return names
}
