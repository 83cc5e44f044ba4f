package fit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/client"
)

// kind is what a row of the table is about.
type kind string

const (
	prefill kind = "prefill"
	decode  kind = "decode"
	mixed   kind = "mixed"
)

// step is what a probe measures.
type step struct {
	kind                kind
	New, Batch, Context int
}

func (s step) String() string {
	switch s.kind {
	case prefill:
		return fmt.Sprintf("a prompt of %d tokens behind %d", s.New, s.Context)
	case decode:
		return fmt.Sprintf("%d answers with %d tokens each", s.Batch, s.Context)
	}
	return fmt.Sprintf("a prompt of %d tokens beside %d answers with %d each", s.New, s.Batch, s.Context)
}

// The ids of random prompts: every vocabulary has them, and in none of them are they special, but for the first ones.
const firstID, lastID = 32, 255

// prompt returns random token ids. The id before and after are other ones, so that no two blocks are equal.
func (r *runner) prompt(n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = firstID + r.random.IntN(lastID-firstID+1)
	}
	return ids
}

// send sends a prompt for an answer of so many tokens.
func (r *runner) send(ctx context.Context, prompt []int, tokens int, first func()) *client.Answer {
	return r.engine.Send(ctx, client.Request{Body: r.engine.TokensBody(prompt, tokens), First: first})
}

// alone returns the time to the first token of a prompt that is alone, and how many of its tokens were cached.
func (r *runner) alone(ctx context.Context, prompt []int) (ms float64, cached int, err error) {
	a := r.send(ctx, prompt, 1, nil)
	if a.Failure != nil {
		return 0, 0, failed(fmt.Sprintf("a prompt of %d tokens", len(prompt)), a.Failure)
	}
	return millis(a.First.Sub(a.Sent)), int(a.Cached), nil
}

// prefill measures a prompt behind a context, in ms, with what every request takes besides.
func (r *runner) prefill(ctx context.Context, s step) ([]float64, error) {
	before := r.prompt(s.Context)
	if s.Context > 0 {
		if _, _, err := r.alone(ctx, before); err != nil {
			return nil, err
		}
	}
	ms, cached, err := r.alone(ctx, slices.Concat(before, r.prompt(s.New)))
	if err == nil && cached != s.Context && s.Context > 0 {
		return nil, errUncached
	}
	return []float64{ms}, err
}

// errUncached says that a row with context cannot be measured.
var errUncached = errors.New("the context was not cached")

// settle is how many tokens of a batch's answers are left out at the beginning, while the last prompts are computed.
const settle = 2

// batch sends the prompts of a batch, and calls during when each of them has its first token. It returns the times of the tokens of
// each answer, in the part in which all are generated.
func (r *runner) batch(ctx context.Context, s step, tokens int, during func()) (all []stream, err error) {
	prompts := make([][]int, s.Batch)
	for i := range prompts {
		prompts[i] = r.prompt(max(1, s.Context-tokens/2))
		if s.Batch > 1 { // so that all begin at once
			if _, _, err := r.alone(ctx, prompts[i]); err != nil {
				return nil, err
			}
		}
	}
	answers := make([]*client.Answer, s.Batch)
	var begun, ended sync.WaitGroup
	begun.Add(s.Batch)
	for i := range answers {
		ended.Go(func() {
			once := sync.OnceFunc(begun.Done)
			defer once() // of a failure, too
			answers[i] = r.send(ctx, prompts[i], tokens, once)
		})
	}
	begun.Wait()
	if during != nil {
		during()
	}
	ended.Wait()
	var from, to time.Time
	for _, a := range answers {
		if a.Failure != nil {
			return nil, failed(s.String(), a.Failure)
		}
		one := streamOf(a)
		all = append(all, one)
		if begin := one.at[min(settle, len(one.at)-1)]; begin.After(from) {
			from = begin
		}
		if end := one.at[len(one.at)-1]; to.IsZero() || end.Before(to) {
			to = end
		}
	}
	for i := range all {
		all[i].cut(from, to)
	}
	return all, nil
}

// stream has the times of the events of an answer.
type stream struct {
	at    []time.Time
	share float64 // tokens of an event
}

func streamOf(a *client.Answer) (s stream) {
	at := a.First
	s.at = append(s.at, at)
	for _, gap := range a.Gaps {
		at = at.Add(gap)
		s.at = append(s.at, at)
	}
	tokens, _ := a.Tokens()
	s.share = math.Max(1, float64(tokens)/float64(a.Events))
	return s
}

// cut leaves the events in a time.
func (s *stream) cut(from, to time.Time) {
	s.at = slices.DeleteFunc(s.at, func(at time.Time) bool { return at.Before(from) || at.After(to) })
}

// window is the part of an answer in which a prompt came in: the events number from to to are the first and the last of it.
type window struct{ from, to int }

// windowTail is how many steps after a prompt's first token its window ends. An engine that schedules the next step while one runs, such as
// vLLM, sends the token of the step with the prompt late, and those of the next two steps soon after it.
const windowTail = 2

// around returns the window of a prompt that was sent at one time, and whose first token came at another. ok is false if the answer does
// not cover it.
func (s *stream) around(sent, first time.Time) (w window, ok bool) {
	w.from, _ = slices.BinarySearchFunc(s.at, sent, time.Time.Compare)
	w.from-- // the last one before
	w.to, _ = slices.BinarySearchFunc(s.at, first, time.Time.Compare)
	w.to += windowTail
	return w, w.from >= 0 && w.to < len(s.at)
}

// mean returns the mean time between two events outside of windows, in ms, or 0 if there are none: between the windows, and as much before
// and after them, because steps take longer as answers grow.
func (s *stream) mean(windows []window) float64 {
	sum, gaps := 0.0, 0
	from, to := max(1, windows[0].from-windowTail), min(len(s.at)-1, windows[len(windows)-1].to+windowTail)
	for i := from; i <= to; i++ {
		if !slices.ContainsFunc(windows, func(w window) bool { return w.from < i && i <= w.to }) {
			sum += millis(s.at[i].Sub(s.at[i-1]))
			gaps++
		}
	}
	return sum / max(1, float64(gaps))
}

// decodeTokens is how long the answers of a decode probe are. They have to overlap.
func decodeTokens(batch int) int { return 32 + batch }

// decode measures the time from token to token of a batch.
func (r *runner) decode(ctx context.Context, s step) (ms []float64, err error) {
	all, err := r.batch(ctx, s, decodeTokens(s.Batch), nil)
	for _, one := range all {
		for i := 1; i < len(one.at); i++ {
			ms = append(ms, millis(one.at[i].Sub(one.at[i-1]))/one.share)
		}
	}
	return ms, err
}

// interruptions is how many prompts come in during one mixed probe.
const interruptions = 8

// mixed measures the steps that also compute a prompt: a window takes longer than its other steps by what the prompt takes, whenever the
// token of the prompt's own step is sent.
func (r *runner) mixed(ctx context.Context, s step) (ms []float64, err error) {
	var prompts []*client.Answer
	var broken error
	all, err := r.batch(ctx, s, r.mixedTokens(s), func() {
		for range interruptions {
			r.pause(ctx, s)
			a := r.send(ctx, r.prompt(s.New), 1, nil)
			if a.Failure != nil {
				broken = failed(s.String(), a.Failure)
				return
			}
			prompts = append(prompts, a)
		}
	})
	if err := errors.Join(err, broken); err != nil {
		return nil, err
	}
	times := make([][]float64, len(prompts)) // of each prompt, as the answers show it
	for _, one := range all {
		windows := make([]window, len(prompts))
		covered := make([]bool, len(prompts))
		for i, a := range prompts {
			windows[i], covered[i] = one.around(a.Sent, a.First)
		}
		mean := one.mean(windows)
		for i, w := range windows {
			if covered[i] && mean > 0 {
				times[i] = append(times[i], millis(one.at[w.to].Sub(one.at[w.from]))-float64(w.to-w.from-1)*mean)
			}
		}
	}
	for _, shown := range times {
		if len(shown) > 0 {
			slices.Sort(shown)
			ms = append(ms, shown[len(shown)/2])
		}
	}
	return ms, nil
}

// pauseSteps is how many steps pass between two prompts of a mixed probe.
const pauseSteps = windowTail + 3

// pause lets a few steps without a prompt pass.
func (r *runner) pause(ctx context.Context, s step) {
	timer := time.NewTimer(time.Duration(pauseSteps * r.decodeTime(s) * 1e6))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// mixedTokens is how many tokens the answers of a mixed probe need while its prompts come in.
func (r *runner) mixedTokens(s step) int {
	each := r.decodeTime(s)
	return decodeTokens(s.Batch) + int(interruptions*((pauseSteps+1)*each+r.request.value())/each)
}

// decodeTime returns how long a decode step takes, as far as it is known, in ms.
func (r *runner) decodeTime(s step) float64 {
	best, distance := 10.0, math.MaxInt
	for _, row := range r.rows {
		if d := max(row.Batch-s.Batch, s.Batch-row.Batch); row.kind == decode && len(row.all) > 0 && d < distance {
			best, distance = row.value(), d
		}
	}
	return best
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }
