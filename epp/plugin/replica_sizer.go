package plugin

import (
	"cmp"
	"fmt"
	"slices"
	"time"
	_ "time/tzdata" // images have no time zones

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/scale"
)

// ReplicaSizer computes how many prefill and decode replicas the load needs, for autoscalers to read: HPA and KEDA from the metric
// tandem_desired_replicas, or by the names of llm-d's Workload Variant Autoscaler. It starts and stops nothing. It goes by the times that
// predicted-latency-producer learns from sidecars, as cost-pd-decider does, and by a usual GPU until there are some.
type ReplicaSizer struct {
	// TTFTMs is the wanted time to first token, in milliseconds. Default 2000.
	TTFTMs float64 `yaml:"ttftMs"`
	// TPOTMs is the wanted time for each further token, in milliseconds. Default 50.
	TPOTMs float64 `yaml:"tpotMs"`
	// Attainment is the share of the requests that are to meet both, more than 0 and less than 1. Default 0.99.
	Attainment float64 `yaml:"attainment"`
	// StabilizationWindowSeconds is how long fewer replicas must have been enough before fewer are wanted. Default 300, as of HPA.
	StabilizationWindowSeconds float64 `yaml:"stabilizationWindowSeconds"`
	// Prefill are the replicas that only compute prompts.
	Prefill SizedRole `yaml:"prefill"`
	// Decode are the replicas that generate answers, also those that compute prompts too.
	Decode SizedRole `yaml:"decode"`
	// Variants has a size computed for each of several variants of a role, in place of that of the role: see cheapest-variant-filter. A role
	// of which none is here has one size. A pool without prefill replicas needs prefill.maxReplicas to be 0. Default: none.
	Variants []SizedVariant `yaml:"variants"`
	// VariantLabel is the label of pods that names their variant, with variants. Default llm-d.ai/variant.
	VariantLabel string `yaml:"variantLabel"`
	// Pattern has sizes go by the time of day too, where that has forecast the load better than the trend. Default: by the trend alone.
	Pattern LoadPattern `yaml:"pattern"`
}

// LoadPattern is what replica-sizer learns of the time of day. A picker that restarts learns anew.
type LoadPattern struct {
	// Days says which days are alike: alike (all), weekend (Saturdays and Sundays are like each other, and so are the other days) or week (each
	// day is like the same day of the weeks before). Default: none, so no pattern is learnt.
	Days string `yaml:"days"`
	// TimeZone is the zone of the hours and days, such as Europe/Berlin. Default UTC.
	TimeZone string `yaml:"timeZone"`
	// Share is the part of the latest five days of a kind that had at least the load that is forecast for a time of day, more than 0 and less
	// than 1: lower values forecast more. Default 0.8.
	Share float64 `yaml:"share"`
}

// SizedVariant is what replica-sizer is told of the replicas of one variant. The cheapest variant of a role that is sized for what a request wants
// counts it, whichever serves it; the dearest one counts those for which none is. What maxReplicas does not suffice for, the next dearer one counts, and
// all of it if that has been cheaper by a tenth for stabilizationWindowSeconds.
type SizedVariant struct {
	// Variant is the value of the pods' label, and of the label variant, or variant_name, of the metrics.
	Variant string `yaml:"variant"`
	// Role is decode (replicas that generate answers, also those that compute prompts too) or prefill (those that only compute prompts).
	// Default decode.
	Role string `yaml:"role"`
	// TTFTMs is the time to first token, in milliseconds, that the variant is sized to give: it counts requests that want no less. Default:
	// that of the plugin.
	TTFTMs float64 `yaml:"ttftMs"`
	// TPOTMs is the time for each further token, likewise. Variants of prefill have none.
	TPOTMs float64 `yaml:"tpotMs"`
	// MinReplicas is the smallest number of replicas. Without flow control some variant should have one: requests that find no pod are refused.
	// Default 0.
	MinReplicas int `yaml:"minReplicas"`
	// MaxReplicas is the largest number of replicas, from 1 to 1024.
	MaxReplicas int `yaml:"maxReplicas"`
	// VariantCost is what a replica costs, in any unit that is the same for all.
	VariantCost float64 `yaml:"variantCost"`
	// ReadySeconds is how long it takes from the wish for a replica until it serves, until three have shown it. Default 120.
	ReadySeconds float64 `yaml:"readySeconds"`
}

// SizedRole is what replica-sizer is told of the replicas of one role.
type SizedRole struct {
	// Variant is the value of the label variant, or variant_name, of the metrics: what has the replicas, such as a Deployment. Default: the
	// role.
	Variant string `yaml:"variant"`
	// MinReplicas is the smallest number of replicas. Default 1.
	MinReplicas int `yaml:"minReplicas"`
	// MaxReplicas is the largest number of replicas, at most 1024; 0 for prefill: the pool has none. Default 4.
	MaxReplicas int `yaml:"maxReplicas"`
	// VariantCost is what a replica costs, in any unit: where a decider compares costs, it weighs roles against each other. Default 10.
	VariantCost float64 `yaml:"variantCost"`
	// ReadySeconds is how long it takes from the wish for a replica until it serves, until three have shown it: so far ahead the load is forecast.
	// Default 120.
	ReadySeconds float64 `yaml:"readySeconds"`
}

// newReplicaSizer returns the parameters with their defaults.
func newReplicaSizer() epp.Plugin {
	role := SizedRole{MinReplicas: 1, MaxReplicas: 4, VariantCost: 10, ReadySeconds: usualReady}
	return &ReplicaSizer{TTFTMs: 2000, TPOTMs: 50, Attainment: 0.99, StabilizationWindowSeconds: 300, Prefill: role, Decode: role, VariantLabel: epp.VariantLabel,
		Pattern: LoadPattern{Share: 0.8}}
}

// Bounds of parameters.
const (
	longestGoalMs   = 3_600_000
	longestWindow   = 86_400
	mostReplicas    = 1024
	highestCost     = 1e9
	longestStarting = 3_600
)

// Problems implements epp.Plugin.
func (p *ReplicaSizer) Problems(report epp.Report) {
	within := func(field string, value, most float64) {
		if !(value > 0 && value <= most) {
			report(field, "must be more than 0 and at most %v, got %v", most, value)
		}
	}
	within("ttftMs", p.TTFTMs, longestGoalMs)
	within("tpotMs", p.TPOTMs, longestGoalMs)
	if !(p.Attainment > 0 && p.Attainment < 1) {
		report("attainment", "must be more than 0 and less than 1, got %v", p.Attainment)
	}
	within("stabilizationWindowSeconds", p.StabilizationWindowSeconds, longestWindow)
	for _, role := range []struct {
		name   string
		of     *SizedRole
		lowest int // maximum
	}{{"prefill", &p.Prefill, 0}, {"decode", &p.Decode, 1}} {
		r := role.of
		if r.MaxReplicas < role.lowest || r.MaxReplicas > mostReplicas {
			report(role.name+".maxReplicas", "must be from %d to %d, got %d", role.lowest, mostReplicas, r.MaxReplicas)
		}
		if r.MinReplicas < 0 || r.MinReplicas > r.MaxReplicas && r.MaxReplicas > 0 {
			report(role.name+".minReplicas", "must be from 0 to maxReplicas, got %d", r.MinReplicas)
		}
		within(role.name+".variantCost", r.VariantCost, highestCost)
		within(role.name+".readySeconds", r.ReadySeconds, longestStarting)
	}
	p.variantProblems(report)
	p.Pattern.problems(report)
	if p.Prefill.variant("prefill") == p.Decode.variant("decode") {
		report("decode.variant", "must differ from that of prefill, or their metrics cannot be told apart; got %q", p.Decode.variant("decode"))
	}
}

func (p *LoadPattern) problems(report epp.Report) {
	switch scale.Days(p.Days) {
	case "", scale.DaysAlike, scale.DaysWeekend, scale.DaysOfWeek:
	default:
		report("pattern.days", "must be %s, %s or %s, got %q", scale.DaysAlike, scale.DaysWeekend, scale.DaysOfWeek, p.Days)
	}
	if _, err := time.LoadLocation(p.TimeZone); err != nil {
		report("pattern.timeZone", "must be the name of a time zone such as Europe/Berlin, got %q", p.TimeZone)
	}
	if !(p.Share > 0 && p.Share < 1) {
		report("pattern.share", "must be more than 0 and less than 1, got %v", p.Share)
	}
}

// config returns what is learnt, or the error of a time zone that is not known.
func (p *LoadPattern) config() (scale.Pattern, error) {
	zone, err := time.LoadLocation(p.TimeZone)
	return scale.Pattern{Days: scale.Days(p.Days), Zone: zone, Share: p.Share}, err
}

func (p *ReplicaSizer) variantProblems(report epp.Report) {
	if len(p.Variants) == 0 {
		return
	}
	if p.VariantLabel == "" {
		report("variantLabel", "must not be empty with variants")
	}
	for i := range p.Variants {
		v := &p.Variants[i]
		field := func(name string) string { return fmt.Sprintf("variants[%d].%s", i, name) }
		within := func(name string, value, least, most float64) {
			if !(value >= least && value <= most) {
				report(field(name), "must be from %v to %v, got %v", least, most, value)
			}
		}
		if v.Variant == "" || slices.ContainsFunc(p.Variants[:i], func(other SizedVariant) bool { return other.Variant == v.Variant }) || v.Variant == p.opposite(v.Role) {
			report(field("variant"), "must be a name that no other variant has, got %q", v.Variant)
		}
		if v.Role != "" && v.Role != roleDecode && v.Role != rolePrefill {
			report(field("role"), "must be decode or prefill, got %q", v.Role)
		}
		if v.Role == rolePrefill && v.TPOTMs != 0 {
			report(field("tpotMs"), "must not be set with the role prefill, whose replicas generate no further tokens; got %v", v.TPOTMs)
		}
		within("ttftMs", v.TTFTMs, 0, longestGoalMs)
		within("tpotMs", v.TPOTMs, 0, longestGoalMs)
		within("maxReplicas", float64(v.MaxReplicas), 1, mostReplicas)
		within("minReplicas", float64(v.MinReplicas), 0, float64(v.MaxReplicas))
		within("readySeconds", v.ReadySeconds, 0, longestStarting)
		if !(v.VariantCost > 0 && v.VariantCost <= highestCost) {
			report(field("variantCost"), "must be more than 0 and at most %v, got %v", highestCost, v.VariantCost)
		}
	}
}

// Values of a variant's role.
const (
	roleDecode  = "decode"
	rolePrefill = "prefill"
)

// of returns the variants of a role, the cheapest first.
func (p *ReplicaSizer) of(role string) (all []SizedVariant) {
	for _, v := range p.Variants {
		if cmp.Or(v.Role, roleDecode) == role {
			all = append(all, v)
		}
	}
	slices.SortStableFunc(all, func(a, b SizedVariant) int { return cmp.Compare(a.VariantCost, b.VariantCost) })
	return all
}

// opposite returns what the metrics call the replicas of the other role than one, if that role has one size; "" if it has not.
func (p *ReplicaSizer) opposite(role string) string {
	switch {
	case role == rolePrefill && len(p.of(roleDecode)) == 0:
		return p.Decode.variant(roleDecode)
	case role != rolePrefill && len(p.of(rolePrefill)) == 0 && p.Prefill.MaxReplicas > 0:
		return p.Prefill.variant(rolePrefill)
	}
	return ""
}

func (r *SizedRole) variant(role string) string { return cmp.Or(r.Variant, role) }

func (r *SizedRole) config(role string) scale.Role {
	return scale.Role{Variant: r.variant(role), Min: min(r.MinReplicas, r.MaxReplicas), Max: r.MaxReplicas, Cost: r.VariantCost, Ready: fromSeconds(r.ReadySeconds)}
}

func fromSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Build implements epp.Plugin. What was learnt of the load outlives a reload.
func (p *ReplicaSizer) Build(b *epp.Builder) (any, error) {
	pattern, err := p.Pattern.config()
	if err != nil {
		return nil, fmt.Errorf("reading the time zone: %w", err)
	}
	if len(p.Variants) > 0 {
		return p.sizeVariants(b, pattern), nil
	}
	c := scale.Config{
		Objective: p.objective(),
		Prefill:   p.Prefill.config(rolePrefill), Decode: p.Decode.config(roleDecode),
		Window: fromSeconds(p.StabilizationWindowSeconds), Pattern: pattern,
	}
	state := epp.Kept(b.Keep, "replica-sizer", func() *scale.State { return new(scale.State) })
	return scale.New(c, state, latency.Of(b), b.Clock()), nil
}

// usualReady is the default of readySeconds.
const usualReady = 120

func (p *ReplicaSizer) sizeVariants(b *epp.Builder, pattern scale.Pattern) *scale.Variants {
	c := scale.VariantsConfig{Objective: p.objective(), Label: p.VariantLabel, Window: fromSeconds(p.StabilizationWindowSeconds),
		Decode: p.sized(roleDecode), Prefill: p.sized(rolePrefill), Pattern: pattern}
	if len(c.Decode) == 0 {
		c.Decode = []scale.Variant{{Role: p.Decode.config(roleDecode), TTFT: c.TTFT, TPOT: c.TPOT, Any: true}}
	}
	if len(c.Prefill) == 0 && p.Prefill.MaxReplicas > 0 {
		c.Prefill = []scale.Variant{{Role: p.Prefill.config(rolePrefill), Any: true}}
	}
	state := epp.Kept(b.Keep, "replica-sizer/variants", func() *scale.VariantsState { return new(scale.VariantsState) })
	return scale.NewVariants(c, state, latency.Of(b), b.Clock())
}

func (p *ReplicaSizer) objective() scale.Objective {
	return scale.Objective{TTFT: fromSeconds(p.TTFTMs / 1000), TPOT: fromSeconds(p.TPOTMs / 1000), Share: p.Attainment}
}

// sized returns the variants of a role, the cheapest first.
func (p *ReplicaSizer) sized(role string) (all []scale.Variant) {
	for _, v := range p.of(role) {
		all = append(all, scale.Variant{TTFT: fromSeconds(cmp.Or(v.TTFTMs, p.TTFTMs) / 1000), TPOT: fromSeconds(cmp.Or(v.TPOTMs, p.TPOTMs) / 1000),
			Role: scale.Role{Variant: v.Variant, Min: v.MinReplicas, Max: v.MaxReplicas, Cost: v.VariantCost, Ready: fromSeconds(cmp.Or(v.ReadySeconds, usualReady))}})
	}
	return all
}
