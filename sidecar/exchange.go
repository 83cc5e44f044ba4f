package sidecar

import (
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/handoff"
	"github.com/tandem-serving/tandem/sidecar/intake"
)

// generate serves one generate call.
func (s *Server) generate(w http.ResponseWriter, r *http.Request, api pd.API) {
	start := time.Now()
	s.budget.Earn()
	x := s.legs.Begin(w, r, api, start)
	defer x.Close()
	if !s.life.enter(x) {
		x.Refuse(handoff.Draining())
		s.finish(x)
		return
	}
	defer s.life.leave(x)
	defer x.Buffer.Release()
	defer s.finish(x) // also after http.ErrAbortHandler
	if err := s.serve(x, r); err != nil {
		x.Fail(err)
	}
}

// serve runs a call from the intake to its legs. The error says why no answer has begun.
func (s *Server) serve(x *handoff.Exchange, r *http.Request) error {
	if refusal := intake.CheckEncoding(r.Header); refusal != nil {
		return refusal
	}
	route, err := s.routes.Read(r.Header)
	x.SetRoute(route)
	if err != nil {
		return err
	}
	if route.Verdict != pd.Remote || !x.API.Splittable() {
		return x.StreamLocal()
	}
	req, err := s.intake.Receive(r, &x.Body, x.API, &x.Buffer)
	if err != nil {
		return x.IntakeError(err)
	}
	return x.Split(req)
}

// finish records what happened.
func (s *Server) finish(x *handoff.Exchange) {
	phases := x.End()
	s.metrics.request(x, phases)
	s.log.Debug("request served", "request_id", x.ID, "decision", x.Decision.String(), "status", x.Status,
		"state", x.State(), "timing", timingValue{phases}, "error", x.Failure)
}

// timingValue is phases that are printed only if the log line is written.
type timingValue struct{ p *pd.Phases }

// String implements fmt.Stringer.
func (t timingValue) String() string { return string(t.p.AppendTiming(nil, pd.PhaseEPP)) }
