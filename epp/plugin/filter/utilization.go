package filter

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// Utilization keeps endpoints that meet all conditions on their load. A value that is not known meets every condition: a silent
// engine is not full. If no endpoint is left, the request is refused with 429.
//
// Requests sent since the metrics page was read count as running in an engine without a queue, and as waiting in one that has
// one; llm-d goes by the page alone.
type Utilization struct {
	// Conditions are the conditions. There must be at least one.
	Conditions []UtilizationCondition `yaml:"conditions"`
	// FallbackOnEmpty keeps all endpoints if none meets the conditions. Default false.
	FallbackOnEmpty bool `yaml:"fallbackOnEmpty"`
	// InFlightLoadProducerName names the inflight-load-producer. The picker keeps one count for all plugins, so the name is
	// only checked. Default "": no check.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
}

// UtilizationCondition is a limit of one value.
type UtilizationCondition struct {
	// Metric is the value: active-requests (in flight from this picker), running-requests, waiting-queue, or
	// kv-cache-utilization (0..1).
	Metric string `yaml:"metric"`
	// MaxValue is the highest value with which an endpoint is kept.
	MaxValue float64 `yaml:"maxValue"`
}

// activeRequests is the metric that is not a signal of the engine's page.
const activeRequests = "active-requests"

// utilizationSignals are the other metrics.
var utilizationSignals = map[string]epp.Signal{
	"running-requests": epp.Running, "waiting-queue": epp.Waiting, "kv-cache-utilization": epp.KVUsage,
}

// NewUtilization returns the parameters with their defaults.
func NewUtilization() epp.Plugin { return &Utilization{} }

// Problems implements epp.Plugin.
func (p *Utilization) Problems(report epp.Report) {
	if len(p.Conditions) == 0 {
		report("conditions", "must not be empty")
	}
	for i, c := range p.Conditions {
		if _, known := utilizationSignals[c.Metric]; !known && c.Metric != activeRequests {
			report(fmt.Sprintf("conditions[%d].metric", i), "must be one of %s, got %q", strings.Join(utilizationMetrics(), ", "), c.Metric)
		}
		param.AtLeast(report, fmt.Sprintf("conditions[%d].maxValue", i), c.MaxValue, 0)
	}
}

func utilizationMetrics() []string {
	names := []string{activeRequests}
	for name := range utilizationSignals {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// References implements epp.Referrer.
func (p *Utilization) References() map[string]string {
	return param.References("inFlightLoadProducerName", p.InFlightLoadProducerName)
}

// Build implements epp.Plugin.
func (p *Utilization) Build(b *epp.Builder) (any, error) {
	if err := param.Check[epp.Charger](b, "inFlightLoadProducerName", p.InFlightLoadProducerName); err != nil {
		return nil, err
	}
	f := utilizationFilter{fallback: p.FallbackOnEmpty}
	for _, c := range p.Conditions {
		signal, isSignal := utilizationSignals[c.Metric]
		f.limits = append(f.limits, utilizationLimit{signal: signal, inFlight: !isSignal, most: c.MaxValue})
	}
	return f, nil
}

type utilizationFilter struct {
	limits   []utilizationLimit
	fallback bool
}

type utilizationLimit struct {
	signal   epp.Signal
	inFlight bool // the limit is of the requests in flight, not of the signal
	most     float64
}

func (l *utilizationLimit) allows(c *epp.Candidate) bool {
	if l.inFlight {
		return float64(c.InFlight.Requests) <= l.most
	}
	value, known := l.value(c)
	return !known || c.Trust == 0 || !(value > l.most) // NaN is no value
}

// value returns the engine's value now. An engine without a queue may have room for everything that was sent since its page, so
// nothing is taken to wait there.
func (l *utilizationLimit) value(c *epp.Candidate) (value float64, known bool) {
	switch queues := c.Load.Queues(); {
	case l.signal == epp.Running && !queues:
		return c.Running()
	case l.signal == epp.Waiting && queues:
		return c.Waiting()
	}
	return c.Load.Signals.Value(l.signal)
}

// Sheds implements epp.Shedder.
func (utilizationFilter) Sheds() {}

// Filter implements epp.Filter.
func (f utilizationFilter) Filter(_ *epp.Round, c []epp.Candidate) []epp.Candidate {
	return spare(c, !f.fallback, func(c *epp.Candidate) bool {
		for i := range f.limits {
			if !f.limits[i].allows(c) {
				return false
			}
		}
		return true
	})
}
