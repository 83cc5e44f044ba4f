package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim/fault"
)

// lostClass is a request that is prefilled remotely, and whose decode leg then fails.
var lostClass = class{"long, decode leg failed", pd.APICompletions, false, pd.ModeAuto, many, nil}

// lostLeg is the result of that request.
type lostLeg struct {
	exchange
	told                    int64 // hand-offs that sidecars released themselves
	released, expired, held int64 // hand-offs, hand-offs and blocks, as the engines count them
}

// lose makes the decode engines refuse the hand-off of one request. No engine will pull the KV then: the sidecar has to
// release the blocks, or they stay pinned until their lease expires.
func (s *stage) lose(ctx context.Context) (l lostLeg, err error) {
	before, err := s.look(ctx)
	if err != nil {
		return l, err
	}
	if l.question, err = draw(rand.New(rand.NewPCG(3, 4)), &lostClass).ask(nil); err != nil {
		return l, err
	}
	// All decode engines refuse, because the picker chooses one of them. The answer to the client comes from the same one,
	// by local prefill.
	if err := s.setFault(ctx, s.decode, fault.Fault{Leg: "decode", Fault: "status", Arg: "500", Count: 1}); err != nil {
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
	for deadline := time.Now().Add(settleTime); ; {
		after, err := s.look(ctx)
		if err != nil {
			return err
		}
		l.told, l.released = after.told-before.told, after.released-before.released
		l.expired, l.held = after.expired-before.expired, after.held
		if l.told >= l.released || time.Now().After(deadline) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// look waits until the engines hold no blocks, and returns the counters of engines and sidecars.
func (s *stage) look(ctx context.Context) (l lostLeg, err error) {
	engines, err := s.settleAll(ctx)
	if err != nil {
		return l, err
	}
	for _, engine := range engines {
		l.released += engine.Released
		l.expired += engine.Expired
		l.held += int64(engine.Blocks.Used)
	}
	for _, sidecar := range s.sidecars {
		page, err := promtext.Get(ctx, s.http, "http://"+sidecar+"/metrics")
		if err != nil {
			return l, fmt.Errorf("reading the releases of a sidecar: %w", err)
		}
		l.told += releasedBySidecar(page)
	}
	return l, nil
}

// releasedBySidecar returns, from a sidecar's metrics page, how many hand-offs it released by notifying the prefill engine.
func releasedBySidecar(page promtext.Page) (n int64) {
	for _, series := range page {
		if series.Name == "tandem_kv_release_total" && series.Labels["way"] == "nixl" && series.Labels["result"] == "ok" {
			n += int64(series.Value)
		}
	}
	return n
}

func (e *evidence) judgeLost() report.Check {
	l := &e.lost
	if l.failure != nil {
		return check(checkLost, false, "its request: %v", l.failure)
	}
	answered := slices.Equal(l.answer.generated, l.reference.generated) && len(l.answer.generated) == l.tokens
	words := map[bool]string{true: "the right tokens", false: "wrong tokens"}[answered]
	returned := l.told == 1 && l.released == 1 && l.expired == 0 && l.held == 0
	passed := answered && l.answer.decision.Reason == pd.TransferFailed && returned
	return check(checkLost, passed, "the answer has %s (%s); hand-offs: %d released, %d of them directly by the sidecar, "+
		"%d expired; %d blocks still held", words, l.answer.decision, l.released, l.told, l.expired, l.held)
}
