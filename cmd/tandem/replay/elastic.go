package replay

import (
	"bytes"
	"context"
	_ "embed" // a configuration
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/cmd/tandem/workload"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/replay"
)

// traffic is requests of one kind on one engine, on which autoscalers are compared.
type traffic struct {
	Name          string  `json:"name"`
	Engine        string  `json:"engine"`
	Rate          float64 `json:"rate"` // requests in a second, the mean of a week
	input, output workload.Lengths
}

// scaledTraffic: prompts load most engines of the first, and answers those of the second.
var scaledTraffic = []traffic{
	{"documents", "llama-70b-h100-tp4", 0.5, workload.Lengths{Least: 8000, Most: 24000}, workload.Lengths{Least: 100, Most: 500}},
	{"conversations", "qwen3-32b-h100-tp2", 0.5, workload.Lengths{Least: 1000, Most: 8000}, workload.Lengths{Least: 200, Most: 800}},
}

// What autoscalers are compared with.
var (
	scaledDays   = []int{4, 6} // of a week: that of the flash crowd, and a Saturday
	scaledPool   = replay.Pool{Prefill: 2, Decode: 2}
	scaledLimits = limits{1, 32}
	scaledSLO    = replay.SLO{TTFT: 6 * time.Second, TPOT: 50 * time.Millisecond} // elastic.yaml has it too
)

// steadyFor is how long the steady load lasts, on which reversals are counted. The first requests are learnt from.
const steadyFor = 6 * time.Hour

//go:embed elastic.yaml
var elasticYAML []byte

// contender is an autoscaler with its settings.
type contender struct {
	Name   string `json:"name"`
	Flags  string `json:"flags"`
	scaler string
	set    func(f *scalingFlags)
}

// contenders lists the autoscalers. HPAs have several targets, because none is right for every traffic.
func contenders() (all []contender) {
	add := func(scaler, target string, set func(f *scalingFlags)) {
		name, flags := scaler, "--autoscaler "+scaler
		if target != "" {
			name += " " + target
			prefill, decode, _ := strings.Cut(target, "/")
			flags += fmt.Sprintf(" --%s-prefill %s --%s-decode %s", scaler, prefill, scaler, decode)
		}
		all = append(all, contender{name, flags, scaler, set})
	}
	asIs := func(*scalingFlags) {}
	add(clairvoyant, "", asIs)
	add(fixedSizes, "", asIs)
	for _, t := range []float64{0.1, 1} {
		add(hpaQueue, fmt.Sprintf("%v/%v", t, t), func(f *scalingFlags) { f.PrefillQueue, f.DecodeQueue = t, t })
	}
	for _, t := range [][2]float64{{0.1, 0.2}, {0.3, 0.4}} {
		add(hpaKV, fmt.Sprintf("%v/%v", t[0], t[1]), func(f *scalingFlags) { f.PrefillKV, f.DecodeKV = t[0], t[1] })
	}
	add(bySizer, "", asIs)
	return all
}

// searches reports whether the contender knows the load beforehand.
func (c *contender) searches() bool { return c.scaler == clairvoyant || c.scaler == fixedSizes }

// elasticity is a comparison of autoscalers.
type elasticity struct {
	settings   *settings
	name       string // of the configuration
	config     *config.Config
	days       []int
	traffic    []traffic
	contenders []contender
	runs       []*elasticRun
}

// elasticRun is a run of one contender.
type elasticRun struct {
	*run
	traffic   *traffic
	contender *contender
	steady    bool
}

// elasticRow is the result of a run.
type elasticRow struct {
	Traffic    string  `json:"traffic"`
	Load       string  `json:"load"` // "days" of a week, or "steady"
	Autoscaler string  `json:"autoscaler"`
	Met        float64 `json:"met"` // share of the requests that met the objective
	GPUHours   float64 `json:"gpu_hours"`
	Reversals  int     `json:"reversals"` // within ten minutes, at most
	Changes    int     `json:"changes"`   // of the size of a role
	TTFT       float64 `json:"ttft_p99_ms"`
	TPOT       float64 `json:"tpot_p99_ms"`
	Refused    int     `json:"refused"`
	Requests   int     `json:"requests"`
}

func (r *elasticRun) row() elasticRow {
	s := &r.summary
	return elasticRow{r.traffic.Name, r.load(), r.contender.Name, rounded(s.Met), rounded(s.GPUSeconds / 3600), s.Reversals, len(r.sizes) - 2,
		rounded(s.TTFT.P99), rounded(s.TPOT.P99), s.Refused, s.Requests}
}

func (r *elasticRun) load() string {
	if r.steady {
		return "steady"
	}
	return "days"
}

// checkElastic returns why flags make no sense with --elastic; nil if they do.
func (s *settings) checkElastic(files []string) error {
	switch usual := defaults(); {
	case len(files) > 0 || s.Load.Shape != "" || s.Load.Arrivals != "" || s.Load.Rate != workload.Rates{} || len(s.Load.Concurrency) > 0 || s.Load.Requests > 0 || s.Load.Classes != "":
		return boot.Usagef("--elastic has loads of its own: of those flags it takes --week-days alone")
	case s.Why.Regret || len(s.Scaling.Autoscalers) > 0:
		return boot.Usagef("--elastic compares all autoscalers: leave out --regret and --autoscaler")
	case s.Output.TTFT != usual.Output.TTFT || s.Output.TPOT != usual.Output.TPOT:
		return boot.Usagef("--elastic has one objective, TTFT within %v and TPOT within %v: leave out --slo-ttft and --slo-tpot", scaledSLO.TTFT, scaledSLO.TPOT)
	}
	return nil
}

// elastic is the command with --elastic. Nothing is written if it is interrupted.
func (s *settings) elastic(ctx context.Context, files []string, std boot.IO) error {
	if err := s.checkElastic(files); err != nil {
		return err
	}
	e, err := s.newElasticity()
	if err != nil {
		return boot.Configf("%w", err)
	}
	if err := e.perform(ctx, std.Stderr); err != nil {
		if errors.Is(err, context.Canceled) {
			return errors.New("interrupted: there is no result")
		}
		return err
	}
	write := e.text
	if s.Output.JSON {
		write = e.json
	}
	err = write(std.Stdout)
	if s.Output.Page != "" {
		var b bytes.Buffer
		if err = errors.Join(err, report.PlotsHTML(&b, e.page())); err == nil {
			err = os.WriteFile(s.Output.Page, b.Bytes(), 0o644)
		}
	}
	if err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	return nil
}

// newElasticity lists what is compared. The configuration and the engines of the command line take the place of the usual ones.
func (s *settings) newElasticity() (*elasticity, error) {
	e := &elasticity{settings: s, name: "cmd/tandem/replay/elastic.yaml", days: scaledDays, contenders: contenders()}
	if len(s.Load.Days) > 0 {
		e.days = s.Load.Days
	}
	for _, t := range scaledTraffic {
		if slices.Equal(s.Pool.Engines, defaults().Pool.Engines) || slices.Contains(s.Pool.Engines, t.Engine) {
			e.traffic = append(e.traffic, t)
		}
	}
	if len(e.traffic) == 0 {
		return nil, fmt.Errorf("--elastic compares on %s and %s: --engine names none of them", scaledTraffic[0].Engine, scaledTraffic[1].Engine)
	}
	var err error
	switch len(s.Picker.Configs) {
	case 0:
		e.config, err = config.Parse(elasticYAML, plugin.Table)
	case 1:
		var all []named
		if all, err = s.Picker.configs(&source{}, io.Discard); err == nil {
			e.name, e.config = all[0].name, all[0].config
		}
	default:
		return nil, errors.New("--elastic compares autoscalers under one configuration: name one --config")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	return e, e.plan()
}

// plan lists the runs.
func (e *elasticity) plan() error {
	for i := range e.contenders {
		for k := range e.traffic {
			for _, steady := range []bool{false, true} {
				c, t := &e.contenders[i], &e.traffic[k]
				if steady && c.searches() {
					continue
				}
				r, err := e.run(t, c, steady)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", t.Name, c.Name, err)
				}
				e.runs = append(e.runs, &elasticRun{r, t, c, steady})
			}
		}
	}
	return nil
}

// run returns the run of a contender.
func (e *elasticity) run(t *traffic, c *contender, steady bool) (*run, error) {
	s := *e.settings
	s.Picker.Scrape, s.Picker.Replicas, s.Pool.Engines = time.Second, []int{1}, []string{t.Engine}
	s.Output.TTFT, s.Output.TPOT = scaledSLO.TTFT, scaledSLO.TPOT
	s.Scaling.Prefill, s.Scaling.Decode, s.Scaling.Autoscalers = scaledLimits, scaledLimits, []string{c.scaler}
	c.set(&s.Scaling)
	s.Load = loadFlags{Speeds: []float64{1}, Days: e.days, Arrivals: "week", Rate: workload.Rates{First: t.Rate, Last: t.Rate}, Input: t.input, Output: t.output}
	if steady {
		s.Load.Arrivals, s.Load.Requests = "poisson", int(t.Rate*steadyFor.Seconds())
	}
	from, err := s.Load.source(nil, s.Picker.Seed, io.Discard)
	if err != nil {
		return nil, err
	}
	requests, err := from.requests(1, 0)
	if err != nil {
		return nil, err
	}
	requests.Wanted = scaledSLO
	runs, err := s.under(nil, from, requests, []replay.Pool{scaledPool}, []named{{e.name, nil, e.config}})
	if err != nil {
		return nil, err
	}
	return runs[0], nil
}

// perform performs the autoscalers first: searches begin with the sizes of replica-sizer, which are near.
func (e *elasticity) perform(ctx context.Context, to io.Writer) error {
	var first, searches []*run
	for _, r := range e.runs {
		if r.search == nil {
			first = append(first, r.run)
		} else {
			searches = append(searches, r.run)
		}
	}
	if err := perform(ctx, first, scaledSLO, false, to); err != nil || len(searches) == 0 {
		return err
	}
	for _, r := range e.runs {
		if r.search != nil {
			r.search.from = r.near(e.of(r.traffic, bySizer, false).sizes)
		}
	}
	return perform(ctx, searches, scaledSLO, false, to)
}

// usually is the share of the time in which fixed sizes to begin with are enough: more of it would be those of the flash crowd.
const usually = 0.97

// near returns the sizes that a search begins with: for each interval the largest ones of a run; for a single interval, as large as they
// usually were.
func (r *elasticRun) near(sizes []replay.Resize) [][2]int {
	all := r.requests.Requests
	each := searchEach
	most := make([][2]int, 1+int(all[len(all)-1].Due/each))
	var now [2]int
	next := 0
	for i := range most {
		for most[i] = now; next < len(sizes) && sizes[next].At < time.Duration(i+1)*each; next++ {
			role := 1
			if sizes[next].Role == "prefill" {
				role = 0
			}
			now[role] = sizes[next].Size
			most[i][role] = max(most[i][role], now[role])
		}
	}
	if r.search.each == each {
		return most
	}
	var usual [2]int
	for role := range usual {
		slices.SortFunc(most, func(a, b [2]int) int { return a[role] - b[role] })
		usual[role] = most[int(usually*float64(len(most)-1))][role]
	}
	return [][2]int{usual}
}

// again returns the command that repeats a run, but for the flags of its autoscaler.
func (e *elasticity) again(t *traffic, steady bool) string {
	var days []string
	for _, d := range e.days {
		days = append(days, strconv.Itoa(d))
	}
	load := "--arrivals week --week-days " + strings.Join(days, ",")
	if steady {
		load = fmt.Sprintf("--arrivals poisson --requests %d", int(t.Rate*steadyFor.Seconds()))
	}
	return fmt.Sprintf("tandem replay --config %s --engine %s %s --rate %v --input-tokens %d-%d --output-tokens %d-%d --pool %v --scale-prefill 1-32 --scale-decode 1-32 "+
		"--slo-ttft %v --refresh-metrics-interval 1s", e.name, t.Engine, load, t.Rate, t.input.Least, t.input.Most, t.output.Least, t.output.Most, scaledPool, scaledSLO.TTFT)
}

// of returns the row of an autoscaler; of HPAs with several targets, the one with the fewest GPU-hours of those that meet the objective often
// enough, or else the one that meets it most often.
func (e *elasticity) of(t *traffic, scaler string, steady bool) (best *elasticRun) {
	better := func(a, b *elasticRun) bool {
		enough := e.settings.Scaling.Share
		if a.summary.Met < enough || b.summary.Met < enough {
			return a.summary.Met > b.summary.Met
		}
		return a.summary.GPUSeconds < b.summary.GPUSeconds
	}
	for _, r := range e.runs {
		if r.traffic == t && r.steady == steady && r.contender.scaler == scaler && (best == nil || better(r, best)) {
			best = r
		}
	}
	return best
}

// What replica-sizer is to do.
const (
	mostOfClairvoyant = 1.15 // times the GPU-hours of clairvoyant sizes
	mostOfQueue       = 0.8  // times those of the HPA on queues
	mostReversals     = 1    // within ten minutes, at steady load
)

// bar is a figure that replica-sizer is to reach on one traffic.
type bar struct {
	Traffic string  `json:"traffic"`
	Name    string  `json:"name"`
	Wanted  string  `json:"wanted"`
	Got     float64 `json:"got"`
	Held    bool    `json:"held"`
	Note    string  `json:"note,omitempty"`
}

// bars judges replica-sizer.
func (e *elasticity) bars() (all []bar) {
	for i := range e.traffic {
		t := &e.traffic[i]
		mine, least, queue := e.of(t, bySizer, false), e.of(t, clairvoyant, false), e.of(t, hpaQueue, false)
		share := e.settings.Scaling.Share
		add := func(name, wanted string, got float64, held bool, note string) {
			all = append(all, bar{t.Name, name, wanted, rounded(got), held, note})
		}
		met := mine.summary.Met
		add("requests that meet the objective", fmt.Sprintf("≥ %v", share), met, met >= share, "")
		of := mine.summary.GPUSeconds / least.summary.GPUSeconds
		add("GPU-hours, as a multiple of clairvoyant ones", fmt.Sprintf("≤ %v", mostOfClairvoyant), of, of <= mostOfClairvoyant, "")
		of = mine.summary.GPUSeconds / queue.summary.GPUSeconds
		note := fmt.Sprintf("%s meets it in %s", queue.contender.Name, percent2(queue.summary.Met))
		add("GPU-hours, as a multiple of the HPA's on queues", fmt.Sprintf("≤ %v", mostOfQueue), of, of <= mostOfQueue, note)
		n := e.of(t, bySizer, true).summary.Reversals
		add("reversals within ten minutes at steady load", fmt.Sprintf("≤ %d", mostReversals), float64(n), n <= mostReversals, "")
	}
	return all
}

func percent2(share float64) string { return fmt.Sprintf("%.2f%%", 100*share) }
