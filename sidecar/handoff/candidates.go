package handoff

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/intake"
)

// prefillError says why one prefill leg gave no hand-off.
type prefillError struct {
	cause  string // metric label
	reason pd.Reason
	again  bool // a second try at the same candidate may succeed
	err    error
}

// errDown is the error of a request whose candidates were not tried.
var errDown = errors.New("every prefill candidate is down")

func (e *prefillError) Error() string { return fmt.Sprintf("%s: %v", e.cause, e.err) }
func (e *prefillError) Unwrap() error { return e.err }

// ClientError is a prefill engine's answer that blames the client: another engine would answer the same.
type ClientError struct {
	Status int
	header http.Header
	body   []byte
}

// Error implements error.
func (e *ClientError) Error() string {
	return fmt.Sprintf("prefill refused the request with %d", e.Status)
}

// attempt tries one prefill candidate, the i-th of the request's header. A *prefillError or *ClientError says that the
// prefill leg failed before anything went to the client; the other results are those of tryCandidates.
type attempt func(x *Exchange, req *intake.Request, target pd.Target, candidate int) (pd.Reason, error)

// tryCandidates tries the candidates in order, and each one up to MaxRetries times again if its failure may pass. Those that are
// down, that hang, or that decode does not find, come last if the request must be prefilled remotely, else they are left out. Those
// that have failed the request before are not tried again. After dialect.ErrEnded no other is tried, because the request would end
// there likewise. With reason "" an attempt succeeded. Another reason says that nothing has gone to the client, and that the request
// should be prefilled locally. The error is final.
func (x *Exchange) tryCandidates(req *intake.Request, try attempt) (pd.Reason, error) {
	last := &prefillError{cause: "down", reason: pd.PrefillFailed, err: errDown}
	targets := x.Route.Targets
	var late []int // candidates that are down: one may be back
	for n := 0; n < len(targets)+len(late); n++ {
		i := n
		if n >= len(targets) {
			i = late[n-len(targets)]
		}
		target, candidate := targets[i], x.Route.Candidate(i)
		switch {
		case x.hedge.tried == target, slices.Contains(x.spent, candidate):
			continue
		case n >= len(targets):
			x.legs.hung.askAgain(x.Context, target)
		case x.legs.down.skip(target), x.legs.hung.has(target), x.legs.rerouting.has(target):
			if x.Route.Strict {
				late = append(late, i)
			}
			continue
		}
		for tried := 0; ; tried++ {
			if err := x.reachLocalEngine(); err != nil {
				return "", err
			}
			reason, err := x.tryEngine(try, req, target, candidate)
			var refused *ClientError
			switch {
			case err == nil, errors.Is(err, errAnswered):
				if !x.hedge.won {
					x.legs.down.tried(target, nil)
				}
				// Before the check of the context: if the client has left meanwhile, the caller must release the hand-off.
				return reason, err
			case x.Context.Err() != nil:
				return "", x.contextError()
			case errors.As(err, &refused) && x.unreferenced != nil:
				last = &prefillError{cause: "references", reason: pd.PrefillFailed, err: refused}
			case errors.As(err, &refused):
				return x.refusedByPrefill(req, refused)
			case !errors.As(err, &last):
				return "", err
			}
			if x.unreferenced != nil { // an engine that does not find what a reference names may have died of it
				req, x.unreferenced = x.unreferenced, nil
			}
			x.legs.down.tried(target, last)
			again := last.again && tried < x.legs.MaxRetries && !x.legs.down.has(target)
			x.noteRetry(last, target)
			if errors.Is(err, dialect.ErrEnded) {
				x.Failure = last
				return last.reason, nil
			}
			if !again {
				x.spent = append(x.spent, candidate)
				break
			}
			if err := x.pause(x.legs.RetryBackoff); err != nil {
				return "", err
			}
		}
	}
	x.Failure = last
	return last.reason, nil
}

// another reports whether a request is tried with another candidate, now that decode could not use the hand-off of the last one: if
// it must be prefilled remotely, and one is left. The prompt is computed once more, which takes from the budget as local prefill does.
func (x *Exchange) another() bool {
	if !x.Route.Strict {
		return false
	}
	x.spent = append(x.spent, x.Decision.Candidate)
	for i := range x.Route.Targets {
		if !slices.Contains(x.spent, x.Route.Candidate(i)) {
			return x.reachLocalEngine() != nil || x.legs.Budget.Take() // with that error the next try ends, and takes nothing
		}
	}
	return false
}

// useRanks tells an attempt at a candidate the data-parallel ranks that the plan names.
func (x *Exchange) useRanks(a dialect.Attempt, candidate int) {
	ranked, ok := a.(dialect.Ranked)
	if !ok || x.Route.Plan == nil {
		return
	}
	var prefill pd.Rank
	if candidate < len(x.Route.Plan.PrefillRanks) {
		prefill = x.Route.Plan.PrefillRanks[candidate]
	}
	ranked.UseRanks(prefill, x.Route.Plan.DecodeRank)
}

func (x *Exchange) noteRetry(e *prefillError, target pd.Target) {
	x.legs.Metrics.Retries.WithLabelValues("prefill", e.cause).Inc()
	x.legs.Metrics.Links.Unread(target.String(), linkPrefill)
	x.legs.warnings.Warn("prefill leg failed", "request_id", x.ID, "target", target.String(), "cause", e.cause, "error", e.err)
}

// refusedByPrefill passes the engine's error on to the client, unless our own changes to the request may have caused it, or the
// generate API, which vLLM serves only if it is told to, is off at that engine.
func (x *Exchange) refusedByPrefill(req *intake.Request, refused *ClientError) (pd.Reason, error) {
	_, limits := x.legs.Dialect.(dialect.LimitKeeper)
	if !limits && req.NeedsMoreThanOne() || req.API == pd.APIGenerate && refused.Status == http.StatusForbidden {
		return pd.PrefillFailed, nil
	}
	x.decide(pd.Refused, pd.BadRequest)
	x.Failure = refused
	x.SendBytes(refused.Status, refused.header, refused.body)
	return "", errAnswered
}

// pause waits for d, or until the exchange's context ends.
func (x *Exchange) pause(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-x.Context.Done():
		return x.contextError()
	}
}
