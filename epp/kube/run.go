package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/tandem-serving/tandem/epp"
)

// pace is the least time between two calls of apply: a single pod is seen at once, and when a thousand pods come, the pool is
// made fifty times a second and not a thousand.
const pace = 20 * time.Millisecond

// run is one Run of a Watch. Only its loop accesses its fields; followers fill the stores and pod sets, and wake it.
type run struct {
	*Watch
	apply func([]epp.Spec)
	work  sync.WaitGroup // goroutines of followers

	pool  *follower // nil in selector mode
	pools store[*InferencePool]
	seen  bool    // the pool has existed
	want  *target // its last usable target; nil: there is no pool

	pods *selected // pods that are the endpoints; nil: none
	next *selected // pods of another selector, until all of them are known

	policies policies
	variants variants
	applied  appliedState
	told     map[string]string // logged troubles that are not over, by key
}

// selected is the pods of one selector.
type selected struct {
	follower *follower
	podSet   *podSet
	selector string
}

// appliedState is what was applied last.
type appliedState struct {
	once    bool
	of      *podSet // nil: no endpoints
	version uint64
}

// start starts the followers that do not depend on the pool.
func (r *run) start(ctx context.Context) error {
	r.wake()
	if r.fixed != nil {
		r.want = r.fixed
		return nil
	}
	var err error
	r.pool, err = r.follow(ctx, &r.work, poolKind(r.options.Group), cache.ByObject{
		Field:     fields.OneTermEqualSelector("metadata.name", r.options.Pool),
		Transform: cache.TransformStripManagedFields(),
	}, r.poolHandler())
	if err != nil {
		return err
	}
	if err := r.policies.start(ctx, r); err != nil {
		return err
	}
	return r.variants.start(ctx, r)
}

// loop checks everything after each change, until ctx ends.
func (r *run) loop(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
		}
		if err := r.look(ctx); err != nil {
			return err
		}
		pause.Reset(pace)
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
	}
}

// look updates endpoints, policy and trouble.
func (r *run) look(ctx context.Context) error {
	var found problemSet
	r.readPool(&found)
	if err := r.choosePods(ctx); err != nil {
		return err
	}
	known := r.policies.read(r, &found) && r.podsKnown()
	if !r.variants.read(r, &found) && !r.applied.once {
		known = false // endpoints are not applied without their variants first, and with them a moment later
	}
	r.complain(&found)
	r.following.Store(known && !found.watching)
	r.report(&found)
	if known {
		r.deliver()
	}
	return nil
}

// readPool reads the target of the pool.
func (r *run) readPool(found *problemSet) {
	if r.fixed != nil {
		return
	}
	broken, told := r.pool.state()
	found.follower(r.pool, broken, told, r.options.Namespace)
	if !told {
		return
	}
	pools, _ := r.pools.list()
	if len(pools) == 0 {
		r.want = nil
		found.noPool(r.seen, &r.options)
		return
	}
	p := pools[0]
	r.seen = true
	wanted, err := p.target()
	if err != nil {
		found.add("pool", fmt.Sprintf("InferencePool %s/%s cannot be used: %v", p.Namespace, p.Name, err))
		return
	}
	r.want = wanted
}

// choosePods makes sure that the pods of the wanted selector are followed. The pods of the previous one stay the endpoints
// until the new ones are known.
func (r *run) choosePods(ctx context.Context) error {
	if r.want == nil {
		r.drop(&r.pods)
		r.drop(&r.next)
		return nil
	}
	selector := r.want.selector.String()
	if r.pods != nil && r.pods.selector == selector {
		r.drop(&r.next)
		r.pods.podSet.retarget(r.want.ports)
		return nil
	}
	if r.next != nil && r.next.selector != selector {
		r.drop(&r.next)
	}
	if r.next == nil {
		var err error
		if r.next, err = r.selectPods(ctx); err != nil {
			return err
		}
	}
	r.next.podSet.retarget(r.want.ports)
	if _, told := r.next.follower.state(); told {
		r.drop(&r.pods)
		r.pods, r.next = r.next, nil
	}
	return nil
}

// drop stops following pods. Run waits until that has ended.
func (r *run) drop(s **selected) {
	if *s != nil {
		(*s).follower.stop()
		*s = nil
	}
}

// selectPods starts to follow the wanted pods.
func (r *run) selectPods(ctx context.Context) (*selected, error) {
	pods := newPodSet(r.want.ports)
	set := func(p *corev1.Pod) {
		r.metrics.event(podKind)
		if pods.set(p) {
			r.wake()
		}
	}
	remove := func(name string) {
		r.metrics.event(podKind)
		if pods.remove(name) {
			r.wake()
		}
	}
	by := cache.ByObject{Label: r.want.selector, Transform: trimPod}
	f, err := r.follow(ctx, &r.work, podKind, by, handler(set, remove))
	if err != nil {
		return nil, err
	}
	return &selected{f, pods, r.want.selector.String()}, nil
}

// podsKnown reports whether the pods are known. If the pool was deleted, it is known that there are none.
func (r *run) podsKnown() bool { return r.pods != nil || r.want == nil && r.seen && r.applied.once }

// deliver applies the endpoints if they have changed.
func (r *run) deliver() {
	now := appliedState{once: true}
	var specs []epp.Spec
	if r.pods != nil {
		now.of, now.version = r.pods.podSet, r.pods.podSet.state()
	}
	if now == r.applied {
		return
	}
	if r.pods != nil {
		specs, now.version = r.pods.podSet.collect()
	}
	r.podSet.Store(now.of)
	r.apply(specs)
	r.applied = now
	select {
	case <-r.synced:
	default:
		close(r.synced)
	}
}

// poolHandler stores the pool, of either group, in the form of the newer.
func (r *run) poolHandler() toolscache.ResourceEventHandler {
	k := poolKind(r.options.Group)
	set := func(p *InferencePool) {
		r.metrics.event(k)
		r.pools.set(p)
		r.wake()
	}
	remove := func(name string) {
		r.metrics.event(k)
		r.pools.remove(name)
		r.wake()
	}
	if r.options.Group == AlphaGroup {
		return handler(func(p *AlphaInferencePool) { set(p.current()) }, remove)
	}
	return handler(set, remove)
}
