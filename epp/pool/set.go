package pool

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Spec is an endpoint as a Discovery found it.
type Spec struct {
	Namespace, Name string // together unique; Namespace "" means default
	Addr            netip.AddrPort
	Metrics         string // host:port of the metrics page; "" = Addr
	Labels          map[string]string
}

// id is what a spec is known by.
type id struct{ namespace, name string }

func (s *Spec) id() id { return id{s.Namespace, s.Name} }

func (s *Spec) same(o *Spec) bool {
	return s.Addr == o.Addr && s.Metrics == o.Metrics && maps.Equal(s.Labels, o.Labels)
}

// member is an endpoint of the pool with what is known of it.
type member struct {
	*epp.Endpoint
	spec Spec
	load atomic.Pointer[epp.Load] // never nil
	stop context.CancelFunc       // ends its scraper
}

// busy reports whether the endpoint has anything to do, as far as we know.
func (m *member) busy() bool {
	load := m.load.Load()
	return m.InFlight().Requests > 0 || load.Waiting+load.Running > 0
}

// departed is a member that has left.
type departed struct {
	*member
	since   time.Time
	resting bool // its slot is not free yet
}

// lingerMax bounds how long an endpoint that has left can be found because requests run on it.
const lingerMax = time.Hour

// set is which endpoints there are and were. It is not safe for concurrent use.
type set struct {
	members []*member // ordered by namespace and name
	gone    []departed
	slots   []bool // by slot: in use
}

// change is what an apply did.
type change struct{ added, removed []*member }

func (c change) any() bool { return len(c.added)+len(c.removed) > 0 }

// apply makes specs the set. Those that are as they were keep their member, also if they were gone for less than the
// quarantine. problems says what of specs was left out, or will not serve.
func (s *set) apply(specs []Spec, now time.Time) (c change, problems []string) {
	specs, problems = admit(specs)
	before := make(map[id]*member, len(s.members))
	for _, m := range s.members {
		before[m.spec.id()] = m
	}
	next := make([]*member, 0, len(specs))
	for i := range specs {
		m := before[specs[i].id()]
		if m != nil && m.spec.same(&specs[i]) {
			delete(before, specs[i].id())
		} else {
			m = s.join(&specs[i], m)
			c.added = append(c.added, m)
		}
		next = append(next, m)
	}
	for _, m := range s.members {
		if before[m.spec.id()] == m {
			c.removed = append(c.removed, m)
			s.gone = append(s.gone, departed{m, now, true})
		}
	}
	s.members = next
	return c, problems
}

// join makes the member for a spec, or takes back the one it was. before is the one that it replaces, or nil.
func (s *set) join(spec *Spec, before *member) *member {
	for i, d := range s.gone {
		if d.resting && d.spec.id() == spec.id() && d.spec.same(spec) {
			s.gone = slices.Delete(s.gone, i, i+1)
			return d.member
		}
	}
	m := &member{Endpoint: epp.NewEndpoint(spec.Namespace, spec.Name, spec.Addr, spec.Metrics, spec.Labels), spec: *spec}
	m.Slot = s.takeSlot()
	m.load.Store(&epp.Load{})
	if before != nil && before.Addr == m.Addr && before.Metrics == m.Metrics {
		m.load.Store(before.load.Load()) // the same engine under other labels
	}
	return m
}

// takeSlot gives the smallest free slot.
func (s *set) takeSlot() int {
	slot := slices.Index(s.slots, false)
	if slot < 0 {
		slot, s.slots = len(s.slots), append(s.slots, false)
	}
	s.slots[slot] = true
	return slot
}

// sweep frees the slots of those that have been gone for the quarantine, after forget was called with them, and drops those
// that have nothing in flight any more. It reports whether it dropped any.
func (s *set) sweep(now time.Time, quarantine time.Duration, forget func(*epp.Endpoint)) bool {
	before := len(s.gone)
	s.gone = slices.DeleteFunc(s.gone, func(d departed) bool {
		return !d.resting && (d.InFlight().Requests == 0 || now.Sub(d.since) >= lingerMax)
	})
	for i := range s.gone {
		if d := &s.gone[i]; d.resting && now.Sub(d.since) >= quarantine {
			forget(d.Endpoint)
			d.resting, s.slots[d.Slot] = false, false
		}
	}
	return len(s.gone) < before
}

// index is the endpoints by address. One that has left can be found unless another has its address.
func (s *set) index() map[netip.AddrPort]*epp.Endpoint {
	byAddr := make(map[netip.AddrPort]*epp.Endpoint, len(s.gone)+len(s.members))
	for _, d := range s.gone {
		byAddr[d.Addr] = d.Endpoint
	}
	for _, m := range s.members {
		byAddr[m.Addr] = m.Endpoint
	}
	return byAddr
}

// admit orders specs and leaves out those that cannot be: without a name or an address, or with one that an earlier spec
// has. Earlier is by namespace and name, so the outcome does not depend on the order in which they were found.
func admit(specs []Spec) (admitted []Spec, problems []string) {
	sorted := slices.Clone(specs)
	for i := range sorted {
		sorted[i].Namespace = cmp.Or(sorted[i].Namespace, defaultNamespace)
		sorted[i].Addr = netip.AddrPortFrom(sorted[i].Addr.Addr().Unmap(), sorted[i].Addr.Port())
	}
	slices.SortStableFunc(sorted, func(a, b Spec) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	ids, addrs := make(map[id]bool, len(sorted)), make(map[netip.AddrPort]string, len(sorted))
	for _, spec := range sorted {
		name := spec.Namespace + "/" + spec.Name
		role := spec.Labels[pd.RoleLabel]
		_, known := pd.ParseRole(role)
		switch {
		case spec.Name == "":
			problems = append(problems, fmt.Sprintf("the endpoint at %v has no name", spec.Addr))
			continue
		case !spec.Addr.IsValid() || spec.Addr.Port() == 0:
			problems = append(problems, fmt.Sprintf("%s has no address", name))
			continue
		case ids[spec.id()]:
			problems = append(problems, fmt.Sprintf("%s is there twice; the one at %v is left out", name, spec.Addr))
			continue
		case addrs[spec.Addr] != "":
			problems = append(problems, fmt.Sprintf("%s has the address %v of %s and is left out", name, spec.Addr, addrs[spec.Addr]))
			continue
		case !known:
			problems = append(problems, fmt.Sprintf("%s serves nothing: its role is %q, want one of %s", name, role, pd.RoleValues()))
		}
		ids[spec.id()], addrs[spec.Addr] = true, name
		admitted = append(admitted, spec)
	}
	return admitted, problems
}
