package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/workload"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/replay"
)

// AdviseSummary is what the command advise does, for help pages.
const AdviseSummary = "say how many engines should prefill and decode for a capture, by which decision, and when not to split"

// advice are the flags of advise.
type advice struct {
	Hardware hardwareFlags `group:"Hardware"`
	Load     adviceLoad    `group:"Load"`
	Output   adviceOutput  `group:"Output"`
}

type hardwareFlags struct {
	GPUs      int     `flag:"gpus" arg:"NUMBER" help:"GPUs that there are, of all engines together"`
	Engine    string  `flag:"engine" arg:"NAME|FILE" help:"step times: one of the built-in tables, or a CSV file, as of tandem replay"`
	PerEngine int     `flag:"gpus-per-engine" arg:"NUMBER" help:"GPUs of one engine. Default: those of the built-in engine; 1 for a file"`
	Bandwidth float64 `flag:"bandwidth" arg:"GB/S" help:"of each engine's port, in gigabytes a second"`
}

type adviceLoad struct {
	TTFT     time.Duration    `flag:"slo-ttft" arg:"DURATION" help:"a request counts if its first token comes within this time; 0: any"`
	TPOT     time.Duration    `flag:"slo-tpot" arg:"DURATION" help:"and if its further tokens come within this time each, on average; 0: any"`
	Speed    float64          `flag:"speed" arg:"FACTOR" help:"2: requests come twice as fast as they came: advice for more traffic"`
	Requests int              `flag:"requests" arg:"NUMBER" help:"use only the first ones. Default: all of a trace, those of a shape"`
	Shape    string           `flag:"shape" arg:"NAME" help:"synthetic load of a well-known kind instead of a capture; replay.md lists them"`
	Input    workload.Lengths `flag:"input-tokens" arg:"TOKENS" help:"instead of a capture: length of prompts, or a range of equally likely lengths: 256-1024"`
	Output   workload.Lengths `flag:"output-tokens" arg:"TOKENS" help:"length of answers, likewise. Default: 256"`
	Rate     workload.Rates   `flag:"rate" arg:"NUMBER|FROM-TO" help:"requests of --input-tokens in a second, or sessions of --shape that begin; FROM-TO changes evenly. Default with --input-tokens: as many as each pool can serve"`
	Seed     int              `flag:"seed" arg:"NUMBER" help:"of all random numbers: the same seed gives the same output, byte by byte"`
}

type adviceOutput struct {
	JSON bool   `flag:"json" help:"print JSON instead of the table"`
	Page string `flag:"page" arg:"FILE" help:"write an HTML page with plots of all runs"`
}

// Validate implements boot.Validator.
func (a *advice) Validate(p *boot.Problems) {
	p.Require(a.Hardware.GPUs > 0, "gpus", "must say how many GPUs there are")
	p.Require(a.Hardware.PerEngine >= 0, "gpus-per-engine", "must not be negative")
	p.Require(a.Hardware.Bandwidth > 0, "bandwidth", "must be positive")
	p.Require(a.Load.Speed > 0, "speed", "must be positive")
	p.Require(a.Load.Requests >= 0, "requests", "must not be negative")
	p.Require(a.Load.Input == workload.Lengths{} || a.Load.Shape == "", "input-tokens", "cannot be combined with --shape")
	p.Require(a.Load.TTFT >= 0, "slo-ttft", "must not be negative")
	p.Require(a.Load.TPOT >= 0, "slo-tpot", "must not be negative")
}

// Advise is the command. The operand is a capture, or another trace; without it the load is that of --shape, or of prompts and answers of some lengths. The error is an Exit with
// CodeConfig if the trace cannot be used, or if no pool of so many GPUs can serve it.
func Advise(ctx context.Context, std boot.IO, args []string) error {
	usual := defaults()
	a := advice{hardwareFlags{Engine: usual.Pool.Engines[0], Bandwidth: usual.Network.Bandwidth},
		adviceLoad{TTFT: usual.Output.TTFT, TPOT: usual.Output.TPOT, Speed: 1, Seed: usual.Picker.Seed}, adviceOutput{}}
	files, err := (boot.Program{Summary: "advise: " + AdviseSummary + ".", Operands: "[CAPTURE]", NoSettings: true}).Load(std, &a, args)
	if err != nil {
		return err
	}
	switch {
	case len(files) > 1:
		return boot.Usagef("want one CAPTURE, got %d", len(files))
	case len(files) == 0 && a.Load.Shape == "" && a.Load.Input == (workload.Lengths{}):
		return boot.Usagef("want a CAPTURE, --shape, or --input-tokens and --output-tokens (see --help)")
	case len(files) > 0 && (a.Load.Input != workload.Lengths{} || a.Load.Rate != workload.Rates{}):
		return boot.Usagef("a capture has requests of its own: leave out --input-tokens and --rate")
	case a.Load.Input == (workload.Lengths{}) && a.Load.Output != (workload.Lengths{}):
		return boot.Usagef("--output-tokens needs --input-tokens")
	}
	s := a.settings()
	said, err := a.advise(ctx, s, files, std.Stderr)
	if err != nil {
		return err
	}
	write := said.text
	if a.Output.JSON {
		write = said.json
	}
	if err := errors.Join(write(std.Stdout), s.Output.page(runsOf(said.tried), &whys{})); err != nil {
		return fmt.Errorf("writing the advice: %w", err)
	}
	return nil
}

// settings returns those of the replays.
func (a *advice) settings() *settings {
	s := defaults()
	s.Pool.Engines, s.Pool.GPUs, s.Network.Bandwidth = []string{a.Hardware.Engine}, a.Hardware.PerEngine, a.Hardware.Bandwidth
	s.Load.Speeds, s.Load.Requests, s.Load.Shape, s.Picker.Seed = []float64{a.Load.Speed}, a.Load.Requests, a.Load.Shape, a.Load.Seed
	s.Load.Input, s.Load.Output, s.Load.Rate = a.Load.Input, a.Load.Output, a.Load.Rate
	s.Output.TTFT, s.Output.TPOT, s.Output.Page = a.Load.TTFT, a.Load.TPOT, a.Output.Page
	return &s
}

// most reports whether each pool is to serve as much as it can.
func (a *advice) most() bool {
	return a.Load.Input != workload.Lengths{} && a.Load.Rate == workload.Rates{}
}

// mostSplits is how many splits of a pool are tried at first. Of a larger one, those around the best one follow.
const mostSplits = 8

// splits returns the pools of n engines: shared ones, and those with prefill engines of their own.
func splits(n int) []replay.Pool {
	all := []replay.Pool{{Both: n}}
	last := 0
	for i := 1; i <= min(n-1, mostSplits); i++ {
		if prefill := int(math.Round(float64(i*(n-1)) / float64(min(n-1, mostSplits)))); prefill > last {
			all = append(all, replay.Pool{Prefill: prefill, Decode: n - prefill})
			last = prefill
		}
	}
	return all
}

// Decisions that are tried, by the names in tables.
const (
	byCost      = "cost-pd-decider"
	noSplit     = "always local"
	thresholdOf = "threshold "
)

// thresholds are those that are tried, in tokens; 1 splits whatever is not cached.
var thresholds = []int{1, 512, 2048, 8192}

// tried is one pool under one decision.
type tried struct {
	run   *run
	what  string    // the decision
	parts []float64 // share of the requests that met the objective, in each part of the trace
}

func runsOf(all []*tried) (runs []*run) {
	for _, one := range all {
		runs = append(runs, one.run)
	}
	return runs
}

// trials makes what is tried.
type trials struct {
	settings      *settings
	model         model
	trace         string
	requests      *replay.Trace
	engines       int
	builtIn, cost *config.Config
}

// trials reads the traffic and the engine. The error is an Exit with CodeConfig.
func (a *advice) trials(s *settings, files []string, to io.Writer) (*trials, error) {
	from, err := s.Load.source(files, s.Picker.Seed, to)
	if err != nil {
		return nil, boot.Configf("reading the trace: %w", err)
	}
	t := &trials{settings: s, trace: from.name}
	if t.model, err = s.Pool.model(a.Hardware.Engine); err != nil {
		return nil, boot.Configf("reading the engine: %w", err)
	}
	if t.engines = a.Hardware.GPUs / t.model.hardware.GPUs; t.engines < 1 {
		return nil, boot.Configf("an engine %s takes %d GPUs, and there are %d", t.model.name, t.model.hardware.GPUs, a.Hardware.GPUs)
	}
	if t.requests, err = from.requests(a.Load.Speed, from.concurrencies()[0]); err != nil {
		return nil, boot.Configf("%w", err)
	}
	t.requests.Wanted = s.slo()
	if t.builtIn, err = config.Parse(config.Default(), plugin.Table); err != nil {
		return nil, err
	}
	t.cost, err = config.Parse(costYAML, plugin.Table)
	return t, err
}

// one returns a pool under a decision.
func (t *trials) one(pool replay.Pool, what string, c *config.Config) (*tried, error) {
	r := &run{replicas: 1, config: what, engine: t.model.name, trace: t.trace, pool: pool, load: load(t.requests), requests: t.requests, options: t.settings.options(t.model, pool, c)}
	r.options.Ended = &r.ended
	if err := r.options.Check(t.requests); err != nil {
		return nil, boot.Configf("engine %s, pool %v: %w", t.model.name, pool, err)
	}
	return &tried{run: r, what: what}, nil
}

// nearer returns splits halfway between the best of those that were tried and its neighbours; none if nothing is between.
func (t *trials) nearer(of []*tried) (all []*tried, err error) {
	var prefills []int // that were tried
	best := -1
	for _, one := range slices.SortedFunc(slices.Values(of), better) {
		if p := one.run.pool.Prefill; p > 0 {
			if prefills = append(prefills, p); best < 0 {
				best = p
			}
		}
	}
	slices.Sort(prefills)
	at := slices.Index(prefills, best)
	for _, i := range []int{at - 1, at + 1} {
		if i < 0 || i >= len(prefills) {
			continue
		}
		if half := (best + prefills[i]) / 2; !slices.Contains(prefills, half) {
			one, err := t.one(replay.Pool{Prefill: half, Decode: t.engines - half}, byCost, t.cost)
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
	}
	return all, nil
}

// first returns shared engines without remote prefill, and every pool under the cost decision.
func (t *trials) first() (all []*tried, err error) {
	local, err := withThreshold(t.builtIn, 0)
	if err != nil {
		return nil, err
	}
	pools := splits(t.engines)
	one, err := t.one(pools[0], noSplit, local)
	if all = append(all, one); err != nil || t.engines == 1 {
		return all, err
	}
	for _, pool := range pools {
		one, err := t.one(pool, byCost, t.cost)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// further returns the best two of some splits under each threshold.
func (t *trials) further(of []*tried) (all []*tried, err error) {
	left := 2
	for _, best := range slices.SortedFunc(slices.Values(of), better) {
		if best.run.pool.Both > 0 {
			continue
		}
		if left--; left < 0 {
			break
		}
		for _, tokens := range thresholds {
			c, err := withThreshold(t.builtIn, tokens)
			if err != nil {
				return nil, err
			}
			one, err := t.one(best.run.pool, thresholdOf+strconv.Itoa(tokens), c)
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
	}
	return all, nil
}

// advise replays the traffic on pools under decisions, and then on the best of them with other weights of scorers.
func (a *advice) advise(ctx context.Context, s *settings, files []string, to io.Writer) (*conclusion, error) {
	t, err := a.trials(s, files, to)
	if err != nil {
		return nil, err
	}
	all, err := a.try(ctx, t, to)
	if err != nil {
		return nil, err
	}
	c := a.conclude(s, all)
	if c.scaler, err = sizeByScaler(ctx, c.best.run, s.slo()); err != nil {
		return nil, err
	}
	return c, a.weigh(ctx, t, c, to)
}

// try replays the traffic: first the pools by cost, of many splits those near the best one, and then the best two splits by each threshold as well.
func (a *advice) try(ctx context.Context, t *trials, to io.Writer) ([]*tried, error) {
	all, err := t.first()
	if err == nil {
		err = a.perform(ctx, t.settings, all, to)
	}
	if err != nil || len(all) == 1 {
		return all, err
	}
	for {
		near, err := t.nearer(all)
		if err == nil {
			err = a.perform(ctx, t.settings, near, to)
		}
		if err != nil {
			return nil, err
		}
		if all = append(all, near...); len(near) == 0 {
			break
		}
	}
	further, err := t.further(all)
	if err != nil {
		return nil, err
	}
	return append(all, further...), a.perform(ctx, t.settings, further, to)
}

// pieces is the parts of a trace whose goodputs tell how far the goodput is known.
const pieces = 10

func (a *advice) perform(ctx context.Context, s *settings, all []*tried, to io.Writer) error {
	if a.most() {
		if err := s.load(ctx, runsOf(all)); err != nil {
			return err
		}
	}
	if err := perform(ctx, runsOf(all), s.slo(), true, to); err != nil {
		return err
	}
	for _, t := range all {
		t.parts = partsOf(t.run.result, s.slo())
	}
	return nil
}

// partsOf returns the share of requests that met the objective in each part of a trace.
func partsOf(r *replay.Result, slo replay.SLO) []float64 {
	n := min(pieces, len(r.Records))
	parts, met := make([]float64, n), make([]float64, n)
	for i := range r.Records {
		part := i * n / len(r.Records)
		parts[part]++
		if slo.Met(&r.Records[i]) {
			met[part]++
		}
	}
	for i := range parts {
		parts[i] = met[i] / parts[i]
	}
	return parts
}

// better orders tried pools by how many requests met the objective in a second, then by how early first tokens came.
func better(a, b *tried) int {
	x, y := &a.run.summary, &b.run.summary
	switch first := x.Met * a.faster(b); {
	case first != y.Met:
		return sign(y.Met - first)
	default:
		return sign(x.TTFT.P95 - y.TTFT.P95)
	}
}

func sign(v float64) int {
	switch {
	case v < 0:
		return -1
	case v > 0:
		return 1
	}
	return 0
}

// worthwhile is by how much more goodput a split must have than shared engines: it costs a hand-off for each request, and pods of two kinds.
const worthwhile = 0.03

// conclusion is the advice.
type conclusion struct {
	settings *settings
	advice   *advice
	all      []*tried // the best first
	tried    []*tried // in the order in which they were tried
	best     *tried
	shared   *tried
	split    bool        // a split is worthwhile
	gain     between     // of the best split over shared engines, in share of the requests that came to these
	bestOf   *tried      // the best split; nil: there is but one engine
	scaler   *scalerSize // what the scaler would have
	weighed  *weighed    // nil: there is but one engine
}

// between is a mean, and where it is with 90 % confidence.
type between struct {
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// student90 are the quantiles 0.95 of Student's distribution by degrees of freedom, from 1.
var student90 = []float64{6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833}

// interval returns the mean of values, and where it is by their spread.
func interval(values []float64) (b between) {
	n := float64(len(values))
	for _, v := range values {
		b.Mean += v / n
	}
	half := 0.0
	if len(values) > 1 {
		for _, v := range values {
			half += (v - b.Mean) * (v - b.Mean) / (n - 1)
		}
		half = student90[min(len(values)-2, len(student90)-1)] * math.Sqrt(half/n)
	}
	b.Low, b.High = b.Mean-half, b.Mean+half
	return b
}

func (a *advice) conclude(s *settings, all []*tried) *conclusion {
	c := &conclusion{settings: s, advice: a, shared: all[0], best: all[0], tried: all, all: slices.SortedStableFunc(slices.Values(all), better)}
	for _, t := range c.all {
		if t.run.pool.Both == 0 {
			c.bestOf = t
			break
		}
	}
	if c.bestOf == nil {
		return c
	}
	c.gain = c.bestOf.over(c.shared)
	if c.gain.Low > 0 && c.gain.Mean > worthwhile*c.shared.run.summary.Met {
		c.split, c.best = true, c.bestOf
	}
	return c
}

// over returns how much larger a share of the requests met the objective than with another pool or decision, in shares of those that came there: both are
// compared on the same parts of the trace.
func (t *tried) over(than *tried) between {
	differences := make([]float64, len(than.parts))
	for i := range differences {
		differences[i] = t.parts[i]*t.faster(than) - than.parts[i]
	}
	return interval(differences)
}

// goodput returns the requests in a second that met the objective, and where that is.
func (t *tried) goodput() between {
	b, rate := interval(t.parts), t.rate()
	return between{b.Mean * rate, max(0, b.Low) * rate, min(1, b.High) * rate}
}

// rate returns how many requests came in a second. Where each follows the end of another, that differs from pool to pool.
func (t *tried) rate() float64 {
	if t.run.load > 0 {
		return t.run.load
	}
	return t.run.result.Load()
}

// faster returns how many times as many requests came in a second as to another pool; 1 if a single one came to both.
func (t *tried) faster(than *tried) float64 {
	if rate := than.rate(); rate > 0 {
		return t.rate() / rate
	}
	return 1
}

// words says the advice in words.
func (c *conclusion) words() (lines []string) {
	best, slo := c.best.run, objective(c.settings.slo())
	g := c.best.goodput()
	switch {
	case c.bestOf == nil:
		lines = append(lines, fmt.Sprintf("%d GPUs are one engine %s: it cannot be split.", c.advice.Hardware.GPUs, best.engine))
	case c.split:
		lines = append(lines, fmt.Sprintf("Split: %d of %d engines prefill (%v), %s.", best.pool.Prefill, best.pool.Engines(), best.pool, c.best.how()),
			c.gained(slo))
	case c.shared.run.summary.Met >= 1-worthwhile && c.bestOf.run.summary.Met >= 1-worthwhile:
		lines = append(lines, fmt.Sprintf("Do not split: %d shared engines (%v) serve %.1f %% of the requests within %s, so a split has nothing to gain at this load.",
			best.pool.Engines(), best.pool, 100*best.summary.Met, slo))
	default:
		lines = append(lines, fmt.Sprintf("Do not split: of %d shared engines (%v) %.1f %% of the requests meet %s. The best split, %v by %s, changes that by %s percentage points, which is not worth a hand-off for each request.",
			best.pool.Engines(), best.pool, 100*best.summary.Met, slo, c.bestOf.run.pool, c.bestOf.what, c.gain.points()))
	}
	lines = append(lines, fmt.Sprintf("Expect %.3g requests/s within it (%.3g to %.3g) of %.3g/s.", g.Mean, g.Low, g.High, c.best.rate()), c.scaler.words(slo))
	if c.bestOf != nil && !c.split && c.bestOf.run.summary.ITL.P99*2 < c.shared.run.summary.ITL.P99 {
		lines = append(lines, fmt.Sprintf("If single late tokens matter: a split has gaps between tokens of %s ms at the p99, shared engines of %s ms.", ms(c.bestOf.run.summary.ITL.P99), ms(c.shared.run.summary.ITL.P99)))
	}
	if c.weighed != nil {
		lines = append(lines, c.weighed.words(best.summary.Met))
	}
	return lines
}

// gained says what the best split gains.
func (c *conclusion) gained(slo string) string {
	if c.advice.most() {
		return fmt.Sprintf("Nine in ten requests meet %s while at most %.3g come in a second; with shared engines it is %.3g.", slo, c.best.rate(), c.shared.rate())
	}
	return fmt.Sprintf("%.1f %% of the requests meet %s; of shared engines it is %.1f %%: %s percentage points more.",
		100*c.best.run.summary.Met, slo, 100*c.shared.run.summary.Met, c.gain.points())
}

// how says the decision in words.
func (t *tried) how() string {
	tokens, ok := strings.CutPrefix(t.what, thresholdOf)
	if !ok {
		return "cost-pd-decider chooses for each request"
	}
	return "prompts of " + tokens + " or more uncached tokens go there (prefix-based-pd-decider, nonCachedTokens: " + tokens + ")"
}

// points prints a difference of shares in percentage points.
func (b between) points() string {
	return fmt.Sprintf("%+.1f (%+.1f to %+.1f)", 100*b.Mean, 100*b.Low, 100*b.High)
}

// text prints the advice, and what it goes by.
func (c *conclusion) text(to io.Writer) error {
	for _, line := range c.words() {
		fmt.Fprintln(to, line)
	}
	fmt.Fprintln(to)
	w := aligned(to)
	fmt.Fprintln(w, "pool\tdecision\tmet\tgoodput/s\tfrom\tto\tTTFT p50\tp95\tTPOT p95\tITL p99\tremote\trefused\t")
	for _, t := range c.all {
		g, s := t.goodput(), &t.run.summary
		fmt.Fprintf(w, "%v\t%s\t%.1f%%\t%.3g\t%.3g\t%.3g\t%s\t%s\t%s\t%s\t%.1f%%\t%d\t\n", t.run.pool, t.what, 100*s.Met, g.Mean, g.Low, g.High, ms(s.TTFT.P50), ms(s.TTFT.P95),
			ms(s.TPOT.P95), ms(s.ITL.P99), 100*s.RemoteShare, s.Refused)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(to, "\nEngine %s, %d GPUs each, modelled: times are those of its table. From and to are where the goodput of such traffic is with 90 %% confidence, by %d parts of this one.\n",
		c.best.run.engine, c.best.run.options.Hardware.GPUs, len(c.best.parts))
	return err
}

// json prints the advice for programs.
func (c *conclusion) json(to io.Writer) error {
	type row struct {
		Pool     string  `json:"pool"`
		Decision string  `json:"decision"`
		Met      float64 `json:"met"`
		Goodput  between `json:"goodput"`
		TTFT50   float64 `json:"ttft_p50_ms"`
		TTFT95   float64 `json:"ttft_p95_ms"`
		TPOT95   float64 `json:"tpot_p95_ms"`
		ITL99    float64 `json:"itl_p99_ms"`
		Remote   float64 `json:"remote_share"`
		Refused  int     `json:"refused"`
	}
	type weight struct {
		Scorer  string  `json:"scorer"`
		Usual   float64 `json:"usual"`
		Best    float64 `json:"best"`
		Gain    between `json:"gain"` // of the best one over the usual one, in shares of the requests
		Advised bool    `json:"advised"`
	}
	rowOf := func(t *tried) row {
		s := &t.run.summary
		return row{t.run.pool.String(), t.what, s.Met, t.goodput(), s.TTFT.P50, s.TTFT.P95, s.TPOT.P95, s.ITL.P99, s.RemoteShare, s.Refused}
	}
	said := struct {
		Split  bool        `json:"split"`
		Advice []string    `json:"advice"`
		Best   row         `json:"best"`
		Gain   *between    `json:"gain_of_split,omitempty"` // of the best split over shared engines, in shares of the requests
		Weight *weight     `json:"weights,omitempty"`
		Scaler *scalerSize `json:"replica_sizer"` // engines that the scaler would have
		Engine string      `json:"engine"`
		Load   float64     `json:"requests_per_second"`
		Tried  []row       `json:"tried"`
	}{Split: c.split, Advice: c.words(), Best: rowOf(c.best), Scaler: c.scaler, Engine: c.best.run.engine, Load: c.best.rate()}
	if c.bestOf != nil {
		said.Gain = &c.gain
	}
	if w := c.weighed; w != nil {
		said.Weight = &weight{prefixScorer, w.usual, w.weight, w.gain, w.worthwhile(c.best.run.summary.Met)}
	}
	for _, t := range c.all {
		said.Tried = append(said.Tried, rowOf(t))
	}
	encode := json.NewEncoder(to)
	encode.SetIndent("", "  ")
	return encode.Encode(said)
}
