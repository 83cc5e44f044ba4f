package autoscale

import (
	"time"

	"github.com/tandem-serving/tandem/replay"
)

// Targets are what a pair of HorizontalPodAutoscalers wants of each engine of its role.
type Targets struct{ Prefill, Decode float64 }

// OnQueue scales each role so that so many requests wait in an engine, on average.
func OnQueue(t Targets, b Behavior) func() replay.Autoscaler {
	return pods(t, b, func(s *replay.Seen) float64 { return float64(s.Waiting) })
}

// OnKVUsage scales each role so that such a share of an engine's KV cache is in use, on average.
func OnKVUsage(t Targets, b Behavior) func() replay.Autoscaler {
	return pods(t, b, func(s *replay.Seen) float64 { return s.KVUsage })
}

// BySizer scales each role as the plugin replica-sizer says: by an external metric with an AverageValue of 1, and with no stabilization
// window, because the plugin has waited already.
func BySizer(b Behavior) func() replay.Autoscaler {
	b.Down.Window = 0
	return func() replay.Autoscaler { return &both{prefill: NewHPA(b), decode: NewHPA(b), metric: desired} }
}

func desired(s *replay.Seen, _ float64) Metric {
	return Metric{Target: 1, Sum: float64(s.Desired), External: true}
}

// pods returns autoscalers by a metric of pods.
func pods(t Targets, b Behavior, sum func(s *replay.Seen) float64) func() replay.Autoscaler {
	metric := func(s *replay.Seen, target float64) Metric {
		return Metric{Target: target, Sum: sum(s), Ready: s.Serving}
	}
	return func() replay.Autoscaler { return &both{NewHPA(b), NewHPA(b), t, metric} }
}

// both is a HorizontalPodAutoscaler for each role.
type both struct {
	prefill, decode *HPA
	targets         Targets
	metric          func(s *replay.Seen, target float64) Metric
}

// Sizes implements replay.Autoscaler.
func (b *both) Sizes(now time.Duration, prefill, decode replay.Seen) (int, int) {
	return b.prefill.Size(now, prefill.Replicas, b.metric(&prefill, b.targets.Prefill)), b.decode.Size(now, decode.Replicas, b.metric(&decode, b.targets.Decode))
}

// Plan is the sizes of every interval, known beforehand.
type Plan struct {
	Each            time.Duration // interval
	Prefill, Decode []int         // size in each interval; in later ones, as in the last
	// PrefillReady and DecodeReady are how long before its interval an engine is asked for.
	PrefillReady, DecodeReady time.Duration
}

// Begin returns the plan as an autoscaler.
func (p *Plan) Begin() replay.Autoscaler { return p }

// Sizes implements replay.Autoscaler: an engine is asked for so early that it serves when its interval begins.
func (p *Plan) Sizes(now time.Duration, _, _ replay.Seen) (int, int) {
	return p.most(p.Prefill, now, p.PrefillReady), p.most(p.Decode, now, p.DecodeReady)
}

// most returns the largest size from now until an engine would serve that is asked for at the next question.
func (p *Plan) most(sizes []int, now, ready time.Duration) (size int) {
	last := len(sizes) - 1
	for i := min(last, int(now/p.Each)); i <= min(last, int((now+ready+replay.ScaleEvery)/p.Each)); i++ {
		size = max(size, sizes[i])
	}
	return size
}
