package scale

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/pd"
)

// TurnInterval is how often roles are considered. At most one replica turns each time.
const TurnInterval = time.Minute

const (
	// patience is for how many intervals in a row another split must bear more before a replica turns.
	patience = 3
	// turnHalfLife is the age at which a request has half its weight. A turn is not taken back within ten minutes, so a burst must not cause one.
	turnHalfLife = 5 * time.Minute
	// Nothing is decided by fewer requests and answers than these, by their weight: the sizes of prompts vary by orders of magnitude.
	leastRequests = 300
	leastAnswers  = 100
)

// TurnConfig is what roles are chosen for.
type TurnConfig struct {
	Objective
	Gain float64 // by which share another split must bear more requests, more than 0
}

// Turns is what outlives a reload of the configuration: what was learnt of the load, and the roles. It is safe for concurrent use.
type Turns struct {
	picks picks

	mu        sync.Mutex
	at        time.Time // of the latest interval
	mix       mix
	cache     float64            // tokens of the KV cache of an endpoint; 0: not known
	roles     map[string]pd.Role // by replica: prefill or decode
	direction pd.Role            // what another replica should be; 0: the split is good
	intervals int                // for which that has been so
	last      pd.Role            // which one the latest turn gave
	turned    time.Time          // the latest turn; zero: none
	turns     map[pd.Role]int    // since the start, by the role after them
}

// Turner gives each replica that can prefill and decode one of these roles at a time: those by which the pool bears the most requests, by the
// queueing model of Need. It is an epp.Filter for profiles of both stages, which drops the replicas that have the other role now. Replicas whose label
// names one role keep it. Until enough requests have been seen, replicas of both roles do both.
//
// A role is only where requests are sent: an answer that runs on a replica when it turns to prefill ends there.
//
// It is an epp.PickObserver, epp.Observer, epp.EndpointObserver and prometheus.Collector, and safe for concurrent use.
type Turner struct {
	*Turns
	config TurnConfig
	model  *latency.Model
	clock  epp.Clock
	log    *slog.Logger

	current atomic.Pointer[[]given] // by slot; what Filter reads

	// Guarded by Turns.mu.
	endpoints map[*epp.Endpoint]bool
	timer     epp.Timer // nil: no endpoint has joined yet
	closed    bool
}

// given is the role that an endpoint has now. The zero value is of none.
type given struct {
	of   *epp.Endpoint
	role pd.Role
}

// NewTurner makes a turner. The caller closes it.
func NewTurner(c TurnConfig, s *Turns, m *latency.Model, clock epp.Clock, log *slog.Logger) *Turner {
	t := &Turner{Turns: s, config: c, model: m, clock: clock, log: log, endpoints: map[*epp.Endpoint]bool{}}
	t.current.Store(new([]given))
	return t
}

// Close ends the turning. The roles stay for a Turner that is made with the same Turns.
func (t *Turner) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
	}
	return nil
}

// Filter implements epp.Filter. If every candidate has the other role, all stay: a replica of the wrong role serves a request better than none.
func (t *Turner) Filter(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	var other pd.Role
	switch r.Stage {
	case epp.StagePrefill:
		other = pd.RoleDecode
	case epp.StageDecode:
		other = pd.RolePrefill
	default:
		return c
	}
	current := *t.current.Load()
	kept := 0
	for i := range c {
		if roleIn(current, c[i].Endpoint) != other {
			kept++
		}
	}
	if kept == 0 || kept == len(c) {
		return c
	}
	n := 0
	for i := range c {
		if roleIn(current, c[i].Endpoint) == other {
			continue
		}
		if n != i {
			c[n] = c[i]
		}
		n++
	}
	return c[:n]
}

// roleIn returns the role that an endpoint has by a table, 0 if it has none or more than one.
func roleIn(current []given, e *epp.Endpoint) pd.Role {
	if e.Slot < len(current) && current[e.Slot].role != 0 && current[e.Slot].of.Is(e) {
		return current[e.Slot].role
	}
	return 0
}

// Picked implements epp.PickObserver. It takes no lock.
func (t *Turner) Picked(_ *epp.Round, _ []epp.Candidate, d *epp.Decision) { t.picks.add(d) }

// Observe implements epp.Observer: answers tell their length, and endpoints the size of their KV caches.
func (t *Turner) Observe(o *epp.Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mix.answered(o)
	if tokens, ok := cacheOf(o.Decision); ok {
		t.cache = tokens
	}
}

// EndpointJoined implements epp.EndpointObserver.
func (t *Turner) EndpointJoined(e *epp.Endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(e)
	t.endpoints[e] = true
	if t.timer == nil && !t.closed {
		t.timer = t.clock.AfterFunc(TurnInterval, t.tick)
	}
	t.publish()
}

// EndpointLeft implements epp.EndpointObserver. If it was the last one of a role, another one turns at once.
func (t *Turner) EndpointLeft(e *epp.Endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(e)
	t.complete(t.members())
	t.publish()
}

// forget removes all versions of an endpoint.
func (t *Turner) forget(e *epp.Endpoint) {
	maps.DeleteFunc(t.endpoints, func(other *epp.Endpoint, _ bool) bool { return other.Is(e) })
}

// publish has Filter go by the roles.
func (t *Turner) publish() {
	var current []given
	for e := range t.endpoints {
		role := t.roles[replicaOf(e)]
		if role == 0 || !e.Role.Has(bothRoles) {
			continue
		}
		if e.Slot >= len(current) {
			current = append(current, make([]given, e.Slot+1-len(current))...)
		}
		current[e.Slot] = given{e, role}
	}
	t.current.Store(&current)
}

const bothRoles = pd.RolePrefill | pd.RoleDecode

// pool is the replicas that can turn, and what the others have.
type pool struct {
	turnable        []replica // ordered by name
	prefill, decode []*epp.Endpoint
}

// replica is one that can turn. It has several endpoints if it has several data-parallel ranks.
type replica struct {
	name      string
	endpoints []*epp.Endpoint
}

// inFlight returns what was sent to the replica and has not ended.
func (r *replica) inFlight() (sum epp.InFlight) {
	for _, e := range r.endpoints {
		f := e.InFlight()
		sum.Requests, sum.Tokens = sum.Requests+f.Requests, sum.Tokens+f.Tokens
	}
	return sum
}

// members returns the pool, in an order that depends on the names alone.
func (t *Turner) members() *pool {
	all := slices.SortedFunc(maps.Keys(t.endpoints), func(a, b *epp.Endpoint) int {
		return cmp.Or(cmp.Compare(replicaOf(a), replicaOf(b)), cmp.Compare(a.String(), b.String()))
	})
	p := new(pool)
	for _, e := range all {
		switch {
		case e.Role.Has(bothRoles):
			if last := len(p.turnable) - 1; last >= 0 && p.turnable[last].name == replicaOf(e) {
				p.turnable[last].endpoints = append(p.turnable[last].endpoints, e)
				continue
			}
			p.turnable = append(p.turnable, replica{replicaOf(e), []*epp.Endpoint{e}})
		case e.Role.Has(pd.RolePrefill):
			p.prefill = append(p.prefill, e)
		case e.Role.Has(pd.RoleDecode):
			p.decode = append(p.decode, e)
		}
	}
	return p
}

// limits returns how few and how many of the replicas that can turn may prefill, so that there is one replica of each role. ok is false if that is not
// possible: then one replica does both.
func (p *pool) limits() (least, most int, ok bool) {
	least, most = 0, len(p.turnable)
	if len(p.prefill) == 0 {
		least = 1
	}
	if len(p.decode) == 0 {
		most--
	}
	return least, most, least <= most && len(p.turnable) > 0
}

// split returns how many endpoints each role has if so many of the replicas that can turn prefill.
func (p *pool) split(prefill int) (prefills, decodes int) {
	ranks := 0
	for i := range p.turnable {
		ranks += len(p.turnable[i].endpoints)
	}
	ranks = max(1, ranks/max(1, len(p.turnable)))
	return len(p.prefill) + ranks*prefill, len(p.decode) + ranks*(len(p.turnable)-prefill)
}

// have returns how many replicas that can turn have a role; 0: none yet.
func (t *Turns) have(p *pool, role pd.Role) (n int) {
	for i := range p.turnable {
		if t.roles[p.turnable[i].name] == role {
			n++
		}
	}
	return n
}

// complete forgets the roles of replicas that are gone, gives each role a replica, if one has none, and takes the roles away if there are too few replicas.
func (t *Turner) complete(p *pool) {
	maps.DeleteFunc(t.roles, func(name string, _ pd.Role) bool {
		return !slices.ContainsFunc(p.turnable, func(r replica) bool { return r.name == name })
	})
	least, most, ok := p.limits()
	switch {
	case len(t.roles) == 0:
		return
	case !ok:
		t.roles = nil
		return
	}
	for t.have(p, pd.RolePrefill) < least {
		t.turn(p, pd.RolePrefill, "no other pod prefills")
	}
	for len(p.turnable)-t.have(p, pd.RoleDecode) > most {
		t.turn(p, pd.RoleDecode, "no other pod decodes")
	}
}

// turn gives a role to the replica that has least of the other one to do. There must be one that does not have it.
func (t *Turner) turn(p *pool, to pd.Role, why string, facts ...any) {
	var chosen *replica
	least := 0
	for i := range p.turnable {
		r := &p.turnable[i]
		if t.roles[r.name] == to {
			continue
		}
		left := r.inFlight().Requests // answers that end on it while it prefills
		if to == pd.RoleDecode {
			left = r.inFlight().Tokens // of prompts that it computes before answers get its time
		}
		if chosen == nil || left < least {
			chosen, least = r, left
		}
	}
	t.give(chosen, to)
	t.last, t.turned = to, t.clock.Now()
	if t.turns == nil {
		t.turns = map[pd.Role]int{}
	}
	t.turns[to]++
	t.tell("a pod changes its role", p, append([]any{"pod", chosen.name, "role", to.String(), "why", why}, facts...)...)
}

// tell logs what has happened, and what there is now, of pods of both roles and of others.
func (t *Turner) tell(what string, p *pool, facts ...any) {
	prefill, decode := p.split(t.have(p, pd.RolePrefill))
	t.log.Info(what, append(facts, "prefill_endpoints", prefill, "decode_endpoints", decode)...)
}

func (t *Turns) give(r *replica, role pd.Role) {
	if t.roles == nil {
		t.roles = map[string]pd.Role{}
	}
	t.roles[r.name] = role
}

// tick considers the roles, and has itself called again.
func (t *Turner) tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.timer = t.clock.AfterFunc(TurnInterval, t.tick)
	now := t.clock.Now()
	took := TurnInterval
	if !t.at.IsZero() {
		took = now.Sub(t.at)
	}
	if took < TurnInterval/2 {
		return // a reload has two turners for a moment
	}
	t.at = now
	t.mix.fade(time.Duration(float64(took) * mixHalfLife.Seconds() / turnHalfLife.Seconds()))
	t.mix.take(&t.picks)
	t.consider(now)
	t.publish()
}

// consider turns one replica if another split of the roles has borne more for long enough.
func (t *Turner) consider(now time.Time) {
	p := t.members()
	t.complete(p)
	least, most, ok := p.limits()
	if !ok || t.mix.requests < leastRequests || t.mix.answers < leastAnswers {
		return
	}
	bears := t.bears(p)
	unset := t.have(p, 0)
	if unset == len(p.turnable) {
		if t.intervals++; t.intervals >= patience {
			t.begin(p, best(bears, least, most, least), bears)
		}
		return
	}
	t.join(p, bears)
	have := t.have(p, pd.RolePrefill)
	wanted := best(bears, least, most, have)
	var direction pd.Role
	switch here := bears(have); {
	case wanted == have || bears(wanted) < (1+t.config.Gain)*here:
	case wanted > have:
		direction = pd.RolePrefill
	default:
		direction = pd.RoleDecode
	}
	if direction != t.direction {
		t.direction, t.intervals = direction, 0
	}
	t.intervals++
	if direction == 0 || t.intervals < patience || t.last != 0 && direction != t.last && now.Sub(t.turned) < reversal {
		return
	}
	t.turn(p, direction, "another split bears more requests", "requests_per_second", bears(have), "at_best", bears(wanted))
}

// bears returns how many requests in a second the pool bears by how many of the replicas that can turn prefill. It remembers what it has computed.
func (t *Turner) bears(p *pool) func(prefill int) float64 {
	load := t.mix.load()
	var both []*epp.Endpoint
	for i := range p.turnable {
		both = append(both, p.turnable[i].endpoints...)
	}
	// The times of all replicas that may have a role, whichever they have now: so a split is not preferred because of which replicas have it.
	engines := Engines{Prefill: t.model.Rates(slices.Concat(p.prefill, both)), Decode: t.model.Rates(slices.Concat(p.decode, both)), KVTokens: t.cache}
	known := map[int]float64{}
	return func(prefill int) float64 {
		if _, ok := known[prefill]; !ok {
			prefills, decodes := p.split(prefill)
			known[prefill] = Bears(&load, t.config.Objective, &engines, prefills, decodes)
		}
		return known[prefill]
	}
}

// best returns the number from least to most that bears most; of equal ones the preferred one, or else the lowest.
func best(bears func(int) float64, least, most, preferred int) int {
	chosen := max(least, min(preferred, most))
	for n := least; n <= most; n++ {
		if bears(n) > bears(chosen) {
			chosen = n
		}
	}
	return chosen
}

// begin gives all replicas their first roles: those with the fewest requests prefill.
func (t *Turner) begin(p *pool, prefill int, bears func(int) float64) {
	ordered := make([]*replica, len(p.turnable))
	for i := range ordered {
		ordered[i] = &p.turnable[i]
	}
	slices.SortStableFunc(ordered, func(a, b *replica) int { return cmp.Compare(a.inFlight().Requests, b.inFlight().Requests) })
	for i, r := range ordered {
		role := pd.RoleDecode
		if i < prefill {
			role = pd.RolePrefill
		}
		t.give(r, role)
	}
	t.intervals = 0
	t.tell("pods of both roles begin with one role each", p, "requests_per_second", bears(prefill))
}

// join gives replicas that came later the role with which the pool bears more.
func (t *Turner) join(p *pool, bears func(int) float64) {
	for i := range p.turnable {
		r := &p.turnable[i]
		if t.roles[r.name] != 0 {
			continue
		}
		role, prefill := pd.RoleDecode, t.have(p, pd.RolePrefill)
		if bears(prefill+1) > bears(prefill) {
			role = pd.RolePrefill
		}
		t.give(r, role)
		t.tell("a new pod of both roles begins with one", p, "pod", r.name, "role", role.String())
	}
}

// Descriptions of the metrics.
var (
	rolePodsDesc    = prometheus.NewDesc("tandem_role_pods", "Pods of both roles, by the one that they have now.", []string{"role"}, nil)
	roleChangesDesc = prometheus.NewDesc("tandem_role_changes_total", "Changes of a pod from one role to the other, by the one after it.", []string{"role"}, nil)
)

// Describe implements prometheus.Collector.
func (t *Turner) Describe(ch chan<- *prometheus.Desc) {
	ch <- rolePodsDesc
	ch <- roleChangesDesc
}

// Collect implements prometheus.Collector.
func (t *Turner) Collect(ch chan<- prometheus.Metric) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.members()
	for role, name := range map[pd.Role]string{0: "both", pd.RolePrefill: "prefill", pd.RoleDecode: "decode"} {
		ch <- prometheus.MustNewConstMetric(rolePodsDesc, prometheus.GaugeValue, float64(t.have(p, role)), name)
		if role != 0 {
			ch <- prometheus.MustNewConstMetric(roleChangesDesc, prometheus.CounterValue, float64(t.turns[role]), name)
		}
	}
}
