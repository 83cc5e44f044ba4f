package kube

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/epp"
)

// roster is the pods that a selector selects, and the endpoints that they are. It may be changed and read by any goroutine.
type roster struct {
	mu        sync.Mutex
	ports     []uint16
	pods      map[string]member // by name: they are of one namespace
	endpoints int               // of all members
	problems  int               // members with one
	version   uint64            // grows with every change of endpoints or problems
}

// member is a pod.
type member struct {
	pod     *corev1.Pod
	specs   []epp.Spec // none: it cannot serve
	problem string     // "" = none
}

func newRoster(ports []uint16) *roster { return &roster{ports: ports, pods: make(map[string]member)} }

// set takes a pod in, or takes it as it is now, and tells whether that changes endpoints or problems.
func (r *roster) set(p *corev1.Pod) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := member{pod: p}
	next.specs, next.problem = endpointsOf(p, r.ports)
	return r.replace(p.Name, next)
}

// remove drops a pod.
func (r *roster) remove(name string) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = r.replace(name, member{})
	delete(r.pods, name)
	return changed
}

// retarget says which ports pods serve.
func (r *roster) retarget(ports []uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Equal(ports, r.ports) {
		return
	}
	r.ports = ports
	for name, m := range r.pods {
		m.specs, m.problem = endpointsOf(m.pod, ports)
		r.replace(name, m)
	}
}

// replace puts next in the place of the member that has the name. The caller holds mu.
func (r *roster) replace(name string, next member) (changed bool) {
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

// state gives a number that is another whenever endpoints or problems are.
func (r *roster) state() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.version
}

// collect gives the endpoints of all pods, in no order, with the version they are of.
func (r *roster) collect() (specs []epp.Spec, version uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	specs = make([]epp.Spec, 0, r.endpoints)
	for _, m := range r.pods {
		specs = append(specs, m.specs...)
	}
	return specs, r.version
}

// trouble gives the problems of pods, in order of their text.
func (r *roster) trouble() []string {
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

// count gives how many pods serve, and how many there are.
func (r *roster) count() (serving, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.pods {
		if len(m.specs) > 0 {
			serving++
		}
	}
	return serving, len(r.pods)
}
