package handoff

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/lease"
)

// hedger decides when a prefill leg that is late gets a second one, to another candidate. The first of both to answer is used, and the
// other ends. A nil hedger never does.
//
// A leg is late when it takes longer than 95 of 100 recent ones to the same pod that succeeded, for bodies of about the same size. So a
// pod that is always slow is not hedged for long: its load is the picker's to move. What hedging helps against is a pod that is slow at times.
//
// By that measure one leg in twenty is late although nothing is wrong, which is more than the budget allows. So the last part of the budget
// is for legs that take much longer. The budget begins empty: second legs never are more than their share of the legs so far.
type hedger struct {
	budget *pd.FallbackBudget

	mu   sync.Mutex // guards pods
	pods map[pd.Target]*recentPrefills
}

const (
	// hedgeBurst is how many second legs may be sent in a row, before the share of requests limits them.
	hedgeBurst = 4
	// hedgeReserve is how many of these are for legs that take veryLate times as long as one that is late.
	hedgeReserve = 2
	veryLate     = 4
	// fewPrefills are too few to know which leg is late.
	fewPrefills = 20
	// leastHedgeDelay is the shortest time after which a leg is late. Below it there is nothing to win: a second one has to be sent too.
	leastHedgeDelay = 10 * time.Millisecond
	// maxHedged bounds how many pods are known. Where no shared secret is required, clients may name any address that is allowed.
	maxHedged = 256
)

// The results of hedging, as metric labels.
const (
	hedgeWon    = "won"    // the second leg was the first to answer
	hedgeLost   = "lost"   // the first leg was
	hedgeFailed = "failed" // both failed
	hedgeBudget = "budget" // no second leg was sent, because too many have been
)

func newHedger(ratio float64) *hedger {
	if ratio == 0 {
		return nil
	}
	return &hedger{budget: pd.NewEarnedBudget(ratio, hedgeBurst), pods: map[pd.Target]*recentPrefills{}}
}

// recentPrefills are the last prefill legs to one pod that succeeded.
type recentPrefills struct {
	legs [128]struct {
		size int64 // of the client's body, in bytes
		took time.Duration
	}
	n int // of all
}

// learn notes how long a leg took, and adds its share to the budget. What a leg would have taken that was ended is not known.
func (h *hedger) learn(g *prefillLeg) {
	if h == nil {
		return
	}
	h.budget.Earn()
	if g.err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.pods[g.target]
	if r == nil {
		if len(h.pods) >= maxHedged {
			clear(h.pods)
		}
		r = &recentPrefills{}
		h.pods[g.target] = r
	}
	last := &r.legs[r.n%len(r.legs)]
	last.size, last.took = g.size, g.ended.Sub(g.sent)
	r.n++
}

// late returns after which time a leg to a pod is late whose body has this many bytes. ok is false if that is not known.
func (h *hedger) late(at pd.Target, size int64) (after time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.pods[at]
	if r == nil {
		return 0, false
	}
	var alike [len(r.legs)]time.Duration
	n := 0
	for _, g := range r.legs[:min(r.n, len(r.legs))] {
		if g.size >= size/2 && g.size <= size*2 {
			alike[n] = g.took
			n++
		}
	}
	if n < fewPrefills {
		return 0, false
	}
	slices.Sort(alike[:n])
	return max(alike[n*95/100], leastHedgeDelay), true
}

// hedge is the second prefill leg of an exchange.
type hedge struct {
	tried pd.Target // where it was sent; zero: there was none
	won   bool      // its hand-off is used
}

// hedgeDelay returns after which time the leg to a candidate gets a second one. ok is false if it gets none.
func (x *Exchange) hedgeDelay(req *intake.Request, target pd.Target) (delay time.Duration, ok bool) {
	if x.legs.hedges == nil || x.hedge.tried != (pd.Target{}) || x.unreferenced != nil || x.hedgeCandidate(target) < 0 {
		return 0, false
	}
	return x.legs.hedges.late(target, req.Body.Len())
}

// hedgeCandidate returns the index of the candidate after target that may get a second leg, -1 if there is none.
func (x *Exchange) hedgeCandidate(target pd.Target) int {
	targets := x.Route.Targets
	for i := slices.Index(targets, target) + 1; i < len(targets); i++ {
		if t := targets[i]; t != target && !x.legs.down.has(t) && !x.legs.hung.has(t) && !x.legs.rerouting.has(t) && !slices.Contains(x.spent, x.Route.Candidate(i)) {
			return i
		}
	}
	return -1
}

// runHedged runs a leg, and a second one from delay on. It returns the one to go on with: one that succeeded or whose failure is final,
// else the first.
func (x *Exchange) runHedged(req *intake.Request, first *prefillLeg, delay time.Duration) *prefillLeg {
	ended := make(chan *prefillLeg, 2)
	x.legs.work.Go(func() {
		first.run(x.legs)
		ended <- first
	})
	if !x.awaitLate(first.target, delay, ended) {
		return <-ended
	}
	second := x.newHedge(req, first.target)
	if second == nil {
		return <-ended
	}
	x.legs.work.Go(func() {
		if second.err = x.legs.checkPrefill(second.client, second.target); second.err != nil {
			second.err, second.ended = wrongProtocol(second.err), time.Now()
		} else {
			second.run(x.legs)
		}
		ended <- second
	})
	return x.awaitEither(first, second, ended)
}

// awaitLate waits until a leg is late and the budget allows a second one, which it takes from the budget. It returns false once the leg has
// ended, whose result is then in ended, or if it gets no second one.
func (x *Exchange) awaitLate(target pd.Target, delay time.Duration, ended chan *prefillLeg) bool {
	late := time.NewTimer(delay)
	defer late.Stop()
	for _, reserve := range []int{hedgeReserve, 0} {
		select {
		case first := <-ended:
			ended <- first
			if reserve == 0 {
				x.legs.Metrics.Hedges.WithLabelValues(hedgeBudget).Inc()
			}
			return false
		case <-x.Context.Done(): // the client has left: the leg ends soon
			return false
		case <-late.C:
		}
		if x.hedgeCandidate(target) < 0 {
			return false
		}
		if x.legs.hedges.budget.TakeLeaving(reserve) {
			return true
		}
		late.Reset((veryLate - 1) * delay)
	}
	x.legs.Metrics.Hedges.WithLabelValues(hedgeBudget).Inc()
	return false
}

// newHedge makes the second leg. It returns nil if there is to be none.
func (x *Exchange) newHedge(req *intake.Request, first pd.Target) *prefillLeg {
	i := x.hedgeCandidate(first)
	if i < 0 {
		return nil
	}
	second, err := x.newPrefillLeg(req, x.Route.Targets[i], x.Route.Candidate(i), false)
	if err != nil {
		return nil // the first leg was made of the same request: it has this error if it matters
	}
	x.hedge.tried = second.target
	return second
}

// awaitEither waits for the first of two legs to succeed, and ends the other. If both fail it returns the first one.
func (x *Exchange) awaitEither(first, second *prefillLeg, ended <-chan *prefillLeg) *prefillLeg {
	decided := func(g *prefillLeg) bool {
		var refused *ClientError
		return g.err == nil || errors.As(g.err, &refused) || errors.Is(g.err, dialect.ErrEnded)
	}
	g, other := <-ended, second
	if g == second {
		other = first
	}
	if decided(g) {
		x.overtake(other, ended)
	} else if <-ended; decided(other) {
		x.hedgeFails(g)
		g = other
	} else {
		x.legs.Metrics.Hedges.WithLabelValues(hedgeFailed).Inc()
		x.hedgeFails(second)
		return first
	}
	result := hedgeLost
	if g == second {
		result, x.hedge.won = hedgeWon, true
		x.legs.down.tried(g.target, nil)
	}
	x.legs.Metrics.Hedges.WithLabelValues(result).Inc()
	return g
}

// hedgeFails notes the failure of one of two legs, with which the exchange does not end.
func (x *Exchange) hedgeFails(g *prefillLeg) {
	x.prefillEnded(g)
	var failed *prefillError
	if x.Context.Err() != nil || !errors.As(g.err, &failed) {
		return
	}
	x.spent = append(x.spent, g.candidate)
	x.legs.down.tried(g.target, failed)
	x.noteRetry(failed, g.target)
}

// errOvertaken is why a prefill leg ended although nothing had failed.
var errOvertaken = errors.New("ended, because another prefill pod was faster")

// overtake ends a leg that is not needed, and releases its hand-off if there is one nonetheless, and what the local engine has lent to it if
// that was not read. It does not wait for that.
func (x *Exchange) overtake(g *prefillLeg, ended <-chan *prefillLeg) {
	x.record.leg("prefill", g.name, g.sent, time.Now(), 0, errOvertaken)
	x.endLegSpan(g.span, 0, errOvertaken)
	id, header, record := x.ID, x.legHeader(), x.record
	ctx := context.WithoutCancel(x.Context)
	begin := func(of dialect.Handoff, hold *lease.Hold) releasing {
		_, span := x.legs.tracing.tracer.Start(ctx, spanRelease, clientSpan)
		return releasing{id, of, hold, header.Clone(), span, record}
	}
	g.hangup.hangUp()
	x.legs.background(func() {
		<-ended
		if x.legs.unread(g, id) {
			x.legs.releaseLent(begin(g.lent.of, g.lent.hold), g.engine)
		}
		switch {
		case pinned(g.of):
			x.legs.releaseUnread(begin(g.of, x.legs.hold(g.of, g.ended)))
		case g.err != nil && g.status == http.StatusOK && !errors.Is(g.err, dialect.ErrNoHandoff):
			x.legs.Metrics.Stranded.Inc()
		}
	})
}
