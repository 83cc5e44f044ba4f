package handoff

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// protocolList knows which engines speak another hand-off protocol than the sidecar. Such engines fail silently: they ignore what they do
// not know, wait for a leg that never comes, or end. So an engine is asked what it is before it gets its first leg. It is safe for
// concurrent use.
type protocolList struct {
	recognizer dialect.Recognizer // nil: no engine is asked
	untold     bool               // the local engine is tested also if it speaks the protocol
	over       func(transport.Engine, pd.Role) transport.Engine
	now        func() time.Time
	log        *slog.Logger
	open       context.Context // ends the questions
	work       *sync.WaitGroup

	mu      sync.Mutex // guards the rest, with the engines
	engines map[partner]*askedEngine
}

// partner is an engine in a role.
type partner struct {
	role pd.Role
	at   pd.Target
}

// askedEngine is what is known of an engine.
type askedEngine struct {
	wrong  error         // wraps dialect.ErrWrongProtocol; nil: the engine speaks the protocol, or does not tell
	told   bool          // it has answered
	asked  time.Time     // when it was asked last
	again  time.Time     // when it is asked again
	asking bool          // a goroutine asks it
	first  chan struct{} // closed when it was asked for the first time
	alone  dialect.Alone // of the local engine, by its last test that showed it
	tested chan struct{} // closed when the local engine was tested for the first time
	used   time.Time     // when a leg to it was last wanted
}

const (
	// protocolTrust is for how long an engine is taken for what it was: it changes only when another engine is started at its address.
	protocolTrust = 5 * time.Minute
	// protocolDoubt is the same for an engine that speaks another protocol: it may be started anew with another setting.
	protocolDoubt = 10 * time.Second
	// protocolRetry is the time between two questions to an engine that does not answer.
	protocolRetry = time.Second
	// protocolPatience is how long a request waits for an engine to say what it is. One that is busy gets the leg.
	protocolPatience = transport.ProbeTimeout
	// aloneTimeout is how long the local engine has to answer a test, and how long a request waits for its first one: the engine serves the
	// two in this order.
	aloneTimeout = modeTimeout
	// protocolForget is how long an engine is counted that gets no requests: its pod may be gone.
	protocolForget = 10 * time.Minute
	// maxPartners bounds how many engines are remembered. Where no shared secret is required, clients may name any address that is
	// allowed.
	maxPartners = 4096
)

func newProtocolList(c Config, open context.Context, work *sync.WaitGroup) *protocolList {
	l := &protocolList{now: c.Now, log: c.Log, open: open, work: work, engines: map[partner]*askedEngine{}}
	if l.over = c.Ask; l.over != nil {
		l.recognizer, _ = c.Dialect.(dialect.Recognizer)
		l.untold = dialect.Untold(c.Dialect)
	}
	return l
}

// check returns an error that wraps dialect.ErrWrongProtocol if an engine is known to speak another protocol. The first request to an
// engine waits a moment for the answer; others go by the last one.
func (l *protocolList) check(ctx context.Context, p partner, e transport.Engine) error {
	if l.recognizer == nil {
		return nil
	}
	known := l.use(p, e)
	await(ctx, known.first, protocolPatience)
	l.mu.Lock()
	defer l.mu.Unlock()
	if known.told && p.role == pd.RoleDecode && (l.untold || known.wrong != nil) {
		l.mu.Unlock()
		await(ctx, known.tested, aloneTimeout)
		l.mu.Lock()
	}
	return known.wrong
}

// await waits for a channel to be closed, for some time at most.
func await(ctx context.Context, closed <-chan struct{}, patience time.Duration) {
	select {
	case <-closed:
		return
	default:
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// use returns what is known of an engine that a leg is for, and has it asked if that is due.
func (l *protocolList) use(p partner, e transport.Engine) *askedEngine {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	known := l.engines[p]
	if known == nil {
		if len(l.engines) >= maxPartners {
			clear(l.engines)
		}
		known = &askedEngine{first: make(chan struct{}), tested: make(chan struct{})}
		l.engines[p] = known
	}
	known.used = now
	if !known.asking && !now.Before(known.again) && l.open.Err() == nil {
		known.asking = true
		l.work.Go(func() { l.ask(p, e, known) })
	}
	return known
}

// ask asks an engine which protocol it speaks, and tests the local engine.
func (l *protocolList) ask(p partner, e transport.Engine, known *askedEngine) {
	e = l.over(e, p.role)
	get := func(ctx context.Context, path string) (int, []byte, error) { return e.Ask(ctx, path, modeTimeout) }
	err := l.recognizer.Recognize(l.open, get)
	wrong := errors.Is(err, dialect.ErrWrongProtocol)
	if p.role != pd.RoleDecode || !wrong && (err != nil || !l.untold) {
		l.answered(p, known, err, dialect.AloneUnknown)
		return
	}
	l.mu.Lock()
	if err != nil {
		l.note(p, known, err)
	}
	known.told = true
	closeOnce(known.first)
	l.mu.Unlock()
	alone, shown := dialect.TestAlone(l.open, get, func(ctx context.Context, path string, body []byte) (int, []byte, error) {
		return e.Post(ctx, path, body, aloneTimeout)
	})
	if errors.Is(shown, dialect.ErrWrongProtocol) {
		err = shown
	}
	l.answered(p, known, err, alone)
}

// answered notes what an engine has said, and what a test has shown.
func (l *protocolList) answered(p partner, known *askedEngine, err error, alone dialect.Alone) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known.asking, known.asked = false, l.now()
	if alone != dialect.AloneUnknown {
		known.alone = alone
	}
	switch {
	case err == nil:
		known.again = known.asked.Add(protocolTrust)
		l.note(p, known, nil)
	case errors.Is(err, dialect.ErrWrongProtocol):
		known.again = known.asked.Add(protocolDoubt)
		l.note(p, known, err)
	default: // it is taken for what it was
		known.again = known.asked.Add(protocolRetry)
	}
	closeOnce(known.first)
	if known.told {
		closeOnce(known.tested)
	}
}

// closeOnce closes a channel that may be closed. The caller holds a lock that all who close it hold.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// found notes that the answer to a leg has shown that its engine speaks another protocol. It is asked again later: what its pages say
// then counts.
func (l *protocolList) found(p partner, wrong error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.engines[p]; known != nil {
		known.again = l.now().Add(protocolDoubt)
		l.note(p, known, wrong)
	}
}

// note sets what is known of an engine, and logs what is new. The caller holds mu.
func (l *protocolList) note(p partner, known *askedEngine, wrong error) {
	switch {
	case wrong != nil && known.wrong == nil:
		l.log.Error("an engine does not speak the hand-off protocol of this sidecar: requests are served without hand-offs", "role", p.role.String(),
			"engine", p.at.String(), "error", wrong)
	case wrong == nil && known.wrong != nil:
		l.log.Info("an engine speaks the hand-off protocol of this sidecar now", "role", p.role.String(), "engine", p.at.String())
	}
	known.wrong, known.told = wrong, true
}

// doubt has an engine asked again whose leg failed: another one may be at its address.
func (l *protocolList) doubt(p partner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.engines[p]; known != nil {
		if soon := known.asked.Add(protocolRetry); soon.Before(known.again) {
			known.again = soon
		}
	}
}

// mismatches returns how many engines of a role speak another protocol, among those that requests were for lately.
func (l *protocolList) mismatches(role pd.Role) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, known := range l.engines {
		if p.role == role && known.wrong != nil && (role == pd.RoleDecode || l.now().Sub(known.used) < protocolForget) {
			n++
		}
	}
	return n
}

// checkLocal is check for the local engine.
func (legs *Legs) checkLocal(ctx context.Context) error {
	return legs.protocols.check(ctx, legs.local(), legs.Decode)
}

// checkPrefill is check for the engine of a prefill pod.
func (legs *Legs) checkPrefill(ctx context.Context, t pd.Target) error {
	return legs.protocols.check(ctx, partner{pd.RolePrefill, t}, legs.Prefill(t))
}

// aloneBy returns what a test of the local engine has shown.
func (legs *Legs) aloneBy() dialect.Alone {
	l := legs.protocols
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.engines[legs.local()]; known != nil {
		return known.alone
	}
	return dialect.AloneUnknown
}

func (legs *Legs) local() partner { return partner{pd.RoleDecode, legs.localEngine.target} }

// Recognize asks the local engine which protocol it speaks, and tests it, until it answers or ctx ends, so that the log and the metrics
// tell it before there is a request.
func (legs *Legs) Recognize(ctx context.Context) {
	if legs.protocols.recognizer == nil {
		return
	}
	again := time.NewTicker(protocolRetry)
	defer again.Stop()
	for !legs.protocols.hasTold(legs.local(), legs.Decode) {
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// hasTold reports whether an engine has said what it is, and its test is over. If it has not, it is asked.
func (l *protocolList) hasTold(p partner, e transport.Engine) bool {
	known := l.use(p, e)
	l.mu.Lock()
	defer l.mu.Unlock()
	return known.told && !known.asking
}

// Mismatches returns how many engines of a role speak another hand-off protocol than the sidecar.
func (legs *Legs) Mismatches(role pd.Role) int { return legs.protocols.mismatches(role) }

// tryEngine is an attempt at a prefill pod whose engine speaks the protocol.
func (x *Exchange) tryEngine(try attempt, req *intake.Request, target pd.Target, candidate int) (pd.Reason, error) {
	if err := x.legs.checkPrefill(x.Context, target); err != nil {
		return "", wrongProtocol(err)
	}
	reason, err := try(x, req, target, candidate)
	switch at := (partner{pd.RolePrefill, target}); {
	case errors.Is(err, dialect.ErrWrongProtocol):
		x.legs.protocols.found(at, err)
	case unconnected(err):
		x.legs.protocols.doubt(at)
	}
	return reason, err
}

// wrongProtocol is the error of a prefill leg whose engine speaks another protocol.
func wrongProtocol(err error) *prefillError {
	return &prefillError{cause: causeProtocol, reason: pd.WrongProtocol, err: err}
}

// causeProtocol is the cause, in metrics, of a leg that was not sent because its engine speaks another protocol.
const causeProtocol = "protocol"
