package sidecar

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/handoff"
	"github.com/tandem-serving/tandem/sidecar/intake"
)

// generate serves one generate call.
func (s *Server) generate(w http.ResponseWriter, r *http.Request, api pd.API, of rankOf) {
	start := time.Now()
	s.budget.Earn()
	s.goesOn.Budget.Earn()
	rank, refusal := of(r.Header)
	x := rank.legs.Begin(w, r, api, start)
	defer x.Close()
	if !s.life.enter(x) {
		x.Fail(handoff.Draining())
		s.finish(x)
		return
	}
	defer s.life.leave(x)
	defer x.Buffer.Release()
	defer s.finish(x) // also after http.ErrAbortHandler
	if refusal != nil {
		x.Fail(refusal)
		return
	}
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
	split := route.Verdict == pd.Remote && x.API.Splittable()
	encodes := len(route.Encoders) > 0 && x.API == pd.APIChat
	pulls := route.Source != pd.Target{} && x.API.Splittable()
	check, checks := s.dialect.(dialect.Checker)
	if checks = checks && check.Checks(x.API); !split && !checks && !encodes && !pulls {
		keeps := s.keeps(x.API, r.ContentLength)
		if keeps && r.ContentLength < 0 {
			whole, free, err := s.intake.LookAhead(r, &x.Body, maxAhead)
			defer free()
			if err != nil {
				return x.IntakeError(err)
			}
			keeps = whole
		}
		if !keeps {
			return x.StreamLocal()
		}
	}
	req, err := s.intake.Receive(r, &x.Body, x.API, &x.Buffer)
	if err != nil {
		return x.IntakeError(err)
	}
	if checks && !req.AsIs {
		if err := check.Check(req.Request); err != nil {
			return pd.Refuse(pd.BadRequest, "The request cannot be computed: %v.", err)
		}
	}
	if !split {
		return x.Local(req)
	}
	return x.Split(req)
}

const (
	// maxKept is the largest body of a request for one engine that is buffered so that its answer can come from elsewhere (bytes).
	maxKept = 4 << 20
	// maxAhead is the same for a body whose length is not known: Envoy removes the length of bodies that it shows to a picker. Such a body
	// is copied once more, and a longer one is late at the engine by the time that so much of it takes.
	maxAhead = 1 << 20
)

// keeps reports whether a request that one engine serves is buffered, because its answer may come from elsewhere. While memory for bodies
// is scarce, it is passed on as it arrives. A length of -1 is not known.
func (s *Server) keeps(api pd.API, length int64) bool {
	_, able := s.dialect.(dialect.Continuer)
	return able && s.goesOn.Times > 0 && api.Splittable() && length <= maxKept && !s.intake.Scarce()
}

// finish records what happened.
func (s *Server) finish(x *handoff.Exchange) {
	phases := x.End()
	s.metrics.request(x, phases)
	notable := s.notable(x, phases.Sum())
	if record := x.Record(phases, notable); record != nil {
		s.recent.Add(record, notable != "")
	}
	s.logRequest(x, phases, notable)
}

// Why a request is worth a look, in logs and records.
const (
	notableFailed   = "failed"
	notableFallback = "fallback"
	notableSlow     = "slow"
)

// notable returns why a request that took some time is worth an operator's look; "" if it is not. Refusals that blame the client
// are not, because any client can cause many of them.
func (s *Server) notable(x *handoff.Exchange, took time.Duration) string {
	switch {
	case x.Status >= http.StatusInternalServerError, x.Status < http.StatusBadRequest && x.Client.End == pd.EndError:
		return notableFailed
	case x.Decision.Verdict == pd.Local && x.Decision.Reason.FallsBack(), x.Unencoded:
		return notableFallback
	case s.cfg.Tell.Slow > 0 && took >= s.cfg.Tell.Slow:
		return notableSlow
	}
	return ""
}

// logRequest writes the access log: at info for notable requests, else at debug.
func (s *Server) logRequest(x *handoff.Exchange, phases *pd.Phases, notable string) {
	level := slog.LevelDebug
	if notable != "" {
		level = slog.LevelInfo
	}
	if !s.log.Enabled(x.Context, level) {
		return
	}
	s.log.Log(x.Context, level, "request served", "request_id", x.ID, "notable", notable, "decision", x.Decision.String(), "status", x.Status,
		"decode", x.Pods().Decode, "prefill", x.Target(), "state", x.State(), "took", phases.Sum(),
		"timing", string(phases.AppendTiming(nil, pd.PhaseEPP)), "error", x.Failure)
}
