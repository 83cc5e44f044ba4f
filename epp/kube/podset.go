package kube

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/epp"
)

// podSet holds the pods of a selector, and their endpoints. It is safe for concurrent use.
type podSet struct {
	mu        sync.Mutex
	ports     []uint16
	variants  variantsByTarget
	pods      map[string]member // by name: they are of one namespace
	endpoints int               // of all members
	problems  int               // members with a problem
	version   uint64            // increases with every change of endpoints or problems
}

// member is a pod.
type member struct {
	pod     *corev1.Pod
	specs   []epp.Spec // none: it cannot serve
	problem string     // "" = none
}

func newPodSet(ports []uint16) *podSet { return &podSet{ports: ports, pods: make(map[string]member)} }

// set adds or updates a pod, and reports whether endpoints or problems have changed.
func (r *podSet) set(p *corev1.Pod) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := member{pod: p}
	next.specs, next.problem = endpointsOf(p, r.ports, r.variants)
	return r.replace(p.Name, next)
}

// remove drops a pod.
func (r *podSet) remove(name string) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = r.replace(name, member{})
	delete(r.pods, name)
	return changed
}

// retarget sets the ports that pods serve.
func (r *podSet) retarget(ports []uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Equal(ports, r.ports) {
		return
	}
	r.ports = ports
	r.renew()
}

// assign sets the variants that pods are of.
func (r *podSet) assign(all variantsByTarget) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if maps.Equal(all, r.variants) {
		return
	}
	r.variants = all
	r.renew()
}

// has reports whether a pod belongs to an object.
func (r *podSet) has(w workload) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.pods {
		if slices.Contains(workloadsOf(m.pod), w) {
			return true
		}
	}
	return false
}

// renew makes the endpoints of all pods again. The caller holds mu.
func (r *podSet) renew() {
	for name, m := range r.pods {
		m.specs, m.problem = endpointsOf(m.pod, r.ports, r.variants)
		r.replace(name, m)
	}
}

// replace replaces the member with a name. The caller holds mu.
func (r *podSet) replace(name string, next member) (changed bool) {
	old := r.pods[name]
	r.pods[name] = next
	if old.problem == next.problem && sameSpecs(old.specs, next.specs) {
		return false
	}
	r.endpoints += len(next.specs) - len(old.specs)
	if old.problem != "" {
		r.problems--
	}
	if next.problem != "" {
		r.problems++
	}
	r.version++
	return true
}

// state returns a number that changes with every change of endpoints or problems.
func (r *podSet) state() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.version
}

// collect returns the endpoints of all pods, in no order, and their version.
func (r *podSet) collect() (specs []epp.Spec, version uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	specs = make([]epp.Spec, 0, r.endpoints)
	for _, m := range r.pods {
		specs = append(specs, m.specs...)
	}
	return specs, r.version
}

// problemTexts returns the problems of pods, ordered by text.
func (r *podSet) problemTexts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.problems == 0 {
		return nil
	}
	var all []string
	for _, m := range r.pods {
		if m.problem != "" {
			all = append(all, m.problem)
		}
	}
	slices.Sort(all)
	return all
}

// count returns how many pods serve, and how many there are.
func (r *podSet) count() (serving, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.pods {
		if len(m.specs) > 0 {
			serving++
		}
	}
	return serving, len(r.pods)
}
