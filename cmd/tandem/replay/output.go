package replay

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/replay"
)

// column is a column of the table.
type column struct {
	name string
	cell func(r *run) string
}

// columns returns the columns of a table of runs, for terminal and page.
func columns(runs []*run) []column {
	time := func(of func(s *replay.Summary) float64) func(*run) string {
		return func(r *run) string { return ms(of(&r.summary)) }
	}
	of := func(format string, of func(s *replay.Summary) float64) func(*run) string {
		return func(r *run) string { return fmt.Sprintf(format, of(&r.summary)) }
	}
	all := []column{
		{"config", func(r *run) string { return r.config }},
		{"pool", func(r *run) string { return r.pool.String() }},
		{"engine", func(r *run) string { return r.engine }},
		{"load/s", func(r *run) string { return fmt.Sprintf("%.3g", r.load) }},
		{"requests", func(r *run) string { return strconv.Itoa(r.summary.Requests) }},
		{"refused", func(r *run) string { return strconv.Itoa(r.summary.Refused) }},
		{"unfinished", func(r *run) string { return strconv.Itoa(r.summary.Unfinished) }},
		{"TTFT p50", time(func(s *replay.Summary) float64 { return s.TTFT.P50 })},
		{"p95", time(func(s *replay.Summary) float64 { return s.TTFT.P95 })},
		{"p99", time(func(s *replay.Summary) float64 { return s.TTFT.P99 })},
		{"ITL p50", time(func(s *replay.Summary) float64 { return s.ITL.P50 })},
		{"p99", time(func(s *replay.Summary) float64 { return s.ITL.P99 })},
		{"TPOT p50", time(func(s *replay.Summary) float64 { return s.TPOT.P50 })},
		{"p95", time(func(s *replay.Summary) float64 { return s.TPOT.P95 })},
		{"p99", time(func(s *replay.Summary) float64 { return s.TPOT.P99 })},
		{"E2E p50", time(func(s *replay.Summary) float64 { return s.E2E.P50 })},
		{"p95", time(func(s *replay.Summary) float64 { return s.E2E.P95 })},
		{"p99", time(func(s *replay.Summary) float64 { return s.E2E.P99 })},
		{"queued p95", time(func(s *replay.Summary) float64 { return s.Queued.P95 })},
		{"waited p95", time(func(s *replay.Summary) float64 { return s.Waited.P95 })},
		{"goodput/s", of("%.3g", func(s *replay.Summary) float64 { return s.Goodput })},
		{"tokens/s", of("%.0f", func(s *replay.Summary) float64 { return s.Throughput })},
		{"per GPU", of("%.1f", func(s *replay.Summary) float64 { return s.PerGPU })},
		{"remote", of("%.1f%%", func(s *replay.Summary) float64 { return 100 * s.RemoteShare })},
		{"hits", of("%.1f%%", func(s *replay.Summary) float64 { return 100 * s.HitRate })},
		{"KV moved", of("%.1f GB", func(s *replay.Summary) float64 { return s.KVBytes / 1e9 })},
		{"preempted", func(r *run) string { return strconv.Itoa(r.summary.Preemptions) }},
		{"GPU s", of("%.0f", func(s *replay.Summary) float64 { return s.GPUSeconds })},
	}
	if slices.ContainsFunc(runs, func(r *run) bool { return r.scaler != "" }) {
		at := slices.IndexFunc(all, func(c column) bool { return c.name == "GPU s" })
		all[at] = column{"GPU h", of("%.1f", func(s *replay.Summary) float64 { return s.GPUSeconds / 3600 })}
		all = slices.Insert(all, at, column{"reversals", func(r *run) string { return strconv.Itoa(r.summary.Reversals) }})
		all = slices.Insert(all, at, column{"met", of("%.2f%%", func(s *replay.Summary) float64 { return 100 * s.Met })})
		all = slices.Insert(all, 0, column{"autoscaler", func(r *run) string { return cmp.Or(r.scaler, "–") }})
	}
	if slices.ContainsFunc(runs, func(r *run) bool { return len(r.shares) > 0 }) {
		all = append(all, column{"met", of("%.1f%%", func(s *replay.Summary) float64 { return 100 * s.Met })},
			column{"cost", of("%.3g", func(s *replay.Summary) float64 { return s.Cost })}, column{"per 1000 met", of("%.3g", func(s *replay.Summary) float64 { return s.PerMet })})
	}
	if slices.ContainsFunc(runs, func(r *run) bool { return r.options.Engine.HostTokens > 0 }) {
		hits := slices.IndexFunc(all, func(c column) bool { return c.name == "hits" })
		all = slices.Insert(all, hits+1, column{"from host", of("%.1f%%", func(s *replay.Summary) float64 { return 100 * s.LoadRate })})
	}
	if slices.ContainsFunc(runs, func(r *run) bool { return r.replicas > 1 }) {
		all = slices.Insert(all, 1, column{"replicas", func(r *run) string { return strconv.Itoa(r.replicas) }})
	}
	if slices.ContainsFunc(runs, func(r *run) bool { return r.threshold != nil }) {
		all = slices.Insert(all, 1, column{"threshold", (*run).thresholdText})
	}
	if slices.ContainsFunc(runs, func(r *run) bool { return r.summary.Refused > 0 }) {
		at := slices.IndexFunc(all, func(c column) bool { return c.name == "refused" })
		all = slices.Insert(all, at+1, column{"for", (*run).refusalText})
	}
	for _, rare := range []struct {
		name string
		of   func(s *replay.Summary) int
	}{{"evicted", func(s *replay.Summary) int { return s.Evicted }}, {"fell back", func(s *replay.Summary) int { return s.FellBack }}} {
		if slices.ContainsFunc(runs, func(r *run) bool { return rare.of(&r.summary) > 0 }) {
			at := slices.IndexFunc(all, func(c column) bool { return c.name == "preempted" }) + 1
			all = slices.Insert(all, at, column{rare.name, func(r *run) string { return strconv.Itoa(rare.of(&r.summary)) }})
		}
	}
	if slices.ContainsFunc(runs, func(r *run) bool { return r.requests.Concurrency > 0 }) {
		at := slices.IndexFunc(all, func(c column) bool { return c.name == "load/s" })
		all = slices.Insert(all, at, column{"concurrency", func(r *run) string { return strconv.Itoa(r.requests.Concurrency) }})
	}
	return all
}

// thresholdText returns the threshold that --threshold gave, or a dash.
func (r *run) thresholdText() string {
	if r.threshold == nil {
		return "–"
	}
	return strconv.Itoa(*r.threshold)
}

// refusalText returns for what requests were refused, the most frequent reason first.
func (r *run) refusalText() string {
	reasons := slices.SortedFunc(maps.Keys(r.refusals), func(a, b pd.Reason) int {
		return cmp.Or(r.refusals[b]-r.refusals[a], cmp.Compare(a, b))
	})
	var all []string
	for _, reason := range reasons {
		all = append(all, fmt.Sprintf("%d %s", r.refusals[reason], reason))
	}
	if len(all) == 0 {
		return "–"
	}
	return strings.Join(all, ", ")
}

// write prints runs, in their order, and what is known of their why.
func (o *outputFlags) write(w io.Writer, runs []*run, why *whys) error {
	if o.JSON {
		return writeJSON(w, runs, why)
	}
	shown := columns(runs)
	t := aligned(w)
	row := func(cell func(c column) string) {
		var cells strings.Builder
		for _, c := range shown {
			cells.WriteString(cell(c) + "\t")
		}
		fmt.Fprintln(t, cells.String())
	}
	row(func(c column) string { return c.name })
	for _, r := range runs {
		row(func(c column) string { return c.cell(r) })
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := errors.Join(writeClasses(w, runs), writeShares(w, runs)); err != nil {
		return err
	}
	text, err := why.text()
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintf(w, "\nTimes in ms. %s\n%s", o.goal(), text); err != nil {
		return err
	}
	return errors.Join(writeMeasured(w, runs), writePicks(w, runs))
}

func aligned(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
}

// writeClasses prints what became of each class of each run, if there are any.
func writeClasses(w io.Writer, runs []*run) error {
	if !slices.ContainsFunc(runs, func(r *run) bool { return len(r.classes) > 0 }) {
		return nil
	}
	t := aligned(w)
	fmt.Fprintln(t, "\nrun\tclass\trequests\trefused\tTTFT p50\tp95\tp99\tTPOT p50\tp95\tp99\tE2E p95\tSLO\tmet\tgoodput/s\t")
	for i, r := range runs {
		for _, c := range r.classes {
			fmt.Fprintf(t, "%d\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f%%\t%.3g\t\n", i+1, c.Name, c.Requests, c.Refused, ms(c.TTFT.P50), ms(c.TTFT.P95), ms(c.TTFT.P99),
				ms(c.TPOT.P50), ms(c.TPOT.P95), ms(c.TPOT.P99), ms(c.E2E.P95), objective(c.SLO), 100*c.Met, c.Goodput)
		}
	}
	return t.Flush()
}

// writeShares prints what each variant of each run did, if there are any.
func writeShares(w io.Writer, runs []*run) error {
	if !slices.ContainsFunc(runs, func(r *run) bool { return len(r.shares) > 0 }) {
		return nil
	}
	t := aligned(w)
	fmt.Fprintln(t, "\nrun\tvariant\tengines\tdesired\tcost/h\trequests\tmet\t")
	for i, r := range runs {
		for _, v := range r.shares {
			desired := "–"
			if v.Desired > 0 {
				desired = strconv.Itoa(v.Desired)
			}
			fmt.Fprintf(t, "%d\t%s\t%d\t%s\t%.4g\t%d\t%.1f%%\t\n", i+1, v.Variant, v.Engines, desired, v.Cost, v.Requests, 100*float64(v.Met)/float64(max(1, v.Requests)))
		}
	}
	return t.Flush()
}

// objective writes an SLO as short as it can be.
func objective(s replay.SLO) string {
	bound := func(d time.Duration) string {
		if d == 0 {
			return "–"
		}
		return d.String()
	}
	return bound(s.TTFT) + "/" + bound(s.TPOT)
}

// goal says what goodput counts.
func (o *outputFlags) goal() string {
	return fmt.Sprintf("Goodput: requests a second with TTFT ≤ %v and TPOT ≤ %v.", o.TTFT, o.TPOT)
}

// ms formats milliseconds with three digits.
func ms(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// shown is a run in JSON.
type shown struct {
	Autoscaler  string           `json:"autoscaler,omitempty"`
	Config      string           `json:"config"`
	Threshold   *int             `json:"threshold,omitempty"` // if --threshold gave it one
	Pool        string           `json:"pool,omitempty"`      // if there are several
	Replicas    int              `json:"replicas,omitempty"`  // if there are several pickers
	Concurrency int              `json:"concurrency,omitempty"`
	Engine      string           `json:"engine"`
	Trace       string           `json:"trace"`
	Load        float64          `json:"load"`
	Requests    int              `json:"requests"`
	TTFT        replay.Quantiles `json:"ttft_ms"`
	TPOT        replay.Quantiles `json:"tpot_ms"`
	Goodput     float64          `json:"goodput"`
	RemoteShare float64          `json:"remote_share"`
	GPUSeconds  float64          `json:"gpu_seconds"`
	More        details          `json:"more"`
}

// details are the further numbers of a run.
type details struct {
	Refused     int               `json:"refused"`
	Refusals    map[pd.Reason]int `json:"refusals,omitempty"` // by reason
	Unfinished  int               `json:"unfinished"`
	ITL         replay.Quantiles  `json:"itl_ms"`
	E2E         replay.Quantiles  `json:"e2e_ms"`
	Queued      replay.Quantiles  `json:"queued_ms"` // in the picker
	Waited      replay.Quantiles  `json:"waited_ms"` // in the queues of engines
	Throughput  float64           `json:"output_tokens_per_s"`
	PerGPU      float64           `json:"output_tokens_per_s_per_gpu"`
	HitRate     float64           `json:"hit_rate"`
	LoadRate    float64           `json:"load_rate,omitempty"` // from the hosts' memory
	KVBytes     float64           `json:"kv_bytes"`
	Preemptions int               `json:"preemptions"`
	Evicted     int               `json:"evicted,omitempty"`
	FellBack    int               `json:"fell_back,omitempty"`
	Cost        float64           `json:"cost,omitempty"`              // of the pool, as long as the run took
	PerMet      float64           `json:"cost_per_1000_met,omitempty"` // requests
	Variants    []variantDetails  `json:"variants,omitempty"`
	Scaled      *scaledDetails    `json:"scaled,omitempty"`
	Classes     []classDetails    `json:"classes,omitempty"`
	Picks       *picksDetails     `json:"picks,omitempty"` // of a capture
	Measured    *measured         `json:"measured,omitempty"`
}

// variantDetails are the numbers of a variant of the pool.
type variantDetails struct {
	Variant  string  `json:"variant"`
	Engines  int     `json:"engines"`
	Cost     float64 `json:"cost_per_hour"` // of all of them
	Requests int     `json:"requests"`      // whose answers they generated
	Met      int     `json:"met"`           // of these
	Desired  int     `json:"desired,omitempty"`
}

func (r *run) variantDetails() (all []variantDetails) {
	for _, v := range r.shares {
		all = append(all, variantDetails(v))
	}
	return all
}

// classDetails are the numbers of a class of requests.
type classDetails struct {
	Class    string           `json:"class"`
	SLOTTFT  float64          `json:"slo_ttft_ms"` // 0: any
	SLOTPOT  float64          `json:"slo_tpot_ms"`
	Requests int              `json:"requests"`
	Refused  int              `json:"refused"`
	TTFT     replay.Quantiles `json:"ttft_ms"`
	TPOT     replay.Quantiles `json:"tpot_ms"`
	E2E      replay.Quantiles `json:"e2e_ms"`
	Met      float64          `json:"met"` // share of the requests
	Goodput  float64          `json:"goodput"`
}

func (r *run) classDetails() (all []classDetails) {
	for _, c := range r.classes {
		all = append(all, classDetails{c.Name, millis(c.SLO.TTFT), millis(c.SLO.TPOT), c.Requests, c.Refused, c.TTFT, c.TPOT, c.E2E, c.Met, c.Goodput})
	}
	return all
}

func writeJSON(w io.Writer, runs []*run, why *whys) error {
	all := struct {
		Runs []shown `json:"runs"`
		*whys
	}{[]shown{}, why}
	pools := slices.ContainsFunc(runs, func(r *run) bool { return r.pool != runs[0].pool })
	for _, r := range runs {
		pool := ""
		if pools {
			pool = r.pool.String()
		}
		s := &r.summary
		all.Runs = append(all.Runs, shown{r.scaler, r.config, r.threshold, pool, several(r.replicas), r.requests.Concurrency, r.engine, r.trace, r.load, s.Requests, s.TTFT, s.TPOT, s.Goodput, s.RemoteShare, s.GPUSeconds,
			details{s.Refused, r.refusals, s.Unfinished, s.ITL, s.E2E, s.Queued, s.Waited, s.Throughput, s.PerGPU, s.HitRate, s.LoadRate, s.KVBytes, s.Preemptions, s.Evicted, s.FellBack, s.Cost, s.PerMet, r.variantDetails(), r.scaledDetails(), r.classDetails(), r.picksDetails(), r.measured()}})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(all)
}

// line is one request of one run, in JSON.
type line struct {
	Config    string  `json:"config"`
	Threshold *int    `json:"threshold,omitempty"`
	Pool      string  `json:"pool"`
	Replicas  int     `json:"replicas,omitempty"`
	Engine    string  `json:"engine"`
	Load      float64 `json:"load"`
	Request   int     `json:"request"` // of the trace, from 1
	Class     string  `json:"class,omitempty"`
	Due       float64 `json:"due_ms"`
	Input     int     `json:"input_tokens"`
	Output    int     `json:"output_tokens"`
	Verdict   string  `json:"verdict"`
	Reason    string  `json:"reason"`
	Prefill   string  `json:"prefill,omitempty"`
	Decode    string  `json:"decode,omitempty"`
	Cached    int     `json:"cached_tokens"`
	Loaded    int     `json:"loaded_tokens,omitempty"` // from the host's memory
	Moved     int     `json:"moved_tokens"`
	Preempted int     `json:"preempted"`
	Evicted   bool    `json:"evicted,omitempty"`   // after the pick
	FellBack  bool    `json:"fell_back,omitempty"` // its hand-off could not be used
	Queued    float64 `json:"queued_ms"`
	Waited    float64 `json:"waited_ms"`
	TTFT      float64 `json:"ttft_ms"`
	E2E       float64 `json:"e2e_ms"`
}

// perRequest writes the file of --per-request.
func (o *outputFlags) perRequest(runs []*run) (err error) {
	if o.PerRequest == "" {
		return nil
	}
	file, err := os.Create(o.PerRequest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := bufio.NewWriter(file)
	e := json.NewEncoder(w)
	for _, r := range runs {
		for i := range r.result.Records {
			one := &r.result.Records[i]
			verdict, class := "local", ""
			if len(r.result.Classes) > 0 {
				class = r.result.Classes[one.Class].Name
			}
			switch {
			case one.Refused:
				verdict = "refused"
			case one.Remote:
				verdict = "remote"
			}
			if err := e.Encode(line{r.config, r.threshold, r.pool.String(), several(r.replicas), r.engine, r.load, one.Index + 1, class, millis(one.Due), one.Input, one.Output, verdict, string(one.Reason),
				one.Prefill, one.Decode, one.Cached, one.Loaded, one.Moved, one.Preempted, one.Evicted, one.FellBack, millis(one.Queued), millis(one.Waited), millis(one.TTFT), millis(one.E2E)}); err != nil {
				return err
			}
		}
	}
	return w.Flush()
}

// several returns a number of pickers for JSON, which names only several.
func several(replicas int) int {
	if replicas == 1 {
		return 0
	}
	return replicas
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }
