package sidecar

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// exchange is one generate call on its way through the states. It belongs to the goroutine that serves the request.
type exchange struct {
	s   *Server
	w   http.ResponseWriter
	r   *http.Request
	api pd.API

	ctx    context.Context // the request's: ends when the client leaves, by cause errCut when the sidecar drains
	cancel context.CancelCauseFunc

	id      string
	route   intake.Route
	state   state
	clock   pd.Clock
	body    intake.PacedBody
	buf     intake.Buffer
	handoff pending
	// elsewhere: the engine has died of, or under, this request; its error is what the client gets if nobody else takes it.
	elsewhere bool
	span      trace.Span
	report
}

// report is what will be told of an exchange: to the client, in metrics and in the trace.
type report struct {
	decision   pd.Result
	target     string   // of the last prefill leg
	status     int      // sent to the client; 0 = none
	told       pd.Phase // the first phase that the answer's headers could not tell yet
	usage      body.Usage
	end        pd.End
	releaseWay string
	failure    error // why the answer is not what was asked for
}

var (
	// errCut is the cause of a context that ended because the drain deadline passed.
	errCut = errors.New("the sidecar was shut down before the answer was complete")
	// errAnswered ends an exchange that has its answer.
	errAnswered = errors.New("answered")
	// errGone means that the client left: there is nobody to answer.
	errGone = errors.New("client left")
)

// statusGone stands in metrics for a request whose client left before an answer, as nginx's log has it.
const statusGone = 499

// generate serves one generate call.
func (s *Server) generate(w http.ResponseWriter, r *http.Request, api pd.API) {
	start := time.Now()
	s.budget.Earn()
	x := &exchange{s: s, w: w, r: r, api: api, clock: pd.StartClock(start), id: transport.RequestID(r.Header),
		report: report{usage: body.NoUsage}}
	ctx, span := s.tracing.request(r, api, start)
	x.span = span
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	defer x.cancel(nil)
	w.Header().Set("X-Request-Id", x.id)
	x.body.Begin(x.ctx, w, r, s.cfg.Trust.BodyPause)
	defer x.body.End()
	if !s.life.enter(x) {
		x.refuse(draining())
		x.finish()
		return
	}
	defer s.life.leave(x)
	defer x.buf.Release()
	defer x.finish() // runs for http.ErrAbortHandler too
	if err := x.run(); err != nil && !errors.Is(err, errAnswered) {
		x.answerError(err)
	}
}

// run takes the request through its states. The error is a *pd.Refusal, errGone, or internal.
func (x *exchange) run() error {
	if refusal := intake.CheckEncoding(x.r.Header); refusal != nil {
		return refusal
	}
	route, err := x.s.routes.Read(x.r.Header)
	x.route = route
	if err != nil {
		return err
	}
	x.decide(route.Verdict, route.Reason)
	if route.Verdict != pd.Remote {
		return x.streamLocal()
	}
	if !x.api.Splittable() {
		return x.unsplittable(x.streamLocal)
	}
	req, err := x.s.intake.Receive(x.r, &x.body, x.api, &x.buf)
	if err != nil {
		return x.intakeError(err)
	}
	held := func() error { return x.heldLocal(req) }
	fit := req.Fit
	if f, ok := x.s.dialect.(dialect.Fitter); ok && fit == request.FitLocal {
		fit = f.Fit(req.Request)
	}
	switch fit {
	case request.FitDoubted:
		// The engine's own error is the best answer, so even a strict plan gets it.
		x.decide(pd.Local, pd.NotSplittable)
		return held()
	case request.FitLocal:
		return x.unsplittable(held)
	}
	return x.remote(req)
}

// remote runs both legs.
func (x *exchange) remote(req *intake.Request) error {
	reason, err := x.runPrefill(req)
	if err != nil {
		return err
	}
	if reason == "" {
		reason, err = x.runDecode(req)
		if err != nil || reason == "" {
			return err
		}
	}
	return x.redoLocal(req, reason)
}

// unsplittable serves a request that no hand-off can carry, unless it must not be local.
func (x *exchange) unsplittable(serve func() error) error {
	if x.route.Strict {
		return pd.Refuse(pd.NotSplittable, "Prefill on another pod was forced, but this request cannot be split: "+
			"only chat and completions with one prompt, one choice and no prompt log probabilities can.")
	}
	x.decide(pd.Local, pd.NotSplittable)
	return serve()
}

// redoLocal prefills on the decode engine what was planned remote.
func (x *exchange) redoLocal(req *intake.Request, reason pd.Reason) error {
	if x.route.Strict {
		return pd.Refuse(pd.PrefillFailed, "Prefill on another pod was forced, and it failed (%s).", reason)
	}
	if err := x.reachBeside(); err != nil {
		return err // nothing is taken of the budget for what cannot be
	}
	if !x.s.budget.Take() {
		return intake.OverBudget(reason)
	}
	x.decide(pd.Local, reason)
	return x.heldLocal(req)
}

func (x *exchange) decide(v pd.Verdict, r pd.Reason) { x.decision.Verdict, x.decision.Reason = v, r }

// interrupted says who ended the request's context.
func (x *exchange) interrupted() trouble {
	if context.Cause(x.ctx) == errCut {
		return cutOff
	}
	return clientGone
}

// intakeError is the error of a request whose body could not be read.
func (x *exchange) intakeError(err error) error {
	if errors.Is(err, intake.ErrClientLeft) {
		return x.gone()
	}
	return err
}

// gone is the error of a request whose context has ended.
func (x *exchange) gone() error {
	if x.interrupted() == clientGone {
		if refusal := x.body.LateRefusal(); refusal != nil {
			return refusal
		}
	}
	if x.state.on(x.interrupted()).has(refuse) {
		return draining()
	}
	return errGone
}

func draining() *pd.Refusal {
	return pd.Refuse(pd.Draining, "This sidecar is shutting down. Try again; another one will answer.")
}

// answerError ends an exchange whose answer has not begun. For a client that left it aborts the connection: who only
// stopped sending still listens, and would take silence for an empty 200.
func (x *exchange) answerError(err error) {
	if errors.Is(err, errGone) {
		x.failure = err
		x.status = statusGone
		panic(http.ErrAbortHandler)
	}
	x.refuse(pd.AsRefusal(err))
}

func (x *exchange) refuse(r *pd.Refusal) {
	attempts := x.decision
	x.decision = r.Result()
	x.decision.Attempts, x.decision.Candidate = attempts.Attempts, attempts.Candidate
	x.status, x.failure, x.end = r.Status(), r, pd.EndError
	if r.Reason == pd.InternalError {
		x.s.log.Error("serving a request", "request_id", x.id, "error", r.Cause)
	}
	x.setTiming(*x.clock.Stop(time.Now()))
	if x.reports() {
		x.w.Header().Set(keyOutcome, x.outcome().String())
	}
	if err := r.Write(x.w, x.api, x.decision, true); err != nil {
		x.s.log.Debug("answering a request", "request_id", x.id, "error", err)
	}
}

// setTiming writes the phases, and the picker's before them if it told.
func (x *exchange) setTiming(phases pd.Phases) {
	if x.route.Plan != nil {
		phases.Set(pd.PhaseEPP, x.route.Plan.EPP)
	}
	x.w.Header().Set(keyTiming, string(phases.AppendTiming(nil, pd.PhaseEPP)))
}

// cutGrace is how long a client gets to take the end of an answer that the drain deadline cut: a living one takes it at
// once, and a prefill leg has to be hung up on before there is one.
const cutGrace = hangupDelay + hangupGrace + time.Second

// cut ends the exchange from outside. A client that neither sends nor reads must not hold the shutdown up. The caller sees
// to it that the exchange has not left yet.
func (x *exchange) cut() {
	x.cancel(errCut)
	c := http.NewResponseController(x.w)
	for _, err := range []error{c.SetReadDeadline(time.Now()), c.SetWriteDeadline(time.Now().Add(cutGrace))} {
		if err != nil {
			x.s.log.Debug("cutting a request", "request_id", x.id, "error", err)
		}
	}
}

// finish records what happened.
func (x *exchange) finish() {
	last := x.state
	x.state = done
	x.handoff.hold.End()
	phases := x.clock.Stop(time.Now())
	x.endSpan(phases)
	x.s.metrics.request(x.decision, x.status, phases)
	x.s.log.Debug("request served", "request_id", x.id, "decision", x.decision.String(), "status", x.status,
		"state", last, "timing", timingValue{phases}, "error", x.failure)
}

// timingValue prints phases only if the line is written.
type timingValue struct{ p *pd.Phases }

func (t timingValue) String() string { return string(t.p.AppendTiming(nil, pd.PhaseEPP)) }
