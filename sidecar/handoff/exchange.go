package handoff

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
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

// Exchange is one generate call. Begin makes it; it belongs to the goroutine that serves the call.
type Exchange struct {
	// Client is the client, and what is reported to it, in metrics and in the trace. Its Context ends when the client leaves,
	// or when the exchange is Cut.
	relay.Client
	Route  intake.Route
	Body   intake.PacedBody // the client's, while it arrives
	Buffer intake.Buffer    // the memory of a buffered body
	// Unencoded says that encoders were to encode the request, and that one has failed.
	Unencoded bool

	legs    *Legs
	request *http.Request
	cancel  context.CancelCauseFunc
	span    trace.Span

	state   State
	handoff pending
	// unreferenced is the request with its images, while the legs get one with references in place of them; nil: they do not.
	unreferenced *intake.Request
	prefilled    func()           // called when a prefill leg has succeeded
	target       string           // of the last prefill leg
	source       transport.Engine // of the last prefill leg of a serial protocol
	hedge        hedge            // a second prefill leg at the same time
	spent        []int            // candidates that have failed this request, by their index in the header
	record       *Record          // nil: none is kept
	releaseWay   string           // of the hand-off
	ongoing      continued        // nil: the answer does not go on elsewhere
	moved        atomic.Bool      // another engine has gone on with the answer
	anew         *anew            // nil: no other engine answers the request
	answering    pd.Target        // the other engine that answers; zero: none
	failed       []pd.Target      // the other engines that have failed the request, and do not get it again
	lendless     bool             // the local engine did not hand over what it has of the prompt
}

// State is how far an exchange has come.
type State uint8

const (
	received   State = iota // its request is being read
	encoding                // encoder legs are under way
	prefilling              // a prefill leg is under way
	handedOff               // prefill has finished: the lease runs, and decode does not know of the hand-off
	decoding                // a decode leg is under way, and nothing has gone to the client
	streaming               // the answer is going to the client
)

// String returns the name that logs have.
func (s State) String() string {
	return [...]string{"received", "encoding", "prefilling", "handed-off", "decoding", "streaming"}[s]
}

var (
	// errCut is the cause of a context that ended because the drain deadline passed.
	errCut = errors.New("the sidecar was shut down before the answer was complete")
	// errAnswered ends an exchange that has its answer.
	errAnswered = errors.New("answered")
	// errClientLeft means that no answer can be sent.
	errClientLeft = errors.New("client left")
)

// statusClientLeft stands in metrics for a request whose client left before an answer, as in nginx's log.
const statusClientLeft = 499

// Begin makes the exchange of a call that arrived at start, and paces its body. The caller must call Close.
func (legs *Legs) Begin(w http.ResponseWriter, r *http.Request, api pd.API, start time.Time) *Exchange {
	x := &Exchange{legs: legs, request: r, Client: relay.Client{Writer: w, Pause: legs.AnswerPause, API: api, ID: transport.RequestID(r.Header), TE: r.Header["Te"], Log: legs.Log, Aborted: legs.aborted,
		Report: relay.Report{Clock: pd.StartPhaseClock(start), Usage: body.NoUsage}}}
	x.Exchange, x.prefilled = x, func() {}
	ctx, span := legs.tracing.request(r, api, start)
	x.span = span
	x.Context, x.cancel = context.WithCancelCause(ctx)
	x.ITL, x.Trace = legs.Metrics.ITL, exemplar(span)
	if legs.Record {
		x.record = newRecord(x.ID, start)
	}
	w.Header().Set("X-Request-Id", x.ID)
	x.Body.Begin(x.Context, w, r, legs.Intake.BodyPause)
	return x
}

// End ends the hand-off and the trace of an exchange that has been answered, and returns its phases. It must be called
// before Close.
func (x *Exchange) End() *pd.Phases {
	x.endOngoing()
	x.handoff.hold.End()
	phases := x.Clock.Stop(time.Now())
	x.endSpan(phases)
	return phases
}

// Close ends the pacing of the body, and the exchange's context.
func (x *Exchange) Close() {
	x.Body.End()
	x.cancel(nil)
}

// State returns how far the exchange has come.
func (x *Exchange) State() State { return x.state }

// Target returns the prefill pod that was tried last, also if it failed; "" if none was.
func (x *Exchange) Target() string { return x.target }

// SetRoute sets the route of the call, and with it the decision that was planned.
func (x *Exchange) SetRoute(route intake.Route) {
	x.Route = route
	x.Plan, x.Rename = route.Plan, route.Rename
	x.decide(route.Verdict, route.Reason)
}

// Split serves a call that was planned remote, whose body is buffered, with both legs. A request that no hand-off can carry
// goes to the local engine. Errors are for Fail.
func (x *Exchange) Split(req *intake.Request) error {
	x.mayAskAnew(req)
	return x.orAnew(x.split(req))
}

func (x *Exchange) split(req *intake.Request) error {
	fit, choices := req.Fit, 1
	if !req.AsIs {
		fit, choices = dialect.Fit(x.legs.Dialect, req.Request)
	}
	switch fit {
	case request.FitDoubted:
		// The engine's own error is the best answer, so even a strict plan gets it.
		x.decide(pd.Local, pd.NotSplittable)
		return x.bufferedLocal(req)
	case request.FitLocal:
		return x.unsplittable(func() error { return x.encodedLocal(req) })
	}
	return x.remote(req, choices)
}

// remote runs both legs, for each of the choices if there are several.
func (x *Exchange) remote(req *intake.Request, choices int) error {
	if err := x.legs.checkLocal(x.Context); err != nil {
		x.Failure = err
		return x.redoLocal(req, pd.WrongProtocol)
	}
	var reason pd.Reason
	var err error
	if choices > 1 {
		reason, err = x.runChoices(req, choices)
	} else {
		reason, err = x.encodeAndRun(req)
	}
	if err != nil || reason == "" {
		return err
	}
	return x.redoLocal(req, reason)
}

// encodeAndRun runs encoder legs if the route asks for them, and then both legs. Its results are those of tryCandidates.
func (x *Exchange) encodeAndRun(req *intake.Request) (pd.Reason, error) {
	req, err := x.withEncodings(req)
	if err != nil {
		return "", err
	}
	return x.run(req)
}

// run runs both legs, in the order of the dialect's shape. Its results are those of tryCandidates.
func (x *Exchange) run(req *intake.Request) (pd.Reason, error) {
	if x.legs.Dialect.Shape() == dialect.Concurrent {
		return x.runConcurrent(req)
	}
	return x.runSerial(req)
}

// unsplittable serves a request that no hand-off can carry, unless it must not be local.
func (x *Exchange) unsplittable(serve func() error) error {
	if x.Route.Strict {
		return pd.Refuse(pd.NotSplittable, "Prefill on another pod was forced, but this request cannot be split: "+
			"it needs one prompt, one choice, no prompt log probabilities, and nothing that only one engine has.")
	}
	x.decide(pd.Local, pd.NotSplittable)
	return serve()
}

// redoLocal prefills on the local engine what was planned remote. A wrong setting takes nothing of the budget, which is for failures
// that pass: it would refuse nearly all requests.
func (x *Exchange) redoLocal(req *intake.Request, reason pd.Reason) error {
	if x.Route.Strict {
		return pd.Refuse(pd.PrefillFailed, "Prefill on another pod was forced, and it failed (%s).", reason)
	}
	if err := x.reachLocalEngine(); err != nil {
		return err // a request that cannot be served takes nothing of the budget
	}
	x.Decision.Reason = reason
	if err := x.alone(); err != nil {
		return err
	}
	if reason != pd.WrongProtocol && !x.replans() && !x.legs.Budget.Take() {
		return intake.OverBudget(reason)
	}
	x.decide(pd.Local, reason)
	return x.bufferedLocal(req)
}

// replans reports whether a request is prefilled locally without taking from the budget: the picker sends no plan, so it reads no
// results, and it named only pods that are down or hang. Tandem's picker would have planned such a request local itself. The budget
// would refuse all but a tenth of those requests until the cluster tells that picker of the pods' end.
func (x *Exchange) replans() bool {
	up := func(t pd.Target) bool { return !x.legs.down.has(t) && !x.legs.hung.has(t) }
	return x.Plan == nil && x.legs.Budget.Burst() >= 1 && !slices.ContainsFunc(x.Route.Targets, up)
}

func (x *Exchange) decide(v pd.Verdict, r pd.Reason) { x.Decision.Verdict, x.Decision.Reason = v, r }

// IntakeError returns the error of a call whose body could not be read, for Fail.
func (x *Exchange) IntakeError(err error) error {
	if errors.Is(err, intake.ErrClientLeft) {
		return x.contextError()
	}
	return err
}

// cutOff reports whether the exchange's context ended because the drain deadline passed, and not because the client left.
func (x *Exchange) cutOff() bool { return context.Cause(x.Context) == errCut }

// contextError returns the error of an exchange whose context has ended before its answer began.
func (x *Exchange) contextError() error {
	if x.cutOff() {
		return Draining()
	}
	if refusal := x.Body.LateRefusal(); refusal != nil {
		return refusal
	}
	return errClientLeft
}

// Draining is the refusal of a call because the sidecar is shutting down.
func Draining() *pd.Refusal {
	return pd.Refuse(pd.Draining, "This sidecar is shutting down. Try again; another one will answer.")
}

// Fail ends an exchange whose answer has not begun, because of err. For a client that left it aborts the connection, by
// panicking with http.ErrAbortHandler: a client that half-closed its connection can still read, and would take an empty
// response for a 200.
func (x *Exchange) Fail(err error) {
	switch {
	case errors.Is(err, errAnswered):
	case errors.Is(err, errClientLeft):
		x.Failure = err
		x.Status = statusClientLeft
		panic(http.ErrAbortHandler)
	default:
		refusal := pd.AsRefusal(err)
		if refusal.Reason == pd.DeniedTarget {
			x.legs.denials.Warn("prefill target denied", "request_id", x.ID, "client", x.request.RemoteAddr, "error", refusal.Cause)
		}
		x.tellPods()
		x.Refuse(refusal)
	}
}

// Committed implements relay.Exchange.
func (x *Exchange) Committed() {
	x.Buffer.Drop()
	x.state = streaming
	x.tellPods()
}

// Interrupted implements relay.Exchange.
func (x *Exchange) Interrupted() error {
	switch {
	case x.state != streaming:
		return x.contextError()
	case x.cutOff():
		return Draining()
	}
	return errClientLeft
}

var errUnfinished = errors.New("the engine was stopped before it had finished this answer")

// CheckWhole implements relay.Exchange: an engine that is being stopped cuts some of its answers short.
func (x *Exchange) CheckWhole(answer []byte) error {
	if u, ok := x.legs.Dialect.(dialect.Unfinisher); ok && u.Unfinished(answer) && x.dying(abortMoment) {
		return errUnfinished
	}
	return nil
}

// legHeader makes the headers of one leg.
func (x *Exchange) legHeader() http.Header { return x.legs.Stripped.LegHeader(x.request.Header, x.ID) }

// rename gives an answer the client's name of the model.
func (x *Exchange) rename(resp *http.Response) {
	if err := x.RenameModel(resp); err != nil {
		x.legs.warnings.Warn(err.Error(), "request_id", x.ID)
	}
}

// cutGrace is how long a client gets to take the end of an answer that the drain deadline cut: a client that reads takes it
// at once, but a prefill leg has to be hung up on before there is one.
const cutGrace = hangupDelay + hangupGrace + time.Second

// Cut ends the exchange from another goroutine, because the drain deadline has passed. A client that neither sends nor
// reads must not delay the shutdown. The caller makes sure that the exchange's handler has not returned.
func (x *Exchange) Cut() {
	x.cancel(errCut)
	c := http.NewResponseController(x.Writer)
	for _, err := range []error{c.SetReadDeadline(time.Now()), c.SetWriteDeadline(time.Now().Add(cutGrace))} {
		if err != nil {
			x.legs.Log.Debug("cutting a request", "request_id", x.ID, "error", err)
		}
	}
}
