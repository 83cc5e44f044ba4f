package scale

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
)

// Variant is one of several Deployments of the replicas that generate answers, on other GPUs or with another quantization.
type Variant struct {
	Role
	// TTFT and TPOT are what the variant is sized to give, and for whom: for the requests that want no less, unless a cheaper variant is sized for them.
	TTFT, TPOT time.Duration
}

// VariantsConfig is what the sizes of variants are computed for.
type VariantsConfig struct {
	Objective           // of requests that do not say what they want; Share is that of every variant
	Label     string    // of pods, which names their variant
	Variants  []Variant // the cheapest first
	Window    time.Duration
}

// Variants computes a size for each variant of a pool without prefill replicas: for the requests that the variant is the cheapest for, whichever serves them
// now. So the cheap variant grows when it has too many, although a dearer one helps meanwhile, and the dearer one does not. It is what a Sizer is,
// and safe for concurrent use.
type Variants struct {
	config VariantsConfig
	sizers []*Sizer
}

// NewVariants makes one. states are those of the variants, and outlive a reload. The caller closes it.
func NewVariants(c VariantsConfig, states []*State, m *latency.Model, clock epp.Clock) *Variants {
	v := &Variants{config: c}
	for i, one := range c.Variants {
		v.sizers = append(v.sizers, New(Config{Objective: Objective{one.TTFT, one.TPOT, c.Share}, Decode: one.Role, Window: c.Window, Helps: i > 0}, states[i], m, clock))
	}
	return v
}

// Notify has changed called whenever sizes were computed.
func (v *Variants) Notify(changed func()) {
	for _, s := range v.sizers {
		s.Notify(changed)
	}
}

// FollowBacklog implements epp.BacklogFollower. Who waits there is not known, so the cheapest variant has to serve them.
func (v *Variants) FollowBacklog(b epp.Backlog) { v.sizers[0].FollowBacklog(b) }

// Wake tells that requests have begun to wait. If the pool is scaled to zero, one replica of the cheapest variant is wanted at once.
func (v *Variants) Wake() {
	for _, s := range v.sizers {
		if _, decode := s.roles(); len(decode.replicas) > 0 {
			return
		}
	}
	v.sizers[0].Wake()
}

// Close ends the computation of sizes.
func (v *Variants) Close() error {
	for _, s := range v.sizers {
		_ = s.Close() // it has no error
	}
	return nil
}

// SizedAs returns the role and the variant by which an endpoint is counted, "" if it is not.
func (v *Variants) SizedAs(e *epp.Endpoint) (role, variant string) {
	if s := v.of(e); s != nil {
		return s.SizedAs(e)
	}
	return "", ""
}

// of returns the sizer of an endpoint's variant, nil if there is none.
func (v *Variants) of(e *epp.Endpoint) *Sizer {
	if RoleOf(e) != "decode" {
		return nil
	}
	for i := range v.config.Variants {
		if v.config.Variants[i].Role.Variant == e.Labels[v.config.Label] {
			return v.sizers[i]
		}
	}
	return nil
}

// EndpointJoined implements epp.EndpointObserver. A version of an endpoint may be of another variant than the one before it.
func (v *Variants) EndpointJoined(e *epp.Endpoint) {
	of := v.of(e)
	for _, s := range v.sizers {
		if s == of {
			s.EndpointJoined(e)
		} else {
			s.EndpointLeft(e)
		}
	}
}

// EndpointLeft implements epp.EndpointObserver.
func (v *Variants) EndpointLeft(e *epp.Endpoint) {
	for _, s := range v.sizers {
		s.EndpointLeft(e)
	}
}

// Picked implements epp.PickObserver. It takes no lock.
func (v *Variants) Picked(r *epp.Round, c []epp.Candidate, d *epp.Decision) {
	v.sizers[v.cheapestFor(r.Request)].Picked(r, c, d)
}

// cheapestFor returns the index of the cheapest variant that is sized to give a request what it wants, or that of the dearest if none is.
func (v *Variants) cheapestFor(r *epp.Request) int {
	ttft, tpot := r.WantedTTFT(), r.WantedTPOT()
	if ttft == 0 {
		ttft = v.config.TTFT
	}
	if tpot == 0 {
		tpot = v.config.TPOT
	}
	last := len(v.config.Variants) - 1
	for i := range last {
		if one := &v.config.Variants[i]; one.TTFT <= ttft && one.TPOT <= tpot {
			return i
		}
	}
	return last
}

// Observe implements epp.Observer: answers tell their length to the sizer of the variant that has generated them.
func (v *Variants) Observe(o *epp.Outcome) {
	if o.Decision == nil {
		return
	}
	if s := v.of(o.Decision.Picks[0].Endpoints[0]); s != nil {
		s.Observe(o)
	}
}

// Sizes returns the size of each variant, the cheapest first.
func (v *Variants) Sizes() (all []Size) {
	for _, s := range v.sizers {
		all = append(all, s.Sizes()...)
	}
	return all
}

// Reused returns how many tokens requests have lately found in the cache of an endpoint's replica.
func (v *Variants) Reused(e *epp.Endpoint) float64 {
	if s := v.of(e); s != nil {
		return s.Reused(e)
	}
	return 0
}

// Describe implements prometheus.Collector.
func (v *Variants) Describe(ch chan<- *prometheus.Desc) { v.sizers[0].Describe(ch) }

// Collect implements prometheus.Collector.
func (v *Variants) Collect(ch chan<- prometheus.Metric) {
	for _, s := range v.sizers {
		s.Collect(ch)
	}
}
