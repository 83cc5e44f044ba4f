package scale

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
)

// Variant is one of several Deployments of the replicas of a role, on other GPUs or with another quantization.
type Variant struct {
	Role
	// TTFT and TPOT are what the variant is sized to give, and for whom: for the requests that want no less, unless a cheaper variant is sized for them.
	// Prefill replicas have no TPOT, and with a TTFT of 0 they are sized for that of the decode variants.
	TTFT, TPOT time.Duration
	// Any says that the variant is all replicas of the role, whatever their label says. It is then the only one of the role.
	Any bool
}

// VariantsConfig is what the sizes of variants are computed for.
type VariantsConfig struct {
	Objective                 // of requests that do not say what they want; Share is that of every variant
	Label           string    // of pods, which names their variant
	Decode, Prefill []Variant // the cheapest first; no prefill variants: decode replicas compute all prompts
	Window          time.Duration
	Pattern         Pattern // as of Config, for each class of requests
}

// VariantsState is what outlives a reload of the configuration: what was learnt of the load, and the sizes. It is safe for concurrent use. The zero value
// knows nothing.
type VariantsState struct {
	mu      sync.Mutex
	at      time.Time // of the latest interval
	demands map[[2]string]*demand
	sized   map[[2]string]*sized // by role and variant
	reused  reuse
	plan    plan     // of the latest interval
	planned []string // the variants that it is for
	other   plan     // a cheaper one, by which other variants serve some classes
	since   time.Time
}

// sized is the size of one variant, and what was learnt of its replicas.
type sized struct {
	steady steady
	starts starts
	needed int
	cache  float64 // tokens of the KV cache of an endpoint; 0: not known
	rates  latency.Rates
	known  bool // rates are those of endpoints that there have been
}

// Variants computes a size for each of several variants of one or both roles: for the requests that the variant is the cheapest for, whichever serves them
// now. So the cheap variant grows when it has too many, although a dearer one helps meanwhile, and the dearer one does not. What the largest size
// of a variant does not suffice for counts for the next dearer one. If all requests of a variant are served by a dearer one at a tenth
// less for the whole window, they count for that one. Both roles are computed together, by one model. It is an epp.PickObserver, epp.Observer,
// epp.EndpointObserver, epp.BacklogFollower and prometheus.Collector, and safe for concurrent use.
type Variants struct {
	*VariantsState
	*watch
	config          VariantsConfig
	model           *latency.Model
	classes         []*demand // by the cheapest decode variant, and of these by the cheapest prefill variant
	decode, prefill []*sized
}

// NewVariants makes one. The state outlives a reload. The caller closes it.
func NewVariants(c VariantsConfig, s *VariantsState, m *latency.Model, clock epp.Clock) *Variants {
	v := &Variants{VariantsState: s, config: c, model: m}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.demands == nil {
		s.demands, s.sized = map[[2]string]*demand{}, map[[2]string]*sized{}
	}
	for i := range c.Decode {
		v.decode = append(v.decode, kept(s.sized, "decode", c.Decode[i].Role.Variant))
		for j := range v.prefills() {
			prefill := ""
			if j < len(c.Prefill) {
				prefill = c.Prefill[j].Role.Variant
			}
			d := kept(s.demands, c.Decode[i].Role.Variant, prefill)
			d.learnPattern(c.Pattern)
			v.classes = append(v.classes, d)
		}
	}
	for j := range c.Prefill {
		v.prefill = append(v.prefill, kept(s.sized, "prefill", c.Prefill[j].Role.Variant))
	}
	v.watch = newWatch(clock, v.compute)
	return v
}

// kept returns what a map has, or else a new one that it has from now on.
func kept[T any](of map[[2]string]*T, a, b string) *T {
	key := [2]string{a, b}
	if of[key] == nil {
		of[key] = new(T)
	}
	return of[key]
}

// prefills returns how many classes there are for one decode variant.
func (v *Variants) prefills() int { return max(1, len(v.config.Prefill)) }

// Wake tells that requests have begun to wait. If the pool is scaled to zero, one replica of the cheapest variant of each role is wanted at once.
func (v *Variants) Wake() {
	now, notify := v.clock.Now(), v.begin()
	decode, prefill := v.members()
	none := func(m members) bool { return len(m.replicas) == 0 }
	all := func(of []members) bool { return !slices.ContainsFunc(of, func(m members) bool { return !none(m) }) }
	v.mu.Lock()
	woken := all(decode) && v.decode[0].steady.wake(now)
	if woken && len(prefill) > 0 && all(prefill) {
		v.prefill[0].steady.wake(now)
	}
	v.wish(now)
	v.mu.Unlock()
	if woken && notify != nil {
		notify()
	}
}

// wish notes which replicas are wished for. The caller holds the mutex of the state.
func (v *Variants) wish(now time.Time) {
	for _, s := range slices.Concat(v.decode, v.prefill) {
		s.starts.wish(now, s.steady.size)
	}
}

// SizedAs returns the role and the variant by which an endpoint is counted, "" if it is not.
func (v *Variants) SizedAs(e *epp.Endpoint) (role, variant string) {
	role, i := v.of(e)
	switch role {
	case "decode":
		return role, v.config.Decode[i].Role.Variant
	case "prefill":
		return role, v.config.Prefill[i].Role.Variant
	}
	return "", ""
}

// of returns the role and the index of the variant of an endpoint, "" if it is not counted.
func (v *Variants) of(e *epp.Endpoint) (role string, index int) {
	role = RoleOf(e)
	variants := v.config.Decode
	if role == "prefill" {
		variants = v.config.Prefill
	}
	index = slices.IndexFunc(variants, func(one Variant) bool { return one.Any || one.Role.Variant == e.Labels[v.config.Label] })
	if role == "" || index < 0 {
		return "", 0
	}
	return role, index
}

// sizedOf returns what is known of the variant of an endpoint, nil if it has none.
func (v *Variants) sizedOf(e *epp.Endpoint) *sized {
	switch role, i := v.of(e); role {
	case "decode":
		return v.decode[i]
	case "prefill":
		return v.prefill[i]
	}
	return nil
}

// EndpointJoined implements epp.EndpointObserver. A version of an endpoint may be of another variant than the one before it.
func (v *Variants) EndpointJoined(e *epp.Endpoint) {
	v.join(e)
	own := v.sizedOf(e)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range slices.Concat(v.decode, v.prefill) {
		if s == own {
			s.starts.join(v.clock.Now(), replicaOf(e))
		} else {
			s.starts.leave(replicaOf(e))
		}
	}
}

// EndpointLeft implements epp.EndpointObserver.
func (v *Variants) EndpointLeft(e *epp.Endpoint) {
	if !v.leave(e) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range slices.Concat(v.decode, v.prefill) {
		s.starts.leave(replicaOf(e))
	}
}

// Picked implements epp.PickObserver. It takes no lock.
func (v *Variants) Picked(r *epp.Round, _ []epp.Candidate, d *epp.Decision) {
	ttft, tpot := cmp.Or(r.Request.WantedTTFT(), v.config.TTFT), cmp.Or(r.Request.WantedTPOT(), v.config.TPOT)
	i := cheapest(v.config.Decode, func(one *Variant) bool { return one.TTFT <= ttft && one.TPOT <= tpot })
	j := cheapest(v.config.Prefill, func(one *Variant) bool { return one.TTFT <= ttft })
	v.class(i, j).picks.add(d)
}

// class returns the class of a decode variant and a prefill variant.
func (v *Variants) class(decode, prefill int) *demand { return v.classes[decode*v.prefills()+prefill] }

// cheapest returns the index of the first variant that gives what is wanted, or that of the last one if none does; 0 if there are none.
func cheapest(of []Variant, gives func(*Variant) bool) int {
	for i := range of {
		if gives(&of[i]) {
			return i
		}
	}
	return max(0, len(of)-1)
}

// Observe implements epp.Observer: answers tell their length to the class of the variants that have generated them, and endpoints the size of their KV caches.
func (v *Variants) Observe(o *epp.Outcome) {
	if o.Decision == nil {
		return
	}
	i, j := -1, 0
	for k := range o.Decision.Picks {
		pick := &o.Decision.Picks[k]
		if len(pick.Endpoints) == 0 {
			continue
		}
		switch role, at := v.of(pick.Endpoints[0]); {
		case k == 0 && role == "decode":
			i = at
		case k > 0 && role == "prefill":
			j = at
		}
	}
	if i < 0 {
		return
	}
	tokens, ok := cacheOf(o.Decision)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.class(i, j).mix.answered(o)
	v.reused.add(o.Decision)
	if ok {
		v.decode[i].cache = tokens
	}
}

// members returns the endpoints of each variant.
func (v *Variants) members() (decode, prefill []members) {
	decode, prefill = make([]members, len(v.config.Decode)), make([]members, len(v.config.Prefill))
	v.each(func(e *epp.Endpoint) {
		switch role, i := v.of(e); role {
		case "decode":
			decode[i].add(e)
		case "prefill":
			prefill[i].add(e)
		}
	})
	return decode, prefill
}

// kinds returns the variants of a role, as plans go by them. The caller holds the mutex of the state.
func (v *Variants) kinds(variants []Variant, states []*sized, pods []members, rates []latency.Rates) []kind {
	kinds := make([]kind, len(variants))
	for i := range variants {
		one, s, ranks := &variants[i], states[i], pods[i].ranks()
		if len(pods[i].endpoints) > 0 || !s.known {
			// Of a variant whose replicas have all gone it is remembered how fast they were.
			s.rates, s.known = rates[i], len(pods[i].endpoints) > 0
		}
		kinds[i] = kind{ttft: one.TTFT, tpot: one.TPOT, rates: s.rates, kvTokens: s.cache, cost: one.Cost / float64(ranks), least: one.Min * ranks, most: one.Max * ranks}
	}
	return kinds
}

// ratesOf returns the times of the endpoints of each variant.
func (v *Variants) ratesOf(pods []members) []latency.Rates {
	all := make([]latency.Rates, len(pods))
	for i := range pods {
		all[i] = v.model.Rates(pods[i].endpoints)
	}
	return all
}

// compute closes an interval, and computes the sizes. Plans take tens of milliseconds, in which no mutex is held.
func (v *Variants) compute(now time.Time) {
	decode, prefill := v.members()
	n, before, margins, ok := v.end(now, decode, prefill)
	if !ok {
		return // a reload has two of them for a moment
	}
	same, other, cheaper := n.best(before)
	v.mu.Lock()
	chosen := v.choose(now, same, other, cheaper)
	v.mu.Unlock()
	for i := range n.classes {
		n.classes[i].Load = n.classes[i].Load.more(margins[i])
	}
	more := n.split(chosen)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.plan = chosen
	v.follow(now, v.decode, v.config.Decode, decode, v.plan.decode, more.decode)
	if len(v.prefill) > 0 && slices.ContainsFunc(v.decode, func(s *sized) bool { return s.steady.size > 0 }) {
		// Only the whole pool goes to zero: while there are no prefill replicas, no pick shows that one is needed.
		atLeastOne(v.config.Prefill, v.plan.prefill)
		atLeastOne(v.config.Prefill, more.prefill)
	}
	v.follow(now, v.prefill, v.config.Prefill, prefill, v.plan.prefill, more.prefill)
	v.wish(now)
}

// end closes an interval. It returns what plans for the next one go by, the plan of this one, and by which share of each class there may be more; ok
// is false if the interval has only begun.
func (v *Variants) end(now time.Time, decode, prefill []members) (n *planner, before plan, margins []float64, ok bool) {
	decodeRates, prefillRates := v.ratesOf(decode), v.ratesOf(prefill)
	waits := v.waits()
	v.mu.Lock()
	defer v.mu.Unlock()
	took := Interval
	if !v.at.IsZero() {
		took = now.Sub(v.at)
	}
	if took < Interval/2 {
		return nil, plan{}, nil, false
	}
	v.at = now
	v.reused.fade(took)
	n = &planner{share: v.config.Share, decode: v.kinds(v.config.Decode, v.decode, decode, decodeRates),
		prefill: v.kinds(v.config.Prefill, v.prefill, prefill, prefillRates)}
	margins = v.expect(n, now, took, waits, decode, prefill)
	return n, v.before(n), margins, true
}

// atLeastOne has the cheapest variant need one engine, if none is needed and there may be none.
func atLeastOne(variants []Variant, needed []int) {
	for i := range needed {
		if max(needed[i], variants[i].Min) > 0 {
			return
		}
	}
	needed[0] = 1
}

// expect closes an interval of each class, and gives the planner what is expected of them. It returns by which share of each there may be more.
func (v *Variants) expect(n *planner, now time.Time, took time.Duration, waits epp.InFlight, decode, prefill []members) (margins []float64) {
	var all, own, generate, compute int
	for i := range decode {
		all, own, generate = all+decode[i].all, own+decode[i].own, generate+decode[i].all
	}
	for j := range prefill {
		all, own, compute = all+prefill[j].all, own+prefill[j].own, compute+prefill[j].all
	}
	// A split request is in flight at both roles until its prompt is computed.
	answering := float64(max(0, generate-compute)) * float64(decode[0].all) / float64(max(1, generate))
	var lengths [2]float64 // of answers: their number, and all of their tokens
	for _, d := range v.classes {
		lengths[0], lengths[1] = lengths[0]+d.mix.answers, lengths[1]+d.mix.answerTokens
	}
	waiting := make([]epp.InFlight, len(v.classes))
	waiting[0] = waits // what they want is not known, so the cheapest variants have to serve them
	for at, d := range v.classes {
		d.end(took, waiting[at].Requests, inFlight{all, own, answering})
		one := class{decode: at / v.prefills(), prefill: at % v.prefills(), Load: d.present(waiting[at])}
		if d.mix.answers == 0 && lengths[0] > 0 {
			one.Answer = lengths[1] / lengths[0] // other variants have served all of them
		}
		n.classes = append(n.classes, one)
	}
	generated := v.generated(n, len(decode[0].endpoints))
	for at, d := range v.classes {
		one := &n.classes[at]
		ready := v.decode[one.decode].starts.median(v.config.Decode[one.decode].Ready)
		if len(v.prefill) > 0 {
			ready = max(ready, v.prefill[one.prefill].starts.median(v.config.Prefill[one.prefill].Ready))
		}
		margins = append(margins, d.expect(&one.Load, waiting[at], now, took, ready))
	}
	n.classes[0].Tokens = generated
	return margins
}

// generated returns how many tokens of answers the replicas of the cheapest variant generate in a second. Dearer ones help, so that the answers that
// run there do not tell what is needed.
func (v *Variants) generated(n *planner, endpoints int) float64 {
	var parts []part
	for i := range n.classes {
		if n.classes[i].decode == 0 {
			parts = append(parts, part{i, 1})
		}
	}
	of := n.needs(0, parts)
	return v.classes[0].mix.generated(of.Load, of.Engines, endpoints)
}

// before returns the plan of the interval before, or the first one if variants have changed since.
func (v *Variants) before(n *planner) plan {
	var names []string
	for i := range v.config.Decode {
		names = append(names, "decode/"+v.config.Decode[i].Role.Variant)
	}
	for i := range v.config.Prefill {
		names = append(names, "prefill/"+v.config.Prefill[i].Role.Variant)
	}
	if !slices.Equal(names, v.planned) {
		v.plan, v.planned, v.since = n.initial(), names, time.Time{}
	}
	return v.plan
}

// choose returns the plan of this interval. Which variants serve which classes changes after another plan has been cheaper for the whole window.
func (v *Variants) choose(now time.Time, same, other plan, cheaper bool) plan {
	switch {
	case !cheaper:
		v.since = time.Time{}
	case v.since.IsZero() || !slices.Equal(other.decodeBy, v.other.decodeBy) || !slices.Equal(other.prefillBy, v.other.prefillBy):
		v.other, v.since = other, now
	case now.Sub(v.since) >= v.config.Window:
		v.since = time.Time{}
		return other
	}
	return same
}

// follow has the sizes of the variants of a role follow what is needed, in engines. The caller holds the mutex of the state.
func (v *Variants) follow(now time.Time, states []*sized, variants []Variant, pods []members, needed, more []int) {
	for i, s := range states {
		ranks, role := pods[i].ranks(), &variants[i].Role
		s.needed = (needed[i] + ranks - 1) / ranks
		s.steady.follow(now, s.needed, (more[i]+ranks-1)/ranks, len(pods[i].replicas), Limits{role.Min, role.Max, v.config.Window})
	}
}

// Sizes returns the size of each variant: of decode, and then of prefill, the cheapest first.
func (v *Variants) Sizes() (all []Size) {
	decode, prefill := v.members()
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, s := range v.decode {
		all = append(all, sizeOf("decode", &v.config.Decode[i].Role, &s.steady, &decode[i], s.needed, &s.starts))
	}
	for j, s := range v.prefill {
		all = append(all, sizeOf("prefill", &v.config.Prefill[j].Role, &s.steady, &prefill[j], s.needed, &s.starts))
	}
	return all
}

// Reused returns how many tokens requests have lately found in the cache of an endpoint's replica.
func (v *Variants) Reused(e *epp.Endpoint) float64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.reused[replicaOf(e)]
}

// Describe implements prometheus.Collector.
func (v *Variants) Describe(ch chan<- *prometheus.Desc) { describe(ch) }

// Collect implements prometheus.Collector.
func (v *Variants) Collect(ch chan<- prometheus.Metric) {
	collect(v.Sizes(), ch)
	v.mu.Lock()
	defer v.mu.Unlock()
	for at, d := range v.classes {
		prefill := ""
		if len(v.prefill) > 0 {
			prefill = v.config.Prefill[at%v.prefills()].Role.Variant
		}
		d.collectPattern(ch, v.config.Decode[at/v.prefills()].Role.Variant, prefill)
	}
}
