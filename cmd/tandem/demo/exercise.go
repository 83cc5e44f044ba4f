package demo

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/sim"
)

// clients is how many send at once, after the first round.
const clients = 6

// exchange is one question, both answers, and what was told of it.
type exchange struct {
	question
	start     time.Time
	foretold  *epp.Explanation // by the picker, right before the question was sent
	answer    answer
	failure   error  // why there is no whole answer
	alone     *pulls // during it, if no other request ran
	reference answer
}

// pulls counts the KV that decode engines have read from prefill engines.
type pulls struct {
	bytes  int64
	tokens int64 // of prompts, that the engines did not compute but got from another one
}

func (p pulls) since(before pulls) *pulls {
	return &pulls{p.bytes - before.bytes, p.tokens - before.tokens}
}

// evidence is all that the demo saw.
type evidence struct {
	stack      []string // what ran
	started    time.Time
	exchanges  []exchange // in the order they were sent
	load       []report.LoadSample
	engines    []sim.State // of all but the reference, at the end
	pulled     pulls
	lost       lostLeg
	blockBytes int64
	ended      error // how the programs ended
}

// exercise asks everything: the first round one after the other, so that the KV that moves can be told by request, then all
// others at once. The reference comes when it takes no time from anybody. Last of all, a decode leg is made to fail.
func (s *stage) exercise(ctx context.Context, rounds [][]thread, line *progress) (seen evidence, err error) {
	seen = evidence{stack: s.describe(), started: time.Now(), blockBytes: s.blockBytes}
	line.total = count(rounds)
	watch := s.watch(ctx, seen.started, line)
	r := runner{stage: s, line: line}
	if err = r.run(ctx, rounds[0], 1); err == nil {
		err = r.run(ctx, slices.Concat(rounds[1:]...), clients)
	}
	if seen.load, err = watch.end(err); err != nil {
		return seen, err
	}
	seen.exchanges = r.done
	slices.SortFunc(seen.exchanges, func(a, b exchange) int { return a.start.Compare(b.start) })
	line.say("asking the undisturbed engine the same …")
	if err := s.compare(ctx, seen.exchanges); err != nil {
		return seen, err
	}
	if seen.engines, err = s.settleAll(ctx); err != nil {
		return seen, err
	}
	if seen.pulled, err = s.pulls(ctx); err != nil {
		return seen, err
	}
	line.say("having a decode leg fail …")
	seen.lost, err = s.lose(ctx)
	return seen, err
}

func count(rounds [][]thread) (n int) {
	for _, round := range rounds {
		for _, t := range round {
			n += len(t.turns)
		}
	}
	return n
}

// runner sends threads and collects what comes of them.
type runner struct {
	stage *stage
	line  *progress
	mu    sync.Mutex
	done  []exchange
}

// run sends threads, as many at once as there are workers. The error is that of the demo.
func (r *runner) run(ctx context.Context, threads []thread, workers int) error {
	return inParallel(ctx, workers, len(threads), func(ctx context.Context, i int) error {
		return r.follow(ctx, &threads[i], workers == 1)
	})
}

// inParallel does n things, some at once, until one fails.
func inParallel(ctx context.Context, workers, n int, do func(ctx context.Context, i int) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	next := make(chan int)
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					fail(err)
				}
			}
		})
	}
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	working.Wait()
	return context.Cause(ctx)
}

// follow sends the turns of a thread, each with what was said before.
func (r *runner) follow(ctx context.Context, t *thread, alone bool) error {
	var history []message
	if t.system != "" {
		history = append(history, message{"system", t.system})
	}
	for _, turn := range t.turns {
		x, err := r.stage.send(ctx, turn, history, alone, r.line)
		if err != nil {
			return err
		}
		history = append(history, message{"user", turn.words}, message{"assistant", x.answer.text})
		r.mu.Lock()
		r.done = append(r.done, x)
		r.mu.Unlock()
	}
	return nil
}

// send asks the stack. An answer that fails is something to report; the error is that of the demo.
func (s *stage) send(ctx context.Context, t turn, history []message, alone bool, line *progress) (x exchange, err error) {
	if x.question, err = t.ask(history); err != nil {
		return x, err
	}
	if x.foretold, err = s.explain(ctx, &x.question); err != nil {
		return x, err
	}
	var before pulls
	if alone {
		if before, err = s.pulls(ctx); err != nil {
			return x, err
		}
	}
	x.start = time.Now()
	line.began()
	x.answer, x.failure = s.ask(ctx, s.proxy, &x.question, true)
	line.ended(&x)
	if alone {
		after, err := s.pulls(ctx)
		if err != nil {
			return x, err
		}
		x.alone = after.since(before)
	}
	return x, nil
}

// compare asks the reference what the stack was asked.
func (s *stage) compare(ctx context.Context, all []exchange) error {
	return inParallel(ctx, clients, len(all), func(ctx context.Context, i int) (err error) {
		all[i].reference, err = s.ask(ctx, s.reference, &all[i].question, false)
		return err
	})
}
