package intake

import (
	"math/rand/v2"
	"net/http"
	"slices"

	"github.com/tandem-serving/tandem/pd"
)

// Route is what the headers say about a request.
type Route struct {
	Mode    pd.Mode
	Plan    *pd.Plan // nil: no Tandem picker has planned the request
	Verdict pd.Verdict
	Reason  pd.Reason
	Strict  bool        // the request must not be prefilled locally
	Targets []pd.Target // prefill candidates in the order of the tries
	Others  []pd.Target // further decode pods that the picker would choose, best first, the pod itself among them; only if they are read
	Rename  *pd.Rename  // the model's name for the client's answer; nil: the engine's
	// Encoders encode the images, audio and video of the request; nil = what computes the prompt does.
	Encoders []pd.Target
	// Source is the pod from whose engine's memory the one that computes the prompt may fetch blocks; zero: none.
	Source pd.Target

	first int // index of Targets[0] in the header; not 0 if sampling has rotated the list
}

// Planned returns the planned verdict, for traces.
func (r *Route) Planned() string {
	if r.Plan != nil {
		return r.Plan.Verdict.String()
	}
	return r.Verdict.String()
}

// Candidate returns the index in the header of the i-th target tried.
func (r *Route) Candidate(i int) int { return (r.first + i) % len(r.Targets) }

// RouteReader reads the headers that decide the route of a request.
type RouteReader struct {
	// Modes says whether clients may choose the P/D mode.
	Modes bool
	// Secrets returns the shared secrets, one of which a request must carry if it has a prefill header; nil if none is
	// required.
	Secrets func() pd.Secrets
	// Allow says where prefill legs may go.
	Allow AllowList
	// Others has Read read which further decode pods may serve a request.
	Others bool
	// Sampling begins with a random candidate instead of the first.
	Sampling bool
	// Budget bounds local prefill of requests that were planned remote.
	Budget *pd.FallbackBudget
	// Encoders says whether requests may name encoders.
	Encoders bool
	// Sources says whether engines fetch blocks of prompts from other engines.
	Sources bool
	// Self is the address of this pod, if prefill engines read blocks from its engine and from no other; "": they do not.
	Self string
}

// Tandem's headers in net/http's form, whose functions allocate a new string for a lower-case name at each use.
var (
	keyMode        = http.CanonicalHeaderKey(pd.HeaderMode)
	keyPrefill     = http.CanonicalHeaderKey(pd.HeaderPrefill)
	keyPrefillNew  = http.CanonicalHeaderKey(pd.HeaderPrefillNew)
	keyPlan        = http.CanonicalHeaderKey(pd.HeaderPlan)
	keyAuth        = http.CanonicalHeaderKey(pd.HeaderAuth)
	keyDestination = http.CanonicalHeaderKey(pd.HeaderDestination)
	keyModel       = http.CanonicalHeaderKey(pd.HeaderModel)
	keyEncode      = http.CanonicalHeaderKey(pd.HeaderEncode)
	keySource      = http.CanonicalHeaderKey(pd.HeaderSource)
)

// Read reads the P/D mode, plan and prefill candidates. Without a plan (another picker, or none) a prefill header means
// remote, and the sidecar itself applies the mode. The error is a *pd.Refusal.
func (rr *RouteReader) Read(h http.Header) (Route, error) {
	values := h.Values(keyPrefill)
	if len(values) == 0 {
		// Only then: a picker that knows the older name alone cannot remove a client's header of the newer one.
		values = h.Values(keyPrefillNew)
	}
	plans := h.Values(keyPlan)
	if !rr.trusted(h) {
		if len(values) > 0 {
			return Route{}, pd.Refuse(pd.UntrustedPeer, "A prefill target needs the shared secret of this pool, which this request did not carry.")
		}
		plans = nil
	}
	var r Route
	var err error
	if len(plans) > 0 {
		r, err = rr.planned(h, plans)
	} else {
		r, err = rr.unplanned(h, len(values) > 0)
	}
	if err == nil {
		r.Rename, err = rr.rename(h)
	}
	if rr.Others && rr.trusted(h) {
		r.Others = rr.others(h)
	}
	r.Source = rr.source(h)
	if err == nil {
		r.Encoders, err = rr.encoders(h)
	}
	if err != nil || r.Verdict != pd.Remote {
		return r, err
	}
	return rr.aim(r, values)
}

// planned follows the plan. It does not refuse a malformed mode, which the picker has already read.
func (rr *RouteReader) planned(h http.Header, plans []string) (Route, error) {
	if len(plans) > 1 {
		return Route{}, pd.Refuse(pd.BadRequest, "%s must be sent once.", pd.HeaderPlan)
	}
	plan, err := pd.ParsePlan(plans[0])
	if err != nil {
		return Route{}, pd.Refuse(pd.BadRequest, "%v.", err)
	}
	mode, err := rr.mode(h)
	if err != nil {
		mode = pd.ModeAuto
	}
	return Route{Mode: mode, Plan: &plan, Verdict: plan.Verdict, Reason: plan.Reason, Strict: plan.Strict}, nil
}

func (rr *RouteReader) unplanned(h http.Header, hasTargets bool) (Route, error) {
	mode, err := rr.mode(h)
	if err != nil {
		return Route{}, pd.Refuse(pd.BadPDHeader, "%v.", err)
	}
	r := Route{Mode: mode, Verdict: pd.Local, Strict: mode == pd.ModeForce}
	switch {
	case mode == pd.ModeBypass:
		r.Reason = pd.Bypassed
	case hasTargets:
		r.Verdict, r.Reason = pd.Remote, pd.External
	case r.Strict:
		return Route{}, noTarget()
	case mode == pd.ModeForceFallback:
		r.Reason = pd.NoPrefill
	default:
		r.Reason = pd.Unplanned
	}
	return r, nil
}

func noTarget() *pd.Refusal {
	return pd.Refuse(pd.NoPrefill, "Prefill on another pod was forced, but none was chosen for this request.")
}

func (rr *RouteReader) mode(h http.Header) (pd.Mode, error) {
	if !rr.Modes {
		return pd.ModeAuto, nil
	}
	return pd.ParseMode(h.Values(keyMode))
}

// rename reads the picker's header about the model's name. It ignores the header of an untrusted sender.
func (rr *RouteReader) rename(h http.Header) (*pd.Rename, error) {
	values := h.Values(keyModel)
	switch {
	case len(values) == 0 || !rr.trusted(h):
		return nil, nil
	case len(values) > 1:
		return nil, pd.Refuse(pd.BadRequest, "%s must be sent once.", pd.HeaderModel)
	}
	r, err := pd.ParseRename(values[0])
	if err != nil {
		return nil, pd.Refuse(pd.BadRequest, "%v.", err)
	}
	return &r, nil
}

// encoders reads the encoders. One that is not allowed is refused when it is dialled, and costs its request nothing else: what computes
// the prompt encodes.
func (rr *RouteReader) encoders(h http.Header) ([]pd.Target, error) {
	values := h.Values(keyEncode)
	if !rr.Encoders || len(values) == 0 {
		return nil, nil
	}
	if !rr.trusted(h) {
		return nil, pd.Refuse(pd.UntrustedPeer, "An encoder needs the shared secret of this pool, which this request did not carry.")
	}
	targets, err := pd.ParseEncoders(values)
	if err != nil {
		return nil, pd.Refuse(pd.BadRequest, "%v.", err)
	}
	return targets, nil
}

// source reads from where blocks of the prompt may be fetched. It ignores the header of an untrusted sender, one that is malformed, and a
// pod that is not allowed: the request is served without it.
func (rr *RouteReader) source(h http.Header) (none pd.Target) {
	values := h.Values(keySource)
	if !rr.Sources && rr.Self == "" || len(values) == 0 || !rr.trusted(h) {
		return none
	}
	source, err := pd.ParseSource(values)
	if rr.Self != "" { // the prefill engine connects to nothing that a header names
		if err != nil || source.Host != rr.Self {
			return none
		}
		return source
	}
	if err != nil || rr.Allow.Check(source) != nil {
		return none
	}
	return source
}

// aim reads and checks the candidates of a remote route.
func (rr *RouteReader) aim(r Route, values []string) (Route, error) {
	if len(values) == 0 {
		if r.Strict {
			return r, noTarget()
		}
		if !rr.Budget.Take() {
			return r, OverBudget(pd.NoPrefill)
		}
		r.Verdict, r.Reason = pd.Local, pd.NoPrefill
		return r, nil
	}
	targets, err := pd.ParseTargets(values)
	if err != nil {
		return r, pd.Refuse(pd.BadRequest, "%v.", err)
	}
	for _, t := range targets {
		if refusal := rr.Allow.Check(t); refusal != nil {
			return r, refusal
		}
	}
	r.Targets = targets
	if rr.Sampling {
		r.first = rand.IntN(len(targets))
		r.Targets = append(append([]pd.Target(nil), targets[r.first:]...), targets[:r.first]...)
	}
	return r, nil
}

// others reads which decode pods may serve a request. It leaves out those that are not allowed, and all if the header is malformed: a
// request is served without them.
func (rr *RouteReader) others(h http.Header) []pd.Target {
	targets, err := pd.ParseTargets(h.Values(keyDestination))
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(targets, func(t pd.Target) bool { return rr.Allow.Check(t) != nil })
}

// trusted reports whether the sender has a shared secret, or none is required.
func (rr *RouteReader) trusted(h http.Header) bool {
	return rr.Secrets == nil || rr.Secrets().Match(h.Values(keyAuth))
}

// OverBudget returns the refusal of a request that would be prefilled locally, for a reason, while the fallback budget is
// spent.
func OverBudget(reason pd.Reason) *pd.Refusal {
	return pd.Refuse(pd.Budget, "Prefill on another pod failed (%s), and this pod has prefilled too many such requests itself lately. Try again.", reason)
}
