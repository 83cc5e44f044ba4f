package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim/fault"
)

// lostClass is a request that is prefilled remotely, and whose decode leg then fails.
var lostClass = class{"long, decode leg failed", pd.APICompletions, false, pd.ModeAuto, many, nil}

// lostLeg is the result of that request.
type lostLeg struct {
	exchange
	told              int64 // releases that sidecars saw to themselves
	handoffs, expired int64 // as the engines count them
	held              int64 // blocks and requests that engines still hold
}

// lose makes the decode engines refuse the decode leg of one request. What prefill has of it is then for no engine: the sidecar has
// to release it, or it stays until a lease or a time-out expires.
func (s *stage) lose(ctx context.Context) (l lostLeg, err error) {
	before, err := s.look(ctx)
	if err != nil {
		return l, err
	}
	if l.question, err = draw(rand.New(rand.NewPCG(3, 4)), &lostClass).ask(s.engine, nil); err != nil {
		return l, err
	}
	// All decode engines refuse, because the picker chooses one of them. The answer to the client comes from the same one.
	if err := s.setFault(ctx, s.in(roleDecode), fault.Fault{Leg: "decode", Fault: "status", Arg: "500", Count: 1}); err != nil {
		return l, err
	}
	l.answer, l.failure = s.ask(ctx, s.proxy, &l.question, true)
	if l.reference, err = s.ask(ctx, s.reference, &l.question, false); err != nil {
		return l, err
	}
	err = s.count(ctx, &l, before)
	return l, err
}

// count returns the changes since before. An engine may count a release slightly before the sidecar does.
func (s *stage) count(ctx context.Context, l *lostLeg, before lostLeg) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(s.engine.settles); ; {
		after, err := s.look(ctx)
		if err != nil {
			return err
		}
		l.told, l.handoffs = after.told-before.told, after.handoffs-before.handoffs
		l.expired, l.held = after.expired-before.expired, after.held
		if l.told > 0 || time.Now().After(deadline) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// look waits until the engines hold nothing, and returns the counters of engines and sidecars.
func (s *stage) look(ctx context.Context) (l lostLeg, err error) {
	accounts, err := s.settleAll(ctx)
	if err != nil {
		return l, err
	}
	for _, a := range accounts {
		l.handoffs += s.engine.handoffs(&a)
		l.expired += a.Expired
		l.held += int64(a.Blocks.Used + a.Live + a.Deferred + a.Kept)
	}
	for _, sidecar := range s.sidecars {
		page, err := promtext.Get(ctx, s.http, "http://"+sidecar+"/metrics")
		if err != nil {
			return l, fmt.Errorf("reading the releases of a sidecar: %w", err)
		}
		l.told += releasedBySidecar(page, s.engine.release)
	}
	return l, nil
}

// releasedBySidecar returns, from a sidecar's metrics page, how many hand-offs it released in a way.
func releasedBySidecar(page promtext.Page, way string) (n int64) {
	for _, series := range page {
		if series.Name == "tandem_kv_release_total" && series.Labels["way"] == way && series.Labels["result"] == "ok" {
			n += int64(series.Value)
		}
	}
	return n
}

// answered reports whether the client got what the reference answers, and says so in words.
func (l *lostLeg) answered(of *engine) (right bool, words string) {
	right = l.asReference(of)
	return right, map[bool]string{true: "the right tokens", false: "wrong tokens"}[right]
}
