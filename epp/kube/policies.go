package kube

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// policies follows objectives and rewrites in both groups. If a kind exists in both, only the newer group counts.
type policies struct {
	objectives dual[*InferenceObjective]
	rewrites   dual[*InferenceModelRewrite]
	used       policyState
	problems   []string // of the policy in use
}

// policyState identifies the objects that a policy was made from.
type policyState struct {
	made                   bool
	objectives, rewrites   uint64
	objectiveOf, rewriteOf int
}

// dual follows a kind in two groups.
type dual[T policyObject] struct {
	groups [2]struct { // the newer first
		follower *follower
		store    store[T]
	}
}

// policyObject is an objective or a rewrite.
type policyObject interface {
	client.Object
	pool() PoolRef
}

func (o *InferenceObjective) pool() PoolRef    { return o.Spec.PoolRef }
func (r *InferenceModelRewrite) pool() PoolRef { return r.Spec.PoolRef }

func (p *policies) start(ctx context.Context, r *run) error {
	if err := p.objectives.start(ctx, r, objectiveKind); err != nil {
		return err
	}
	return p.rewrites.start(ctx, r, rewriteKind)
}

func (d *dual[T]) start(ctx context.Context, r *run, kindOf func(group string) kind) (err error) {
	for i, group := range []string{PolicyGroup, AlphaGroup} {
		g := &d.groups[i]
		if g.follower, err = followInto(ctx, r, kindOf(group), &g.store); err != nil {
			return err
		}
	}
	return nil
}

// followInto follows the objects of a kind, and keeps them in a store.
func followInto[T client.Object](ctx context.Context, r *run, k kind, to *store[T]) (*follower, error) {
	set := func(object T) {
		r.metrics.event(k)
		to.set(object)
		r.wake()
	}
	remove := func(name string) {
		r.metrics.event(k)
		to.remove(name)
		r.wake()
	}
	return r.follow(ctx, &r.work, k, cache.ByObject{Transform: cache.TransformStripManagedFields()}, handler(set, remove))
}

// none is the group in use of a kind that the cluster does not have.
const none = -1

// choose returns the group whose objects count.
func (d *dual[T]) choose() int {
	for i := range d.groups {
		if d.groups[i].follower.has() {
			return i
		}
	}
	return none
}

// settled reports whether the existing objects are known.
func (d *dual[T]) settled() bool {
	return d.groups[0].follower.settled() && d.groups[1].follower.settled()
}

// complain records why the objects may differ from the cluster's. A kind that the cluster does not have is no trouble, nor is
// a missing permission for the older group: installs with the newer one need not grant it.
func (d *dual[T]) complain(r *run, found *problemSet) {
	for i := range d.groups {
		broken, told := d.groups[i].follower.state()
		if broken != nil && (broken.reason == faultMissing || broken.reason == faultForbidden && i > 0 && !told) {
			continue
		}
		found.follower(d.groups[i].follower, broken, told, r.options.Namespace)
	}
	if d.choose() != 0 {
		return
	}
	var ignored []string
	older, _ := d.groups[1].store.list()
	for _, object := range older {
		if d.groups[1].follower.has() && object.pool().means(r.poolID()) {
			ignored = append(ignored, object.GetName())
		}
	}
	if k := d.groups[1].follower.kind; len(ignored) > 0 {
		found.add("ignored "+k.String(), fmt.Sprintf("%s of %s are not used, since the cluster has the kind in %s too:"+
			" move them there: %s", k.gvk.Kind, AlphaGroup, PolicyGroup, strings.Join(ignored, ", ")))
	}
}

// objects returns the objects that count.
func (d *dual[T]) objects() (objects []T, version uint64, group int) {
	if group = d.choose(); group == none {
		return nil, 0, none
	}
	objects, version = d.groups[group].store.list()
	return objects, version, group
}

// read updates the policy, and reports whether it is known.
func (p *policies) read(r *run, found *problemSet) (known bool) {
	if r.fixed != nil {
		return true
	}
	p.objectives.complain(r, found)
	p.rewrites.complain(r, found)
	if !p.used.made && !(p.objectives.settled() && p.rewrites.settled()) {
		return false
	}
	now := policyState{made: true}
	objectives, rewrites := []*InferenceObjective(nil), []*InferenceModelRewrite(nil)
	objectives, now.objectives, now.objectiveOf = p.objectives.objects()
	rewrites, now.rewrites, now.rewriteOf = p.rewrites.objects()
	if now != p.used {
		made, problems := policyOf(r.poolID(), objectives, rewrites)
		p.used, p.problems = now, problems
		if !reflect.DeepEqual(made, r.policy.Load()) { // equal if only a status was written, or the object is another pool's
			r.policy.Store(made)
			r.options.Log.Info("policy changed", "left out", len(problems))
		}
	}
	for _, problem := range p.problems {
		found.add(problem, problem)
	}
	return true
}

func (r *run) poolID() poolID { return poolID{r.options.Group, r.options.Pool} }
