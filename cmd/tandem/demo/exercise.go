package demo

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/epp"
)

// clients is the number of concurrent clients after the first round.
const clients = 6

// exchange is one question with both answers and the reports on it.
type exchange struct {
	question
	start     time.Time
	foretold  *epp.Explanation // the picker's explanation, right before the question was sent
	answer    answer
	failure   error  // why there is no complete answer
	alone     *pulls // KV pulled during it, if no other request ran
	traced    traced
	reference answer
}

// pulls counts the KV that decode engines have pulled from prefill engines.
type pulls struct {
	bytes  int64
	tokens int64 // prompt tokens that came from another engine
}

func (p pulls) since(before pulls) *pulls {
	return &pulls{p.bytes - before.bytes, p.tokens - before.tokens}
}

// evidence is everything that the demo observed.
type evidence struct {
	engine     *engine
	stack      []string // description of the stack
	started    time.Time
	exchanges  []exchange // in the order they were sent
	load       []report.LoadSample
	accounts   []account // of all engines but the reference, at the end
	pulled     pulls
	lost       lostLeg
	blockBytes int64
	compared   *comparison // nil: not measured
	ended      error       // how the programs ended
}

// exercise sends all requests: the first round one after the other, so that the pulled KV can be attributed to requests,
// then all others concurrently. After them it sends the same to the reference, and last makes a decode leg fail.
func (s *stage) exercise(ctx context.Context, rounds [][]thread, line *progress) (seen evidence, err error) {
	seen = evidence{engine: s.engine, stack: s.describe(), started: time.Now(), blockBytes: s.blockBytes}
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
	line.say("sending the same requests to the reference engine …")
	if err := s.compare(ctx, seen.exchanges); err != nil {
		return seen, err
	}
	if seen.accounts, err = s.settleAll(ctx); err != nil {
		return seen, err
	}
	if seen.pulled, err = s.pulls(ctx); err != nil {
		return seen, err
	}
	line.say("making a decode leg fail …")
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

// runner sends threads and collects the exchanges.
type runner struct {
	stage *stage
	line  *progress
	mu    sync.Mutex
	done  []exchange
}

// run sends threads, as many concurrently as there are workers. The error is one of the demo itself.
func (r *runner) run(ctx context.Context, threads []thread, workers int) error {
	return inParallel(ctx, workers, len(threads), func(ctx context.Context, i int) error {
		return r.follow(ctx, &threads[i], workers == 1)
	})
}

// inParallel calls do n times, with several workers, until one call fails.
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

// follow sends the turns of a thread, each with the history before it.
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

// send sends a question to the stack. A failed answer is part of the report; the error is one of the demo itself.
func (s *stage) send(ctx context.Context, t turn, history []message, alone bool, line *progress) (x exchange, err error) {
	if x.question, err = t.ask(s.engine, history); err != nil {
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

// compare sends the same requests to the reference.
func (s *stage) compare(ctx context.Context, all []exchange) error {
	return inParallel(ctx, clients, len(all), func(ctx context.Context, i int) (err error) {
		all[i].reference, err = s.ask(ctx, s.reference, &all[i].question, false)
		return err
	})
}
