package scale

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/pd"
)

// Config is what sizes are computed for.
type Config struct {
	Objective
	Prefill, Decode Role
	Window          time.Duration // how long fewer replicas must have been enough before fewer are wanted
	Pattern         Pattern       // of the time of day; the zero value: sizes do not go by one
}

// Role is the configuration of the replicas of one role.
type Role struct {
	Variant  string        // name of what has them, such as a Deployment
	Min, Max int           // replicas; Max 0: there are none
	Cost     float64       // of a replica, in any unit
	Ready    time.Duration // from the wish for a replica until it serves, until some have shown it
}

// Limits bound a size.
type Limits struct {
	Min, Max int
	Window   time.Duration
}

// Size is how many replicas a role has and should have.
type Size struct {
	Role, Variant    string
	Current, Desired int
	// Soon is what Desired is an Interval later, if the load does not grow until then.
	Soon int
	// Needed is what the present and the expected load need, without limits and however long they last.
	Needed int
	// Start is how long a replica takes from the wish for it until it serves.
	Start time.Duration
}

// Interval is how often sizes are computed. HPA asks as often, KEDA every 30 s.
const Interval = 15 * time.Second

// State is what outlives a reload of the configuration: what was learnt of the load, and the sizes. It is safe for concurrent use.
type State struct {
	demand // picks need no mutex

	mu              sync.Mutex
	at              time.Time // of the latest interval
	cache           float64   // tokens of the KV cache of a decode endpoint; 0: not known
	split           int
	prefill, decode steady
	needed          Needed
	prefillStarts   starts
	decodeStarts    starts
	reused          reuse
}

// Sizer computes sizes each Interval, from the first endpoint on, or from the first request that waits for one. It is an epp.PickObserver,
// epp.Observer, epp.EndpointObserver, epp.BacklogFollower and prometheus.Collector, and safe for concurrent use.
type Sizer struct {
	*State
	*watch
	config Config
	model  *latency.Model
}

// New makes a sizer. The caller closes it.
func New(c Config, s *State, m *latency.Model, clock epp.Clock) *Sizer {
	s.mu.Lock()
	s.learnPattern(c.Pattern)
	s.mu.Unlock()
	z := &Sizer{State: s, config: c, model: m}
	z.watch = newWatch(clock, z.compute)
	return z
}

// Wake tells the sizer that requests have begun to wait. If the pool is scaled to zero, one replica of each role is wanted at once.
func (s *Sizer) Wake() {
	now := s.clock.Now()
	prefill, decode := s.roles()
	notify := s.begin()
	s.mu.Lock()
	woken := len(decode.replicas) == 0 && s.decode.wake(now)
	if woken && s.config.Prefill.Max > 0 && len(prefill.replicas) == 0 {
		s.prefill.wake(now)
	}
	s.wish(now)
	s.mu.Unlock()
	if woken && notify != nil {
		notify()
	}
}

// wish notes which replicas are wished for. The caller holds the mutex of the state.
func (s *Sizer) wish(now time.Time) {
	s.decodeStarts.wish(now, s.decode.size)
	s.prefillStarts.wish(now, s.prefill.size)
}

// EndpointJoined implements epp.EndpointObserver.
func (s *Sizer) EndpointJoined(e *epp.Endpoint) {
	s.join(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.startsOf(e); of != nil {
		of.join(s.clock.Now(), replicaOf(e))
	}
}

// EndpointLeft implements epp.EndpointObserver.
func (s *Sizer) EndpointLeft(e *epp.Endpoint) {
	last := s.leave(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.startsOf(e); of != nil && last {
		of.leave(replicaOf(e))
	}
}

// startsOf returns the starts of the role of an endpoint; nil if it has no role that is sized.
func (s *State) startsOf(e *epp.Endpoint) *starts {
	switch RoleOf(e) {
	case "decode":
		return &s.decodeStarts
	case "prefill":
		return &s.prefillStarts
	}
	return nil
}

// RoleOf returns the role by which an endpoint is counted: decode for those that generate answers, also if they compute prompts too, prefill for those
// that only compute prompts, or "".
func RoleOf(e *epp.Endpoint) string {
	switch {
	case e.Role.Has(pd.RoleDecode):
		return "decode"
	case e.Role.Has(pd.RolePrefill):
		return "prefill"
	}
	return ""
}

// SizedAs returns the role and the variant by which an endpoint is counted, "" if it is not.
func (s *Sizer) SizedAs(e *epp.Endpoint) (role, variant string) {
	switch role = RoleOf(e); role {
	case "decode":
		return role, s.config.Decode.Variant
	case "prefill":
		return role, s.config.Prefill.Variant
	}
	return "", ""
}

// Labels of the pods of a LeaderWorkerSet: its name, and the number of the group.
const (
	setLabel   = "leaderworkerset.sigs.k8s.io/name"
	groupLabel = "leaderworkerset.sigs.k8s.io/group-index"
)

// Grouped reports whether an endpoint's pod belongs to a group of a LeaderWorkerSet: groups come and go as a whole.
func Grouped(e *epp.Endpoint) bool { return e.Labels[setLabel] != "" && e.Labels[groupLabel] != "" }

// replicaOf returns what an autoscaler counts as one: the pod of an endpoint, or its group, whose pods may have an endpoint each.
func replicaOf(e *epp.Endpoint) string {
	if Grouped(e) {
		return e.Namespace + "/" + e.Labels[setLabel] + "/" + e.Labels[groupLabel]
	}
	if e.Pod == "" {
		return e.Namespace + "/" + e.Name
	}
	return e.Namespace + "/" + e.Pod
}

// Picked implements epp.PickObserver. It takes no lock.
func (s *Sizer) Picked(_ *epp.Round, _ []epp.Candidate, d *epp.Decision) { s.picks.add(d) }

// Observe implements epp.Observer: answers tell their length, and decode endpoints the size of their KV caches.
func (s *Sizer) Observe(o *epp.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mix.answered(o)
	s.reused.add(o.Decision)
	if tokens, ok := cacheOf(o.Decision); ok {
		s.cache = tokens
	}
}

// cacheOf returns how many tokens fit into the KV cache of the decode endpoint of a decision, which may be nil. ok is false if its page did not say so.
func cacheOf(d *epp.Decision) (tokens float64, ok bool) {
	if d == nil || d.Picks[0].Seen == nil {
		return 0, false
	}
	c := d.Picks[0].Seen.Load.Cache
	return float64(c.Blocks) * float64(c.BlockTokens), c.Blocks > 0 && c.BlockTokens > 0
}

// members are the endpoints of one role.
type members struct {
	endpoints []*epp.Endpoint
	replicas  map[string]bool // pods
	all, own  int             // requests in flight there: of all pickers, and of this one
}

// add adds an endpoint.
func (m *members) add(e *epp.Endpoint) {
	if m.replicas == nil {
		m.replicas = map[string]bool{}
	}
	m.endpoints = append(m.endpoints, e)
	m.replicas[replicaOf(e)] = true
	m.all, m.own = m.all+e.InFlight().Requests, m.own+e.Own().Requests
}

// ranks returns how many endpoints a replica has.
func (m *members) ranks() int {
	if len(m.replicas) == 0 {
		return 1
	}
	return max(1, len(m.endpoints)/len(m.replicas))
}

// roles returns the endpoints that only compute prompts, and those that generate answers.
func (s *Sizer) roles() (prefill, decode members) {
	s.each(func(e *epp.Endpoint) {
		switch RoleOf(e) {
		case "prefill":
			prefill.add(e)
		case "decode":
			decode.add(e)
		}
	})
	return prefill, decode
}

// engines returns what is known of the endpoints of both roles, but for the KV cache.
func (s *Sizer) engines(prefill, decode *members) Engines {
	return Engines{Prefill: s.model.Rates(prefill.endpoints), Decode: s.model.Rates(decode.endpoints),
		PrefillCost: s.config.Prefill.Cost / float64(prefill.ranks()), DecodeCost: s.config.Decode.Cost / float64(decode.ranks()), NoPrefill: s.config.Prefill.Max == 0}
}

// Need returns how many endpoints of each role a load needs, by the times that have been learnt. It is the function that sizes are computed by
// each Interval.
func (s *Sizer) Need(l *Load) Needed {
	prefill, decode := s.roles()
	engines := s.engines(&prefill, &decode)
	s.mu.Lock()
	defer s.mu.Unlock()
	engines.KVTokens = s.cache
	return Need(l, s.config.Objective, &engines, s.split)
}

// compute closes an interval, and computes the sizes.
func (s *Sizer) compute(now time.Time) {
	prefill, decode := s.roles()
	waits := s.waits()
	engines := s.engines(&prefill, &decode)
	s.mu.Lock()
	defer s.mu.Unlock()
	took := Interval
	if !s.at.IsZero() {
		took = now.Sub(s.at)
	}
	if took < Interval/2 {
		return // a reload has two sizers for a moment
	}
	s.at, engines.KVTokens = now, s.cache
	s.reused.fade(took)
	// A split request is in flight at both until its prompt is computed.
	s.end(took, waits.Requests, inFlight{prefill.all + decode.all, prefill.own + decode.own, float64(max(0, decode.all-prefill.all))})
	load := s.present(waits)
	load.Tokens = s.mix.generated(&load, &engines, len(decode.endpoints))
	ready := max(s.prefillStarts.median(s.config.Prefill.Ready), s.decodeStarts.median(s.config.Decode.Ready))
	margin := s.expect(&load, waits, now, took, ready)
	s.needed = Need(&load, s.config.Objective, &engines, s.split)
	s.split = s.needed.Split
	load = load.more(margin)
	more := Need(&load, s.config.Objective, &engines, s.split)
	follow := func(of *steady, role *Role, m *members, needed, more int) int {
		r := m.ranks()
		needed, more = (needed+r-1)/r, (more+r-1)/r
		of.follow(now, needed, more, len(m.replicas), Limits{role.Min, role.Max, s.config.Window})
		return needed
	}
	s.needed.Decode = follow(&s.decode, &s.config.Decode, &decode, s.needed.Decode, more.Decode)
	if s.decode.size > 0 && s.config.Prefill.Max > 0 {
		// Only the whole pool goes to zero: while there are no prefill replicas, no pick shows that one is needed.
		s.needed.Prefill, more.Prefill = max(1, s.needed.Prefill), max(1, more.Prefill)
	}
	s.needed.Prefill = follow(&s.prefill, &s.config.Prefill, &prefill, s.needed.Prefill, more.Prefill)
	s.wish(now)
}

// generated returns how many tokens of answers decode endpoints generate in a second: the answers that run by the time of a token. Prompts that
// are computed there are in flight too, and take time from the answers.
func (m *mix) generated(l *Load, e *Engines, endpoints int) float64 {
	if endpoints == 0 || m.intervals == 0 {
		return 0
	}
	n := needs{Load: l, Engines: e}
	at := n.at(endpoints, n.seen())
	running := m.answering/m.intervals - at.computes*float64(endpoints)
	if running <= 0 || at.computes >= 1 {
		return 0
	}
	each := running / float64(endpoints)
	return running * (1 - at.computes) / e.Decode.Token(each, each*n.context(), at.prompts)
}

// Sizes returns the sizes of decode and, unless there may be none, of prefill: those of the latest interval, or before the first one the current ones within their limits.
func (s *Sizer) Sizes() []Size {
	prefill, decode := s.roles()
	s.mu.Lock()
	defer s.mu.Unlock()
	sizes := []Size{sizeOf("decode", &s.config.Decode, &s.decode, &decode, s.needed.Decode, &s.decodeStarts)}
	if s.config.Prefill.Max > 0 {
		sizes = append(sizes, sizeOf("prefill", &s.config.Prefill, &s.prefill, &prefill, s.needed.Prefill, &s.prefillStarts))
	}
	return sizes
}

// sizeOf returns the size of the replicas of a role, or of one of its variants.
func sizeOf(name string, role *Role, of *steady, m *members, needed int, start *starts) Size {
	one := Size{Role: name, Variant: role.Variant, Current: len(m.replicas), Desired: of.size, Soon: of.soon, Needed: needed, Start: start.median(role.Ready)}
	if of.begun.IsZero() {
		one.Desired = max(role.Min, min(one.Current, role.Max))
		one.Soon = one.Desired
	}
	return one
}

// Descriptions of the metrics. HPA and KEDA are configured with the names of llm-d's Workload Variant Autoscaler, and with its older ones.
var (
	desiredDesc = prometheus.NewDesc("tandem_desired_replicas",
		"Replicas of a role that the load needs to meet the objectives, stabilized and within the limits.", []string{"role", "variant"}, nil)
	neededDesc = prometheus.NewDesc("tandem_needed_replicas",
		"Replicas of a role that the present and the expected load need, without limits and however long they last.", []string{"role", "variant"}, nil)
	startDesc = prometheus.NewDesc("tandem_replica_start_seconds",
		"Time from the wish for a replica of a role until requests can be sent to it: the median of the latest nine starts, or readySeconds until there have been three.", []string{"role", "variant"}, nil)
	wvaDesiredDesc     = prometheus.NewDesc("wva_desired_replicas", "As tandem_desired_replicas, by the name of llm-d's Workload Variant Autoscaler.", []string{"variant_name"}, nil)
	wvaCurrentDesc     = prometheus.NewDesc("wva_current_replicas", "Replicas of a variant that the pool has.", []string{"variant_name"}, nil)
	infernoDesiredDesc = prometheus.NewDesc("inferno_desired_replicas", "As tandem_desired_replicas, by an older name of llm-d's Workload Variant Autoscaler.", []string{"variant_name"}, nil)
	infernoCurrentDesc = prometheus.NewDesc("inferno_current_replicas", "Replicas of a variant that the pool has.", []string{"variant_name"}, nil)
)

// Describe implements prometheus.Collector.
func (s *Sizer) Describe(ch chan<- *prometheus.Desc) { describe(ch) }

func describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{desiredDesc, neededDesc, startDesc, forecastDesc, confidenceDesc, inUseDesc, wvaDesiredDesc, wvaCurrentDesc, infernoDesiredDesc, infernoCurrentDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Sizer) Collect(ch chan<- prometheus.Metric) {
	collect(s.Sizes(), ch)
	prefill := ""
	if s.config.Prefill.Max > 0 {
		prefill = s.config.Prefill.Variant
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.collectPattern(ch, s.config.Decode.Variant, prefill)
}

func collect(sizes []Size, ch chan<- prometheus.Metric) {
	for _, one := range sizes {
		for _, m := range []struct {
			desc   *prometheus.Desc
			value  float64
			labels []string
		}{
			{desiredDesc, float64(one.Desired), []string{one.Role, one.Variant}}, {neededDesc, float64(one.Needed), []string{one.Role, one.Variant}},
			{startDesc, one.Start.Seconds(), []string{one.Role, one.Variant}},
			{wvaDesiredDesc, float64(one.Desired), []string{one.Variant}}, {wvaCurrentDesc, float64(one.Current), []string{one.Variant}},
			{infernoDesiredDesc, float64(one.Desired), []string{one.Variant}}, {infernoCurrentDesc, float64(one.Current), []string{one.Variant}},
		} {
			ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, m.value, m.labels...)
		}
	}
}
