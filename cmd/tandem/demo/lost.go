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
	"github.com/tandem-serving/tandem/sim"
)

// lostClass is a request that is prefilled remotely, and whose decode leg then fails.
var lostClass = class{"long, decode leg failed", pd.APICompletions, false, pd.ModeAuto, many, nil}

// lostLeg is what became of it.
type lostLeg struct {
	exchange
	told                    int64 // hand-offs that sidecars gave back themselves
	released, expired, held int64 // hand-offs, hand-offs, blocks: at the engines
}

// lose has a decode engine refuse the hand-off of one request. Nobody will come for the KV then: whether its blocks are free
// before a lease has run out is up to the sidecar.
func (s *stage) lose(ctx context.Context) (l lostLeg, err error) {
	before, err := s.look(ctx)
	if err != nil {
		return l, err
	}
	if l.question, err = draw(rand.New(rand.NewPCG(3, 4)), &lostClass).ask(nil); err != nil {
		return l, err
	}
	// Of all decode engines, since it is the picker's choice which one it meets. The answer comes from the same one.
	if err := s.setFault(ctx, s.decode, sim.Fault{Leg: "decode", Fault: "status", Arg: "500", Count: 1}); err != nil {
		return l, err
	}
	l.answer, l.failure = s.ask(ctx, s.proxy, &l.question, true)
	if l.reference, err = s.ask(ctx, s.reference, &l.question, false); err != nil {
		return l, err
	}
	err = s.count(ctx, &l, before)
	return l, err
}

// count returns what has changed since before. An engine may know a little sooner than the sidecar that it has been told.
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

// look waits until the engines are at rest, and gives what they and the sidecars count.
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
			return l, fmt.Errorf("asking a sidecar what it gave back: %w", err)
		}
		l.told += toldBySidecar(page)
	}
	return l, nil
}

// toldBySidecar finds, on a sidecar's metrics page, how many hand-offs it gave back by telling the prefill engine.
func toldBySidecar(page promtext.Page) (n int64) {
	for _, series := range page {
		if series.Name == "tandem_kv_release_total" && series.Labels["way"] == "nixl" && series.Labels["result"] == "ok" {
			n += int64(series.Value)
		}
	}
	return n
}

func (e *evidence) judgeLost() report.Promise {
	l := &e.lost
	if l.failure != nil {
		return promise(promiseLost, false, "its request: %v", l.failure)
	}
	answered := slices.Equal(l.answer.generated, l.reference.generated) && len(l.answer.generated) == l.tokens
	words := map[bool]string{true: "the right tokens", false: "wrong tokens"}[answered]
	returned := l.told == 1 && l.released == 1 && l.expired == 0 && l.held == 0
	kept := answered && l.answer.decision.Reason == pd.TransferFailed && returned
	return promise(promiseLost, kept, "%s all the same (%s); of 1 hand-off %d given back, %d of them by the sidecar's own word; "+
		"%d expired, %d blocks still held", words, l.answer.decision, l.released, l.told, l.expired, l.held)
}
