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
	"github.com/tandem-serving/tandem/sidecar/relay"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// exchange is one generate call on its way through the states. It belongs to the goroutine that serves the request.
type exchange struct {
	s *Server
	r *http.Request

	ctx    context.Context // the request's: ends when the client leaves, by cause errCut when the sidecar drains
	cancel context.CancelCauseFunc

	route   intake.Route
	state   state
	body    intake.PacedBody
	buf     intake.Buffer
	handoff pending
	span    trace.Span

	// The client, and what is reported to it, in metrics and in the trace.
	relay.Client
	target     string // of the last prefill leg
	releaseWay string // of the hand-off
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
	x := &exchange{s: s, r: r, Client: relay.Client{Writer: w, API: api, ID: transport.RequestID(r.Header), TE: r.Header["Te"], Log: s.log,
		Report: relay.Report{Clock: pd.StartClock(start), Usage: body.NoUsage}}}
	x.Exchange = x
	ctx, span := s.tracing.request(r, api, start)
	x.span = span
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	x.Context, x.ReadUsage = x.ctx, span.IsRecording()
	defer x.cancel(nil)
	w.Header().Set("X-Request-Id", x.ID)
	x.body.Begin(x.ctx, w, r, s.cfg.Trust.BodyPause)
	defer x.body.End()
	if !s.life.enter(x) {
		x.Refuse(draining())
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
	x.Plan, x.Rename = route.Plan, route.Rename
	if err != nil {
		return err
	}
	x.decide(route.Verdict, route.Reason)
	if route.Verdict != pd.Remote {
		return x.streamLocal()
	}
	if !x.API.Splittable() {
		return x.unsplittable(x.streamLocal)
	}
	req, err := x.s.intake.Receive(x.r, &x.body, x.API, &x.buf)
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
	var reason pd.Reason
	var err error
	if x.s.dialect.Shape() == dialect.Concurrent {
		reason, err = x.runConcurrent(req)
	} else {
		reason, err = x.runSerial(req)
	}
	if err != nil || reason == "" {
		return err
	}
	return x.redoLocal(req, reason)
}

// runSerial runs one leg after the other. Its results are those of runDecode.
func (x *exchange) runSerial(req *intake.Request) (pd.Reason, error) {
	if reason, err := x.runPrefill(req); err != nil || reason != "" {
		return reason, err
	}
	return x.runDecode(req)
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

func (x *exchange) decide(v pd.Verdict, r pd.Reason) { x.Decision.Verdict, x.Decision.Reason = v, r }

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
		x.Failure = err
		x.Status = statusGone
		panic(http.ErrAbortHandler)
	}
	x.Refuse(pd.AsRefusal(err))
}

// Committed implements relay.Exchange.
func (x *exchange) Committed() {
	x.buf.Drop()
	x.state = streaming
}

// Interrupted implements relay.Exchange.
func (x *exchange) Interrupted() error {
	switch {
	case x.state != streaming:
		return x.gone()
	case x.state.on(x.interrupted()).has(endStream):
		return draining()
	}
	return errGone
}

var errUnfinished = errors.New("the engine was stopped before it had finished this answer")

// CheckWhole implements relay.Exchange: an engine that is being stopped cuts some of its answers short.
func (x *exchange) CheckWhole(answer []byte) error {
	if u, ok := x.s.dialect.(dialect.Unfinisher); ok && u.Unfinished(answer) && x.dying(abortMoment) {
		return errUnfinished
	}
	return nil
}

// rename gives an answer the client's name of the model.
func (x *exchange) rename(resp *http.Response) {
	if err := x.RenameModel(resp); err != nil {
		x.s.warnings.Warn(err.Error(), "request_id", x.ID)
	}
}

// cutGrace is how long a client gets to take the end of an answer that the drain deadline cut: a living one takes it at
// once, and a prefill leg has to be hung up on before there is one.
const cutGrace = hangupDelay + hangupGrace + time.Second

// cut ends the exchange from outside. A client that neither sends nor reads must not hold the shutdown up. The caller sees
// to it that the exchange has not left yet.
func (x *exchange) cut() {
	x.cancel(errCut)
	c := http.NewResponseController(x.Writer)
	for _, err := range []error{c.SetReadDeadline(time.Now()), c.SetWriteDeadline(time.Now().Add(cutGrace))} {
		if err != nil {
			x.s.log.Debug("cutting a request", "request_id", x.ID, "error", err)
		}
	}
}

// finish records what happened.
func (x *exchange) finish() {
	last := x.state
	x.state = done
	x.handoff.hold.End()
	phases := x.Clock.Stop(time.Now())
	x.endSpan(phases)
	x.s.metrics.request(x.Decision, x.Status, phases)
	x.s.log.Debug("request served", "request_id", x.ID, "decision", x.Decision.String(), "status", x.Status,
		"state", last, "timing", timingValue{phases}, "error", x.Failure)
}

// timingValue prints phases only if the line is written.
type timingValue struct{ p *pd.Phases }

func (t timingValue) String() string { return string(t.p.AppendTiming(nil, pd.PhaseEPP)) }
