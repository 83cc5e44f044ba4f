package replay

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/replay"
	"github.com/tandem-serving/tandem/replay/autoscale"
)

// scalingFlags say how pools follow the load.
type scalingFlags struct {
	Autoscalers  []string      `flag:"autoscaler" arg:"NAME[,…]" help:"have the pool follow an autoscaler: fixed (the smallest pool that meets --attainment, found by search), hpa-queue, hpa-kv (the HPA of Kubernetes, by waiting requests or by KV usage of an engine), replica-sizer (the HPA by the plugin, which the configuration must have), clairvoyant (the smallest sizes of every quarter of an hour that meet --attainment, found by search). Several are compared"`
	Prefill      limits        `flag:"scale-prefill" arg:"MIN-MAX" help:"prefill engines"`
	Decode       limits        `flag:"scale-decode" arg:"MIN-MAX" help:"engines that decode"`
	PrefillReady time.Duration `flag:"prefill-ready" arg:"DURATION" help:"from the decision for a prefill engine until it serves"`
	DecodeReady  time.Duration `flag:"decode-ready" arg:"DURATION" help:"likewise for an engine that decodes"`
	PrefillQueue float64       `flag:"hpa-queue-prefill" arg:"REQUESTS" help:"target of hpa-queue: waiting requests in a prefill engine"`
	DecodeQueue  float64       `flag:"hpa-queue-decode" arg:"REQUESTS" help:"likewise in an engine that decodes"`
	PrefillKV    float64       `flag:"hpa-kv-prefill" arg:"SHARE" help:"target of hpa-kv: used share of the KV cache of a prefill engine"`
	DecodeKV     float64       `flag:"hpa-kv-decode" arg:"SHARE" help:"likewise of an engine that decodes"`
	Share        float64       `flag:"attainment" arg:"SHARE" help:"of the requests that are to meet --slo-ttft and --slo-tpot: what fixed and clairvoyant are the smallest for"`
}

// limits bound the engines of a role.
type limits struct{ Min, Max int }

// UnmarshalText reads limits such as 1-16.
func (l *limits) UnmarshalText(text []byte) error {
	low, high, ok := strings.Cut(string(text), "-")
	least, err := strconv.Atoi(strings.TrimSpace(low))
	most, err2 := strconv.Atoi(strings.TrimSpace(high))
	if !ok || errors.Join(err, err2) != nil || least < 0 || most < max(1, least) {
		return fmt.Errorf("%q are not two numbers of engines such as 1-16", text)
	}
	*l = limits{least, most}
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (l limits) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%d-%d", l.Min, l.Max), nil }

// Autoscalers, by their names.
const (
	fixedSizes  = "fixed"
	hpaQueue    = "hpa-queue"
	hpaKV       = "hpa-kv"
	bySizer     = "replica-sizer"
	clairvoyant = "clairvoyant"
)

var autoscalers = []string{fixedSizes, hpaQueue, hpaKV, bySizer, clairvoyant}

func (f *scalingFlags) validate(p *boot.Problems) {
	for _, name := range f.Autoscalers {
		p.Require(slices.Contains(autoscalers, name), "autoscaler", "%q is not one of %s", name, strings.Join(autoscalers, ", "))
	}
	p.Require(f.Decode.Min > 0, "scale-decode", "must have at least one engine")
	p.Require(f.PrefillReady > 0, "prefill-ready", "must be positive")
	p.Require(f.DecodeReady > 0, "decode-ready", "must be positive")
	p.Require(f.PrefillQueue > 0, "hpa-queue-prefill", "must be positive")
	p.Require(f.DecodeQueue > 0, "hpa-queue-decode", "must be positive")
	p.Require(f.PrefillKV > 0 && f.PrefillKV <= 1, "hpa-kv-prefill", "must be more than 0 and at most 1")
	p.Require(f.DecodeKV > 0 && f.DecodeKV <= 1, "hpa-kv-decode", "must be more than 0 and at most 1")
	p.Require(f.Share > 0 && f.Share < 1, "attainment", "must be more than 0 and less than 1")
}

// scaled returns each configuration with each autoscaler.
func (s *settings) scaled(configs []replicated) (all []replicated) {
	if len(s.Scaling.Autoscalers) == 0 {
		return configs
	}
	for _, c := range configs {
		for _, name := range s.Scaling.Autoscalers {
			c.scaler = name
			all = append(all, c)
		}
	}
	return all
}

// searchEach is the interval of the clairvoyant sizes.
const searchEach = 15 * time.Minute

// apply has the pool of a run follow its autoscaler. The pool begins within the limits.
func (f *scalingFlags) apply(r *run, slo replay.SLO) error {
	if r.scaler == "" {
		return nil
	}
	o := &r.options
	within := func(n int, l limits) int { return max(l.Min, min(n, l.Max)) }
	o.Pool.Prefill = within(o.Pool.Prefill, f.Prefill)
	if o.Pool.Both > 0 {
		o.Pool.Both = within(o.Pool.Both, f.Decode)
	} else {
		o.Pool.Decode = within(o.Pool.Decode, f.Decode)
	}
	o.Scaling = &replay.Scaling{
		Prefill: replay.ScaledRole{Min: f.Prefill.Min, Max: f.Prefill.Max, Ready: f.PrefillReady},
		Decode:  replay.ScaledRole{Min: f.Decode.Min, Max: f.Decode.Max, Ready: f.DecodeReady},
	}
	if r.scaler != bySizer {
		c, err := withoutSizer(o.Config)
		if err != nil {
			return err
		}
		o.Config = c
	}
	switch usual := autoscale.Defaults(); r.scaler {
	case hpaQueue:
		o.Scaling.Begin = autoscale.OnQueue(autoscale.Targets{Prefill: f.PrefillQueue, Decode: f.DecodeQueue}, usual)
	case hpaKV:
		o.Scaling.Begin = autoscale.OnKVUsage(autoscale.Targets{Prefill: f.PrefillKV, Decode: f.DecodeKV}, usual)
	case bySizer:
		if !slices.Contains(o.Config.Types(), bySizer) {
			return errors.New("--autoscaler=replica-sizer needs the plugin replica-sizer, which the configuration does not have")
		}
		o.Scaling.Begin = autoscale.BySizer(usual)
	case fixedSizes, clairvoyant:
		each := searchEach
		if r.scaler == fixedSizes {
			each = r.requests.Requests[len(r.requests.Requests)-1].Due + time.Nanosecond
		}
		if r.requests.Closed() {
			return fmt.Errorf("--autoscaler=%s knows when requests come, and of sessions it does not: leave out --sessions, --concurrency, and shapes with turns", r.scaler)
		}
		r.search = &search{each: each, slo: slo, share: f.Share}
	}
	return nil
}

// withoutSizer returns a configuration without replica-sizer, which makes no picks and takes time.
func withoutSizer(c *config.Config) (*config.Config, error) {
	if !slices.Contains(c.Types(), bySizer) {
		return c, nil
	}
	return changed(c, func(all map[string]any) {
		plugins, _ := all["plugins"].([]any)
		all["plugins"] = slices.DeleteFunc(plugins, func(one any) bool {
			p, _ := one.(map[string]any)
			return p["type"] == bySizer
		})
	})
}

// scaledDetails are the further numbers of a pool that scales.
type scaledDetails struct {
	Met       float64 `json:"met"`       // share of the requests
	Reversals int     `json:"reversals"` // within ten minutes, at most
	GPUHours  float64 `json:"gpu_hours"`
}

func (r *run) scaledDetails() *scaledDetails {
	if r.scaler == "" {
		return nil
	}
	return &scaledDetails{r.summary.Met, r.summary.Reversals, r.summary.GPUSeconds / 3600}
}

// sizes returns the sizes of pools that scale over time.
func sizes(runs []*run, vary []dimension) (all []report.PlotSection) {
	if !slices.ContainsFunc(runs, func(r *run) bool { return r.scaler != "" }) {
		return nil
	}
	s := report.PlotSection{Title: "Sizes", Note: "Engines that serve or start."}
	for _, g := range firstPanels(&s, panels(runs, vary)) {
		for _, role := range []struct {
			title   string
			prefill bool
		}{{"Prefill engines", true}, {"Engines that decode", false}} {
			p := report.Plot{Title: titleOf(role.title, g), X: "time", Y: "Engines", Times: true, Steps: true}
			for _, l := range g.lines {
				drawn := report.PlotLine{Name: orAll(l.name), Kind: l.kind}
				for _, size := range l.runs[0].sizes {
					if (size.Role == "prefill") == role.prefill {
						drawn.Points = append(drawn.Points, report.MeasuredPoint{X: millis(size.At), Y: float64(size.Size)})
					}
				}
				p.Lines = append(p.Lines, drawn)
			}
			s.Plots = append(s.Plots, p)
		}
	}
	return []report.PlotSection{s}
}
