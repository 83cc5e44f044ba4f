package fit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/client"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/replay/engine"
)

// Options say what is measured.
type Options struct {
	Endpoint client.Options // its model may be empty: then the first one that the engine lists
	Model    string
	For      time.Duration   // how long, at most, once each step has been measured
	Settings engine.Settings // what the user knows better than the engine; 0: it is asked
	Seed     uint64
	Progress io.Writer
}

// Result is what was measured.
type Result struct {
	Model    string
	Settings engine.Settings
	Rows     []Row
	Checks   []Check
	Rounds   int
	Notes    []string
}

// Row is a row of the table.
type Row struct {
	Kind                string
	New, Batch, Context int
	Milliseconds        float64
	Spread              float64 // half of the middle half of the times, as a share of Milliseconds
	Times               int
}

// Check is a step that is not in the table.
type Check struct {
	Step             string
	Measured, Fitted float64 // ms
}

// Error returns by how much the table is wrong, as a share.
func (c Check) Error() float64 { return c.Fitted/c.Measured - 1 }

// runner is one fit.
type runner struct {
	options       Options
	engine        *client.Endpoint
	settings      engine.Settings
	length        int    // longest prompt and answer
	disaggregated string // mode of an SGLang engine that computes no whole requests
	random        *rand.Rand
	rows, checks  []*row
	request       row // a prompt of one token
	notes         []string
	rounds        int
}

// row gathers the times of one step.
type row struct {
	step
	all  []float64 // ms
	fill bool      // it is not measured: the context is not cached
}

// value returns the mean of the times without those at both ends: a tenth of them at each, and of steps with a prompt a quarter, because
// few are measured and any pause of a busy engine falls on one of them.
func (r *row) value() float64 {
	if len(r.all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(r.all))
	cut := len(sorted) / 10
	if r.kind == mixed {
		cut = len(sorted) / 4
	}
	if len(sorted) > 2 {
		cut = max(1, cut)
	}
	sum, kept := 0.0, sorted[cut:len(sorted)-cut]
	for _, ms := range kept {
		sum += ms
	}
	return sum / float64(len(kept))
}

// spread returns half of the width of the middle half of the times, as a share of the value.
func (r *row) spread() float64 {
	sorted := slices.Sorted(slices.Values(r.all))
	return (sorted[len(sorted)*3/4] - sorted[len(sorted)/4]) / 2 / r.value()
}

// Run measures an engine. If ctx ends after every step was measured once, the Result is that of what was measured, and the error
// says that it is not all.
func Run(ctx context.Context, o Options) (*Result, error) {
	o.Endpoint.API, o.Endpoint.Stream, o.Endpoint.Model = pd.APICompletions, true, o.Model
	e, err := client.New(o.Endpoint)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	r := &runner{options: o, engine: e, settings: o.Settings, random: rand.New(rand.NewPCG(o.Seed, 0))}
	if err := r.begin(ctx); err != nil {
		return nil, fmt.Errorf("fitting %s: %w", o.Endpoint.URL, err)
	}
	if err := r.measure(ctx); err != nil {
		return nil, fmt.Errorf("fitting %s: %w", o.Endpoint.URL, err)
	}
	result, err := r.result()
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("interrupted: the table is that of %d rounds", r.rounds)
	}
	return result, err
}

func (r *runner) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// begin asks the engine, sees that it answers as it must, and warms it up.
func (r *runner) begin(ctx context.Context) error {
	if err := r.ask(ctx); err != nil {
		return err
	}
	if r.disaggregated != "" {
		return fmt.Errorf("it is a %s engine of a pair, which answers nothing by itself: fit a plain engine with the same model and flags", r.disaggregated)
	}
	if most := min(r.length, r.settings.KVTokens); most < least {
		return fmt.Errorf("it has space for %d tokens, and %d are needed", most, least)
	}
	const warm = 4
	for range warm {
		a := r.send(ctx, r.prompt(least/4), 8, nil)
		switch tokens, counted := a.Tokens(); {
		case a.Failure != nil:
			return failed("a first prompt", a.Failure)
		case a.First.IsZero():
			return errors.New("it does not stream its answers")
		case counted && tokens != 8:
			return fmt.Errorf("an answer has %d tokens instead of 8: it does not support ignore_eos", tokens)
		}
	}
	return r.plan()
}

// least is how many tokens an engine must have space for.
const least = 256

// plan chooses the steps. Those of checks lie between the rows.
func (r *runner) plan() error {
	most := min(r.length, r.settings.KVTokens) - 1
	chunk := min(r.settings.StepTokens, most)
	add := func(s step) { r.rows = append(r.rows, &row{step: s}) }
	check := func(s step) { r.checks = append(r.checks, &row{step: s}) }
	for _, before := range []int{0, 1024, 4096, 16384} {
		for _, n := range []int{1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384} {
			if n > chunk && n < 2*chunk {
				n = chunk
			}
			if n <= chunk && before+n <= most && (before == 0 || n >= 16) {
				add(step{prefill, n, 0, before})
			}
		}
	}
	for _, batch := range []int{1, 2, 4, 8, 16, 32, 64, 128} {
		for _, context := range r.contexts(batch) {
			add(step{decode, 0, batch, context})
		}
	}
	for _, batch := range []int{1, 4, 16, 32} {
		for _, n := range []int{64, 256, 512, 1024, 4096} {
			const context, growth = 512, 192
			if r.settings.Scheduler != "sglang" && n+batch <= chunk && r.fits(batch, context, growth) && r.fits(1, n, 1) {
				add(step{mixed, n, batch, context})
			}
		}
	}
	for _, s := range []step{{prefill, 192, 0, 0}, {prefill, 768, 0, 0}, {prefill, 384, 0, 512}, {prefill, 1536, 0, 0}} {
		if s.New <= chunk && s.New+s.Context <= most {
			check(s)
		}
	}
	for _, s := range []step{{decode, 0, 3, 256}, {decode, 0, 6, 768}, {decode, 0, 12, 384}} {
		if r.fits(s.Batch, s.Context, decodeTokens(s.Batch)) {
			check(s)
		}
	}
	r.request.step = step{prefill, 1, 0, 0}
	r.rows = slices.CompactFunc(r.rows, func(a, b *row) bool { return a.step == b.step })
	return nil
}

// contexts returns at which lengths a batch is measured: at two, at least, so that it is known how the time grows, or at none.
func (r *runner) contexts(batch int) (all []int) {
	tokens := decodeTokens(batch)
	for _, context := range []int{128, 512, 1024, 2048, 4096, 16384} {
		if r.fits(batch, context, tokens) {
			all = append(all, context)
		}
	}
	for context := 64 * (r.length / 64); len(all) == 1 && context >= 3*all[0]/2; context -= 64 {
		if r.fits(batch, context, tokens) {
			all = append(all, context)
		}
	}
	if len(all) < 2 {
		return nil
	}
	return all
}

// fits reports whether a batch fits into the engine.
func (r *runner) fits(batch, context, tokens int) bool {
	each := context + tokens + r.settings.BlockTokens
	return batch <= r.settings.Sequences && each <= r.length && batch*each <= r.settings.KVTokens*9/10
}

// measure measures all steps in rounds. Only the first one is sure to be whole.
func (r *runner) measure(ctx context.Context) error {
	all := slices.Concat(r.rows, r.checks)
	began := time.Now()
	for r.rounds = 0; ; r.rounds++ {
		if r.rounds > 0 { // so that no step is always the first one
			r.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		}
		for i, one := range all {
			if r.rounds > 0 && (ctx.Err() != nil || time.Since(began) > r.options.For) {
				r.say("\n")
				return nil
			}
			if err := r.once(ctx, one); err != nil {
				return err
			}
			r.progress(began, i+1, len(all))
		}
	}
}

// once measures one step, and the request with it.
func (r *runner) once(ctx context.Context, one *row) error {
	if one.fill {
		return nil
	}
	request, err := r.prefill(ctx, r.request.step)
	if err != nil {
		return err
	}
	r.request.all = append(r.request.all, request...)
	ms, err := map[kind]func(context.Context, step) ([]float64, error){prefill: r.prefill, decode: r.decode, mixed: r.mixed}[one.kind](ctx, one.step)
	if errors.Is(err, errUncached) {
		one.fill = true
		return nil
	}
	one.all = append(one.all, ms...)
	return err
}

// progress says how far it is.
func (r *runner) progress(began time.Time, done, of int) {
	took := time.Since(began)
	share := float64(done) / float64(of)
	left := r.options.For - took
	if r.rounds == 0 {
		left = max(left, time.Duration(float64(took)*(1-share)/share))
	}
	switch {
	case boot.IsTerminal(r.options.Progress):
		fmt.Fprintf(r.options.Progress, "%sround %d, step %d of %d, about %v left", boot.EraseLine, r.rounds+1, done, of, max(0, left).Round(time.Second))
	case done == of:
		fmt.Fprintf(r.options.Progress, "round %d: %d steps measured, about %v left\n", r.rounds+1, of, max(0, left).Round(time.Second))
	}
}

func (r *runner) say(text string) {
	if boot.IsTerminal(r.options.Progress) {
		fmt.Fprint(r.options.Progress, text)
	}
}

// result makes the table, and compares it with the checks.
func (r *runner) result() (*Result, error) {
	one := row{}
	for _, row := range r.rows {
		if row.kind == decode && row.Batch == 1 {
			one = *row
			break
		}
	}
	if len(one.all) == 0 {
		return nil, errors.New("no answer could be measured")
	}
	overhead := max(0, r.request.value()-one.value())
	request := time.Duration(overhead * 1e6).Round(10 * time.Microsecond)
	r.settings.Request = &request
	result := &Result{Model: r.engine.Model(), Rounds: r.rounds, Notes: r.notes}
	filled := 0
	for _, row := range r.rows {
		if len(row.all) == 0 {
			filled++
			continue
		}
		result.Rows = append(result.Rows, Row{string(row.kind), row.New, row.Batch, row.Context, r.stepTime(row), row.spread(), len(row.all)})
	}
	if filled > 0 {
		result.Notes = append(result.Notes, fmt.Sprintf("%d rows are left out: the engine does not say that it caches prompts, or could not be measured there.", filled))
	}
	result.Settings = r.settings
	table, err := result.Table()
	if err != nil {
		return nil, err
	}
	for _, row := range r.checks {
		if len(row.all) == 0 {
			continue
		}
		s := engine.Step{New: row.New, Batch: row.Batch, Context: float64(row.Context)}
		if row.kind == prefill {
			s = engine.Step{New: row.New, Before: float64(row.Context)}
		}
		result.Checks = append(result.Checks, Check{row.String(), r.stepTime(row), table.Milliseconds(s)})
	}
	return result, nil
}

// stepTime returns how long the step of a row takes in the engine.
func (r *runner) stepTime(row *row) float64 {
	ms := row.value()
	if row.kind == prefill {
		ms -= millis(*r.settings.Request)
	}
	return math.Max(ms, 0.001)
}
