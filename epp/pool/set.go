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

// id identifies a spec.
type id struct{ namespace, name string }

func idOf(s *epp.Spec) id { return id{s.Namespace, s.Name} }

func same(s, o *epp.Spec) bool {
	return s.Addr == o.Addr && s.Metrics == o.Metrics && s.Pod == o.Pod && s.Node == o.Node && maps.Equal(s.Labels, o.Labels)
}

// member is an endpoint of the pool with its load and its scraper.
type member struct {
	*epp.Endpoint
	spec    epp.Spec
	load    atomic.Pointer[epp.Load]    // never nil
	further atomic.Pointer[epp.Further] // nil: nothing is known of other pages
	stop    context.CancelFunc          // ends its scraper

	turned  chan struct{} // of all versions; holds one: the endpoint has become busy
	doubted chan struct{} // of all versions; holds one: the page is to be read at once
}

// busy reports whether the endpoint has requests, as this picker or its page says.
func (m *member) busy() bool {
	if m.InFlight().Requests > 0 {
		return true
	}
	load := m.load.Load()
	waiting, _ := load.Signals.Value(epp.Waiting)
	running, _ := load.Signals.Value(epp.Running)
	return waiting+running > 0
}

// departed is a member that has left.
type departed struct {
	*member
	since   time.Time
	resting bool // its slot is not free yet
}

// lingerMax bounds how long an endpoint that has left can be found while requests run on it.
const lingerMax = time.Hour

// set holds the current and the departed endpoints. It is not safe for concurrent use.
type set struct {
	members []*member // ordered by namespace and name
	gone    []departed
	slots   []bool         // by slot: in use
	fell    *epp.Publisher // that the load in flight of endpoints fell; may be nil
}

// change is the result of an apply: members that joined, that left, and that were replaced by a new version of their
// endpoint; the new versions are among the added ones.
type change struct{ added, removed, renewed []*member }

func (c change) any() bool { return len(c.added)+len(c.removed) > 0 }

// apply makes specs the set. A member whose spec is unchanged stays, and comes back if it left less than the quarantine ago.
// A member whose name and address stay, while the rest changes, is replaced by a new version. problems lists the specs that
// were left out, or that will not serve.
func (s *set) apply(specs []epp.Spec, now time.Time) (c change, problems []string) {
	specs, problems = admit(specs)
	before := make(map[id]*member, len(s.members))
	for _, m := range s.members {
		before[idOf(&m.spec)] = m
	}
	next := make([]*member, 0, len(specs))
	for i := range specs {
		spec := &specs[i]
		m := before[idOf(spec)]
		if m == nil || m.spec.Addr != spec.Addr { // an endpoint that moved is another endpoint
			m = s.join(spec)
			c.added = append(c.added, m)
			next = append(next, m)
			continue
		}
		delete(before, idOf(spec))
		if !same(&m.spec, spec) {
			c.renewed = append(c.renewed, m)
			m = m.with(spec)
			c.added = append(c.added, m)
		}
		next = append(next, m)
	}
	for _, m := range s.members {
		if before[idOf(&m.spec)] == m {
			c.removed = append(c.removed, m)
			s.gone = append(s.gone, departed{m, now, true})
		}
	}
	s.members = next
	return c, problems
}

// join makes the member for a spec, or brings a departed one back.
func (s *set) join(spec *epp.Spec) *member {
	for i, d := range s.gone {
		if idOf(&d.spec) != idOf(spec) || d.spec.Addr != spec.Addr {
			continue
		}
		s.gone = slices.Delete(s.gone, i, i+1)
		if d.resting && same(&d.spec, spec) {
			return d.member
		}
		m := d.with(spec)
		if !d.resting {
			m.Slot = s.takeSlot()
		}
		return m
	}
	m := &member{Endpoint: epp.NewEndpoint(spec.Namespace, spec.Name, spec.Addr, spec.Metrics, spec.Labels), spec: *spec, turned: make(chan struct{}, 1), doubted: make(chan struct{}, 1)}
	m.describe()
	m.Watch(s.fell, m.turned)
	m.Slot = s.takeSlot()
	m.load.Store(&epp.Load{})
	return m
}

// with makes a new version of the member, for a spec with the same name and address. It keeps the load, unless the metrics
// page is now at another address.
func (m *member) with(spec *epp.Spec) *member {
	next := &member{Endpoint: m.Endpoint.With(spec.Metrics, spec.Labels), spec: *spec, turned: m.turned, doubted: m.doubted}
	next.describe()
	next.load.Store(m.load.Load())
	next.further.Store(m.further.Load())
	if next.Metrics != m.Metrics {
		next.load.Store(&epp.Load{})
	}
	return next
}

// describe sets what the endpoint's spec says beside what makes a version of it.
func (m *member) describe() {
	m.Pod, m.Node = cmp.Or(m.spec.Pod, m.spec.Name), ""
	if m.spec.Node.IsValid() {
		m.Node = netip.AddrPortFrom(m.spec.Node, m.spec.Addr.Port()).String()
	}
}

// takeSlot returns the smallest free slot.
func (s *set) takeSlot() int {
	slot := slices.Index(s.slots, false)
	if slot < 0 {
		slot, s.slots = len(s.slots), append(s.slots, false)
	}
	s.slots[slot] = true
	return slot
}

// sweep calls forget for endpoints that left before the quarantine and frees their slots, and drops those that have nothing
// in flight any more. It reports whether it dropped any.
func (s *set) sweep(now time.Time, quarantine time.Duration, forget func(*epp.Endpoint)) bool {
	before := len(s.gone)
	s.gone = slices.DeleteFunc(s.gone, func(d departed) bool {
		return !d.resting && (d.Own().Requests == 0 || now.Sub(d.since) >= lingerMax)
	})
	for i := range s.gone {
		if d := &s.gone[i]; d.resting && now.Sub(d.since) >= quarantine {
			forget(d.Endpoint)
			d.resting, s.slots[d.Slot] = false, false
		}
	}
	return len(s.gone) < before
}

// index returns the endpoints by address. A departed endpoint is in it unless another endpoint has its address.
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

// admit sorts specs by namespace and name, and leaves out specs without a name or address and those that repeat one of an
// earlier spec. So the result does not depend on the order in which they were discovered.
func admit(specs []epp.Spec) (admitted []epp.Spec, problems []string) {
	sorted := slices.Clone(specs)
	for i := range sorted {
		sorted[i].Namespace = cmp.Or(sorted[i].Namespace, defaultNamespace)
		sorted[i].Addr = netip.AddrPortFrom(sorted[i].Addr.Addr().Unmap(), sorted[i].Addr.Port())
	}
	slices.SortStableFunc(sorted, func(a, b epp.Spec) int {
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
		case ids[idOf(&spec)]:
			problems = append(problems, fmt.Sprintf("%s is there twice; the one at %v is left out", name, spec.Addr))
			continue
		case addrs[spec.Addr] != "":
			problems = append(problems, fmt.Sprintf("%s has the address %v of %s and is left out", name, spec.Addr, addrs[spec.Addr]))
			continue
		case !known:
			problems = append(problems, fmt.Sprintf("%s serves nothing: its role is %q, want one of %s", name, role, pd.RoleValues()))
		}
		ids[idOf(&spec)], addrs[spec.Addr] = true, name
		admitted = append(admitted, spec)
	}
	return admitted, problems
}
