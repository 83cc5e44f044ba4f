package sidecar

import (
	"math/rand/v2"
	"net/http"

	"github.com/tandem-serving/tandem/pd"
)

// route is what the headers say about a request.
type route struct {
	mode    pd.Mode
	plan    *pd.Plan // nil: no picker of ours
	verdict pd.Verdict
	reason  pd.Reason
	strict  bool // never prefill locally
	targets []pd.Target
	first   int        // index of targets[0] in the header, when sampling turned the list
	rename  *pd.Rename // the model's name that the client gets to see; nil: the engine's
}

// planned is the verdict that was planned, for traces.
func (r *route) planned() string {
	if r.plan != nil {
		return r.plan.Verdict.String()
	}
	return r.verdict.String()
}

// candidate is the index in the header of the i-th target tried.
func (r *route) candidate(i int) int { return (r.first + i) % len(r.targets) }

// readRoute reads mode, plan and prefill candidates. Without a plan (a picker that is not ours, or none) a prefill header
// means remote, and the sidecar itself honours the mode.
func (s *Server) readRoute(h http.Header) (route, error) {
	values := h.Values(keyPrefill)
	plans := h.Values(keyPlan)
	if !s.trusted(h) {
		if len(values) > 0 {
			return route{}, pd.Refuse(pd.UntrustedPeer, "A prefill target needs the shared secret of this pool, which this request did not carry.")
		}
		plans = nil
	}
	var r route
	var err error
	if len(plans) > 0 {
		r, err = s.plannedRoute(h, plans)
	} else {
		r, err = s.unplannedRoute(h, len(values) > 0)
	}
	if err == nil {
		r.rename, err = s.readRename(h)
	}
	if err != nil || r.verdict != pd.Remote {
		return r, err
	}
	return s.aim(r, values)
}

// plannedRoute follows the plan. The picker has read the mode already, so a bad one is not refused here.
func (s *Server) plannedRoute(h http.Header, plans []string) (route, error) {
	if len(plans) > 1 {
		return route{}, pd.Refuse(pd.BadRequest, "%s must be sent once.", pd.HeaderPlan)
	}
	plan, err := pd.ParsePlan(plans[0])
	if err != nil {
		return route{}, pd.Refuse(pd.BadRequest, "%v.", err)
	}
	mode, err := s.readMode(h)
	if err != nil {
		mode = pd.ModeAuto
	}
	return route{mode: mode, plan: &plan, verdict: plan.Verdict, reason: plan.Reason, strict: plan.Strict}, nil
}

func (s *Server) unplannedRoute(h http.Header, hasTargets bool) (route, error) {
	mode, err := s.readMode(h)
	if err != nil {
		return route{}, pd.Refuse(pd.BadPDHeader, "%v.", err)
	}
	r := route{mode: mode, verdict: pd.Local, strict: mode == pd.ModeForce}
	switch {
	case mode == pd.ModeBypass:
		r.reason = pd.Bypassed
	case hasTargets:
		r.verdict, r.reason = pd.Remote, pd.External
	case r.strict:
		return route{}, pd.Refuse(pd.NoPrefill, "Prefill on another pod was forced, but none was chosen for this request.")
	default:
		r.reason = pd.NoPrefill
	}
	return r, nil
}

func (s *Server) readMode(h http.Header) (pd.Mode, error) {
	if s.cfg.Trust.PDHeader == "off" {
		return pd.ModeAuto, nil
	}
	return pd.ParseMode(h.Values(keyMode))
}

// readRename reads what the picker says of the model's name. From others it says nothing.
func (s *Server) readRename(h http.Header) (*pd.Rename, error) {
	values := h.Values(keyModel)
	switch {
	case len(values) == 0 || !s.trusted(h):
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

// aim reads and checks the candidates of a remote route.
func (s *Server) aim(r route, values []string) (route, error) {
	if len(values) == 0 {
		if r.strict {
			return r, pd.Refuse(pd.NoPrefill, "Prefill on another pod was forced, but none was chosen for this request.")
		}
		if !s.budget.Take() {
			return r, overBudget(pd.NoPrefill)
		}
		r.verdict, r.reason = pd.Local, pd.NoPrefill
		return r, nil
	}
	targets, err := pd.ParseTargets(values)
	if err != nil {
		return r, pd.Refuse(pd.BadRequest, "%v.", err)
	}
	for _, t := range targets {
		if refusal := s.allow.check(t); refusal != nil {
			return r, refusal
		}
	}
	r.targets = targets
	if s.cfg.Prefill.Sampling {
		r.first = rand.IntN(len(targets))
		r.targets = append(append([]pd.Target(nil), targets[r.first:]...), targets[:r.first]...)
	}
	return r, nil
}

// trusted reports whether the sender knows a shared secret, or none is configured.
func (s *Server) trusted(h http.Header) bool {
	return s.cfg.Trust.Secrets == nil || s.cfg.Trust.Secrets().Match(h.Values(keyAuth))
}
