package replay

import (
	"context"
	_ "embed" // a configuration
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/workload"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/replay"
)

// testedWorkload is traffic on which policies are compared, with what its clients want.
type testedWorkload struct {
	name string // of the shape, or of the trace
	slo  replay.SLO
	span time.Duration // in which requests come: longer than their answers take
	*traced
}

// traced is where the requests of a workload come from that is a trace.
type traced struct {
	from *source
	rate float64 // of sessions that begin in a second, at its own speed
}

// about says what the workload is.
func (w *testedWorkload) about() string {
	if w.traced != nil {
		return "the trace " + w.name
	}
	shape, _ := workload.ShapeOf(w.name)
	return shape.About
}

// testedWorkloads: prompts of one length, short and even ones, shared beginnings that caches hold and that they do not, long documents,
// conversations with short and with long turns, and long answers.
var testedWorkloads = []testedWorkload{
	{"pd-guide", replay.SLO{TTFT: 3 * time.Second, TPOT: 50 * time.Millisecond}, time.Minute, nil},
	{"pd-even", replay.SLO{TTFT: time.Second, TPOT: 50 * time.Millisecond}, 2 * time.Minute, nil},
	{"sharegpt", replay.SLO{TTFT: time.Second, TPOT: 50 * time.Millisecond}, time.Minute, nil},
	{"b2b-saas", replay.SLO{TTFT: 3 * time.Second, TPOT: 50 * time.Millisecond}, 2 * time.Minute, nil},
	{"tiered-prefix", replay.SLO{TTFT: 5 * time.Second, TPOT: 50 * time.Millisecond}, time.Minute, nil},
	{"document-qa", replay.SLO{TTFT: 15 * time.Second, TPOT: 50 * time.Millisecond}, 3 * time.Minute, nil},
	{"code-generation", replay.SLO{TTFT: 15 * time.Second, TPOT: 50 * time.Millisecond}, 3 * time.Minute, nil},
	{"chat", replay.SLO{TTFT: time.Second, TPOT: 50 * time.Millisecond}, 2 * time.Minute, nil},
	{"reasoning", replay.SLO{TTFT: 3 * time.Second, TPOT: 50 * time.Millisecond}, 10 * time.Minute, nil},
}

// What is compared by default.
var (
	testedLoads   = []int{50, 70, 90, 110} // percent of the capacity
	testedEngines = []string{"llama-70b-h100-tp4", "qwen3-32b-h100-tp2", "gpt-oss-120b-h100-tp2"}
	testedPools   = []replay.Pool{{Prefill: 4, Decode: 2}, {Prefill: 3, Decode: 3}, {Prefill: 2, Decode: 4}}
)

// Bounds of the requests of a run.
const (
	leastTested = 200
	mostTested  = 2000
)

// policy is a configuration that takes part.
type policy struct {
	Name    string `json:"name"`
	About   string `json:"about"`
	config  *config.Config
	Flags   string `json:"flags"` // that replay it
	extreme bool   // it takes part in the search for the capacity
}

//go:embed llm-d-pd.yaml
var llmdPD []byte

//go:embed cost.yaml
var costYAML []byte

//go:embed drift.yaml
var driftYAML []byte

//go:embed oracle.yaml
var oracleYAML []byte

// Policies by name: that whose results are marked, and the one that it is compared with first.
const (
	ours      = "ours"
	published = "llm-d P/D"
)

// policies returns what takes part: the built-in configuration with several deciders, llm-d's, and those that flags name.
func (f *pickerFlags) policies() (all []policy, err error) {
	builtIn, err := config.Parse(config.Default(), plugin.Table)
	if err != nil {
		return nil, err
	}
	for _, one := range []struct {
		name, about string
		tokens      int
		extreme     bool
	}{
		{"always local", "the built-in configuration, but every prompt is computed where it is decoded", 0, true},
		{"always remote", "the built-in configuration, but every prompt is computed by a prefill engine, unless all of it is cached", 1, true},
		{"threshold 512", "the built-in configuration, but prompts of 512 uncached tokens are remote", 512, false},
		{"threshold 2048", "likewise with 2,048, which is the built-in configuration", 2048, true},
		{"threshold 8192", "likewise with 8,192", 8192, false},
	} {
		c, err := withThreshold(builtIn, one.tokens)
		if err != nil {
			return nil, err
		}
		all = append(all, policy{one.name, one.about, c, "--threshold " + strconv.Itoa(one.tokens), one.extreme})
	}
	theirs, err := config.Parse(llmdPD, plugin.Table)
	if err != nil {
		return nil, fmt.Errorf("llm-d's configuration: %w", err)
	}
	byCost, err := config.Parse(costYAML, plugin.Table)
	if err != nil {
		return nil, fmt.Errorf("the configuration with cost-pd-decider: %w", err)
	}
	byDrift, err := config.Parse(driftYAML, plugin.Table)
	if err != nil {
		return nil, fmt.Errorf("the configuration with drift-pd-decider: %w", err)
	}
	all = append(all, policy{published, "the configuration of llm-d's P/D guide", theirs, "--config cmd/tandem/replay/llm-d-pd.yaml", false},
		policy{"EDPP", "the built-in configuration, but drift-pd-decider decides", byDrift, "--config cmd/tandem/replay/drift.yaml", false},
		policy{ours, "the built-in configuration, but cost-pd-decider decides", byCost, "--config cmd/tandem/replay/cost.yaml", false})
	own := pickerFlags{Configs: f.Configs}
	if len(f.Configs) == 0 {
		return all, nil
	}
	configs, err := own.configs(&source{}, io.Discard)
	for _, c := range configs {
		all = append(all, policy{c.name, "a configuration of the command line", c.config, "--config " + c.name, false})
	}
	return all, err
}

// study is a comparison of policies.
type study struct {
	settings  *settings
	madeBy    string // the command
	policies  []policy
	workloads []testedWorkload
	models    []model
	pools     []replay.Pool
	loads     []int
	cells     []*cell
	most      []*most
}

// most is what each policy can bear of a workload on an engine and pool: the highest rate of sessions at which it serves enough requests as wanted,
// within 3 %; 0 if there is none. Papers on P/D serving call it goodput.
type most struct {
	Workload string    `json:"workload"`
	Engine   string    `json:"engine"`
	Pool     string    `json:"pool"`
	Rates    []float64 `json:"rates"` // in a second, in the order of the study's policies
}

// cell is one workload at one load on one engine and pool.
type cell struct {
	Workload string  `json:"workload"`
	Engine   string  `json:"engine"`
	Pool     string  `json:"pool"`
	Load     int     `json:"load_percent"`
	Rate     float64 `json:"rate"` // sessions that begin in a second
	Requests int     `json:"requests"`
	Best     string  `json:"best"`     // goodput
	Scores   []score `json:"policies"` // in the order of the study's policies
	Shared   score   `json:"shared"`   // as many engines that do both, always local; no policy of this pool
	// Oracle is what replay.Options.Oracle serves, which knows more than any policy can; nil: it did not run.
	Oracle *score `json:"oracle,omitempty"`
}

// score is what became of a policy in a cell.
type score struct {
	Met     float64  `json:"met"`         // share of the requests that met the objective
	Goodput float64  `json:"goodput"`     // such requests in a second
	TTFT    *float64 `json:"ttft_p95_ms"` // of all requests, a refused one being slower than any: nil if that is one
	Remote  float64  `json:"remote_share"`
	// Regret is the share of the requests that the best policy serves as wanted, and this one does not; less than 0 if Shared serves more. Goodput
	// would also tell when the last of some hundred answers ends: of policies that serve all as wanted, one would be 7 % behind another.
	Regret float64 `json:"regret"`
}

// group is the cells of one workload, engine and pool, whose capacity is common.
type group struct {
	*study
	workload testedWorkload
	model    model
	pool     replay.Pool
	turns    float64 // of a session
	cells    []*cell
	most     *most
}

// ownSpan is the span of a workload of the command line.
const ownSpan = 2 * time.Minute

// workloads returns what the command line names, or else the usual ones.
func (s *settings) workloads(files []string, warnings io.Writer) ([]testedWorkload, error) {
	if len(files) == 0 && s.Load.Shape == "" {
		return testedWorkloads, nil
	}
	from, err := s.Load.source(files, s.Picker.Seed, warnings)
	if err != nil {
		return nil, fmt.Errorf("reading the trace: %w", err)
	}
	own := testedWorkload{name: from.name, slo: s.slo(), span: ownSpan}
	if from.trace != nil {
		if n := len(from.calls()); n < leastTested && s.Load.Requests == 0 {
			return nil, fmt.Errorf("%s has %d requests, and --regret needs %d to load a pool; --requests says to use fewer", from.name, n, leastTested)
		}
		own.traced = &traced{from, from.rate()}
	}
	return []testedWorkload{own}, nil
}

// newStudy lists what is compared. Workloads, pools and engines of the command line take the place of the usual ones.
func (s *settings) newStudy(files []string, warnings io.Writer) (*study, error) {
	usual := defaults()
	t := &study{settings: s, madeBy: "make replay-report", pools: testedPools, loads: testedLoads}
	var err error
	if t.workloads, err = s.workloads(files, warnings); err != nil {
		return nil, err
	}
	if len(files) > 0 || s.Load.Shape != "" {
		t.madeBy = "tandem replay --regret"
	}
	names := testedEngines
	if !slices.Equal(s.Pool.Engines, usual.Pool.Engines) {
		names = s.Pool.Engines
	}
	if !slices.Equal(s.Pool.Pools, usual.Pool.Pools) {
		t.pools = s.Pool.Pools
	}
	for _, name := range names {
		m, err := s.Pool.model(name)
		if err != nil {
			return nil, err
		}
		t.models = append(t.models, m)
	}
	if t.policies, err = s.Picker.policies(); err != nil {
		return nil, err
	}
	for _, p := range t.policies {
		o := replay.Options{Config: p.config}
		if err := o.Supported(); err != nil {
			return nil, fmt.Errorf("configuration %s: %w", p.Name, err)
		}
	}
	return t, nil
}

// perform performs the study, as many groups at a time as there are cores. Progress is told on to.
func (t *study) perform(ctx context.Context, to io.Writer) error {
	var groups []*group
	for _, w := range t.workloads {
		for _, m := range t.models {
			for _, p := range t.pools {
				groups = append(groups, &group{study: t, workload: w, model: m, pool: p})
			}
		}
	}
	var mu sync.Mutex // guards the variables below and to
	finished, began := 0, time.Now()
	err := inParallel(len(groups), func(i int) error {
		g := groups[i]
		err := g.perform(ctx)
		mu.Lock()
		defer mu.Unlock()
		if finished++; err != nil {
			return fmt.Errorf("%s, %s, %v: %w", g.workload.name, g.model.name, g.pool, err)
		}
		left := time.Since(began) / time.Duration(finished) * time.Duration(len(groups)-finished)
		fmt.Fprintf(to, "%d/%d %s %s %v, about %v left\n", finished, len(groups), g.workload.name, g.model.name, g.pool, left.Round(time.Second))
		return nil
	})
	for _, g := range groups {
		t.cells = append(t.cells, g.cells...)
		if g.most != nil {
			t.most = append(t.most, g.most)
		}
	}
	return err
}

// load returns the requests at a rate of sessions. They come for as long as the workload says; those of a trace come as they came, but
// faster or slower.
func (g *group) load(rate float64) (*replay.Trace, error) {
	if g.workload.traced != nil {
		return g.hastened(rate)
	}
	f := loadFlags{Shape: g.workload.name, Rate: workload.Rates{First: rate, Last: rate}, Requests: g.requests(rate)}
	from, err := f.source(nil, g.settings.Picker.Seed, io.Discard)
	if err != nil {
		return nil, err
	}
	t, err := from.requests(1, 0)
	if err == nil {
		t.Wanted = g.workload.slo
	}
	return t, err
}

// hastened returns the first requests of a trace, at a rate of sessions.
func (g *group) hastened(rate float64) (*replay.Trace, error) {
	from, flags := *g.workload.from, *g.workload.from.flags
	flags.Requests, from.flags = g.requests(rate), &flags
	t, err := from.requests(rate/g.workload.rate, 0)
	if err == nil {
		t.Wanted = g.workload.slo
	}
	return t, err
}

// requests returns how many requests a run at a rate has.
func (g *group) requests(rate float64) int {
	if g.settings.Load.Requests > 0 {
		return g.settings.Load.Requests
	}
	return int(min(max(rate*g.turns*g.workload.span.Seconds(), leastTested), mostTested))
}

// replay runs a trace with a policy.
func (g *group) replay(ctx context.Context, c *config.Config, pool replay.Pool, t *replay.Trace) (score, error) {
	return g.score(ctx, g.settings.options(g.model, pool, c), t)
}

// score runs a trace.
func (g *group) score(ctx context.Context, o replay.Options, t *replay.Trace) (score, error) {
	o.First = 0 // policies are compared by their picks: no request goes another way later
	if err := o.Check(t); err != nil {
		return score{}, err
	}
	result, err := replay.Run(ctx, o, t)
	if err != nil {
		return score{}, err
	}
	s := result.Summary(g.workload.slo)
	x := score{Met: rounded(s.Goodput * result.End.Seconds() / float64(s.Requests)), Goodput: rounded(s.Goodput), Remote: rounded(s.RemoteShare)}
	var ttft []time.Duration
	for i := range result.Records {
		one := result.Records[i].TTFT
		if result.Records[i].Refused {
			one = math.MaxInt64
		}
		ttft = append(ttft, one)
	}
	slices.Sort(ttft)
	if p95 := ttft[int(math.Ceil(0.95*float64(len(ttft))))-1]; p95 < math.MaxInt64 {
		v := rounded(millis(p95))
		x.TTFT = &v
	}
	return x, nil
}

// capacity returns the highest rate at which one of the extreme policies serves enough requests as wanted, within 3 %; 0 if there is none.
func (g *group) capacity(ctx context.Context) (float64, error) {
	var extremes []*config.Config
	for i := range g.policies {
		if g.policies[i].extreme {
			extremes = append(extremes, g.policies[i].config)
		}
	}
	return g.highest(ctx, leastTested/(g.turns*g.workload.span.Seconds()), extremes)
}

// highest returns the highest rate, of rates around one to begin with, at which one of some configurations serves enough requests as wanted, within
// 3 %; 0 if there is none. The configuration that was enough last is tried first: it is likely to be again.
func (g *group) highest(ctx context.Context, rate float64, order []*config.Config) (float64, error) {
	return highest(rate, 5, func(rate float64) (bool, error) {
		t, err := g.load(rounded(rate))
		for i := 0; i < len(order) && err == nil; i++ {
			var s score
			if s, err = g.replay(ctx, order[i], g.pool, t); s.Met >= enough {
				order[0], order[i] = order[i], order[0]
				return true, err
			}
		}
		return false, err
	})
}

// limits finds the highest rate of every policy, beginning with one.
func (g *group) limits(ctx context.Context, rate float64) error {
	g.most = &most{Workload: g.workload.name, Engine: g.model.name, Pool: g.pool.String()}
	for i := range g.policies {
		highest, err := g.highest(ctx, rate, []*config.Config{g.policies[i].config})
		if err != nil {
			return err
		}
		g.most.Rates = append(g.most.Rates, rounded(highest))
	}
	return nil
}

// perform finds the capacity, and runs every policy at every load.
func (g *group) perform(ctx context.Context) error {
	probe, err := g.load(1)
	if err != nil {
		return err
	}
	sessions := 0
	for i := range probe.Requests {
		if probe.Requests[i].After == 0 {
			sessions++
		}
	}
	g.turns = float64(len(probe.Requests)) / float64(sessions)
	capacity, err := g.capacity(ctx)
	if err != nil {
		return err
	}
	for _, load := range g.loads {
		c := &cell{Workload: g.workload.name, Engine: g.model.name, Pool: g.pool.String(), Load: load, Rate: rounded(capacity * float64(load) / 100)}
		if capacity > 0 {
			if err := g.run(ctx, c); err != nil {
				return err
			}
		}
		g.cells = append(g.cells, c)
	}
	if capacity == 0 {
		return nil // then no policy is expected to bear any
	}
	return g.limits(ctx, capacity)
}

// run fills a cell.
func (g *group) run(ctx context.Context, c *cell) error {
	t, err := g.load(c.Rate)
	if err != nil {
		return err
	}
	c.Requests = len(t.Requests)
	var best *score
	c.Scores = make([]score, 0, len(g.policies))
	for i := range g.policies {
		s, err := g.replay(ctx, g.policies[i].config, g.pool, t)
		if err != nil {
			return err
		}
		c.Scores = append(c.Scores, s)
		if one := &c.Scores[i]; s.Met > 0 && (best == nil || one.better(best)) {
			best, c.Best = one, g.policies[i].Name
		}
	}
	if c.Shared, err = g.replay(ctx, g.policies[0].config, replay.Pool{Both: g.pool.Engines()}, t); err == nil && g.settings.Why.Oracle {
		err = g.oracle(ctx, c, t, best)
	}
	if best != nil {
		c.Shared.Regret = rounded(1 - c.Shared.Met/best.Met)
		for i := range c.Scores {
			c.Scores[i].Regret = rounded(1 - c.Scores[i].Met/best.Met)
		}
	}
	return err
}

// oracle runs the oracle in a cell.
func (g *group) oracle(ctx context.Context, c *cell, t *replay.Trace, best *score) error {
	all, err := config.Parse(oracleYAML, plugin.Table)
	if err != nil {
		return fmt.Errorf("the configuration of the oracle: %w", err)
	}
	o := g.settings.options(g.model, g.pool, all)
	o.Oracle = true
	s, err := g.score(ctx, o, t)
	if best != nil {
		s.Regret = rounded(1 - s.Met/best.Met)
	}
	c.Oracle = &s
	return err
}

// better reports whether more requests were served as wanted or, of as many, the slowest first tokens came earlier.
func (s *score) better(than *score) bool {
	if s.Met != than.Met || s.TTFT == nil || than.TTFT == nil {
		return s.Met > than.Met
	}
	return *s.TTFT < *than.TTFT
}

// rounded keeps four digits, more than the model is worth; so other processors print the same.
func rounded(v float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64) // what FormatFloat writes can be parsed
	return r
}
