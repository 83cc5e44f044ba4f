package config

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/epp/flow"
)

// gateFlow is the feature gate that has requests wait.
const gateFlow = "flowControl"

// llm-d's defaults of flowControl.
const (
	defaultTTL          = time.Minute
	defaultBandRequests = 5000
	defaultBandBytes    = 1_000_000_000
)

// queueing is the flowControl section with the plugins that it refers to. A nil plugin is llm-d's default policy.
type queueing struct {
	settings flow.Settings // without what the plugins say
	usage    *plugin
	bands    []bandPlugins // of settings.Bands, then of Other and of Negative
}

type bandPlugins struct{ fairness, ordering *plugin }

// queues reports whether the file has requests wait. The last gate of that name counts.
func (r *reader) queues() (on bool) {
	for _, gate := range r.doc.FeatureGates {
		if name, value, _ := strings.Cut(gate, "="); name == gateFlow {
			on = value != "false"
		}
	}
	return on
}

// readFlowControl reads how requests wait. The section is checked even if they do not.
func (r *reader) readFlowControl() {
	var spec flowSpec
	if r.doc.FlowControl != nil {
		spec = *r.doc.FlowControl
	}
	q := &queueing{}
	s := &q.settings
	s.All = flow.Limits{Requests: int(spec.MaxRequests.value(0)), Bytes: spec.MaxBytes.value(0)}
	s.Flow = flow.Limits{Requests: int(spec.MaxFlowRequests.value(0)), Bytes: spec.MaxFlowBytes.value(0)}
	s.TTL = r.readTTL("flowControl.defaultRequestTTL", spec.DefaultRequestTTL, defaultTTL)
	s.EmptyTTL = r.readTTL("flowControl.noEndpointRequestTTL", spec.NoEndpointRequestTTL, s.TTL)
	q.usage = r.policy("flowControl.usageLimitPolicyPluginRef", spec.UsageLimitPolicyPluginRef, isA[flow.Usage], "a usage limit policy")
	read := func(path string, band *bandSpec) flow.Band {
		read, plugins := r.readBand(path, band)
		q.bands = append(q.bands, plugins)
		return read
	}
	for i := range spec.PriorityBands {
		band := &spec.PriorityBands[i]
		path := fmt.Sprintf("flowControl.priorityBands[%d]", i)
		if slices.ContainsFunc(s.Bands, func(b flow.Band) bool { return b.Priority == band.Priority }) {
			r.problem(path+".priority", "another band has priority %d too", band.Priority)
		}
		s.Bands = append(s.Bands, read(path, band))
	}
	s.Other = read("flowControl.defaultPriorityBand", spec.DefaultPriorityBand)
	if spec.DefaultNegativePriorityBand != nil {
		s.Negative = read("flowControl.defaultNegativePriorityBand", spec.DefaultNegativePriorityBand)
	} else {
		s.Negative = s.Other
		q.bands = append(q.bands, q.bands[len(q.bands)-1])
	}
	s.Eviction.On = spec.EnableEviction
	if r.queues() {
		if r.cfg.queueing = q; r.cfg.detector == nil {
			r.problem("featureGates", "%s needs a saturationDetector", gateFlow)
		}
		return
	}
	if spec.SaturationDetector = nil; !reflect.ValueOf(spec).IsZero() {
		r.warn("flowControl", "has no effect but for saturationDetector: the feature gate %s is off", gateFlow)
	}
}

// readTTL returns a time to live; 0 is no limit.
func (r *reader) readTTL(path string, given *time.Duration, fallback time.Duration) time.Duration {
	switch {
	case given == nil:
		return fallback
	case *given < 0:
		r.problem(path, "must not be negative, got %v", *given)
		return fallback
	}
	return *given
}

// readBand returns the settings of a band, nil = llm-d's defaults, and its plugins.
func (r *reader) readBand(path string, spec *bandSpec) (flow.Band, bandPlugins) {
	if spec == nil {
		spec = &bandSpec{}
	}
	b := flow.Band{Priority: spec.Priority}
	b.Limits = flow.Limits{Requests: int(spec.MaxRequests.value(defaultBandRequests)), Bytes: spec.MaxBytes.value(defaultBandBytes)}
	if spec.DefaultRequestTTL != nil {
		b.TTL = new(r.readTTL(path+".defaultRequestTTL", spec.DefaultRequestTTL, 0))
	}
	return b, bandPlugins{
		r.policy(path+".fairnessPolicyRef", spec.FairnessPolicyRef, isA[flow.Sharing], "a fairness policy"),
		r.policy(path+".orderingPolicyRef", spec.OrderingPolicyRef, isA[flow.Ordering], "an ordering policy"),
	}
}

// policy returns the plugin that a reference names, nil if it names none, or if there is a problem. Like llm-d, it adds one if
// the name is a type.
func (r *reader) policy(path, name string, is func(any) bool, want string) *plugin {
	if name == "" {
		return nil
	}
	if _, isType := r.types[name]; isType && !r.has(name) && r.firstOf(name) == nil {
		r.add(name, path+" names it")
	}
	to, ok := r.find(path, name)
	switch {
	case !ok || to.broken():
		return nil
	case to.foreign != "":
		r.problem(path, "%s is %s, want %s", quote(name), to.foreign, want)
		return nil
	}
	r.used[to.plugin] = true
	if instance, built := r.trial.instance(to.plugin); built && !is(instance) {
		r.problem(path, "%s is %s, want %s", quote(name), describe(to.plugin, instance), want)
		return nil
	}
	return to.plugin
}

// build returns the settings with what the plugins say.
func (q *queueing) build(made map[*plugin]any) *flow.Settings {
	s := q.settings
	s.Bands = slices.Clone(s.Bands)
	s.Usage, _ = made[q.usage].(flow.Usage)
	for i, plugins := range q.bands {
		band := &s.Other
		switch {
		case i < len(s.Bands):
			band = &s.Bands[i]
		case i > len(s.Bands):
			band = &s.Negative
		}
		if sharing, ok := made[plugins.fairness].(flow.Sharing); ok {
			sharing.Share(band)
		}
		band.Ordering, _ = made[plugins.ordering].(flow.Ordering)
	}
	return &s
}

// node returns the flowControl section, without the saturation detector.
func (q *queueing) node() *yaml.Node {
	s := &q.settings
	n := limitsNode(s.All)
	add := func(key string, value *yaml.Node) { n.Content = append(n.Content, pair(key, value)...) }
	if s.Flow != (flow.Limits{}) {
		add("maxFlowRequests", scalar(s.Flow.Requests))
		add("maxFlowBytes", scalar(s.Flow.Bytes))
	}
	add("defaultRequestTTL", text(s.TTL.String()))
	add("noEndpointRequestTTL", text(s.EmptyTTL.String()))
	add("enableEviction", scalar(s.Eviction.On))
	if q.usage != nil {
		add("usageLimitPolicyPluginRef", text(q.usage.name))
	}
	if bands := len(s.Bands); bands > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range s.Bands {
			list.Content = append(list.Content, bandNode(&s.Bands[i], q.bands[i], true))
		}
		add("priorityBands", list)
	}
	add("defaultPriorityBand", bandNode(&s.Other, q.bands[len(s.Bands)], false))
	add("defaultNegativePriorityBand", bandNode(&s.Negative, q.bands[len(s.Bands)+1], false))
	return n
}

func bandNode(b *flow.Band, plugins bandPlugins, listed bool) *yaml.Node {
	n := limitsNode(b.Limits)
	if listed {
		n.Content = append(pair("priority", scalar(b.Priority)), n.Content...)
	}
	if b.TTL != nil {
		n.Content = append(n.Content, pair("defaultRequestTTL", text(b.TTL.String()))...)
	}
	if plugins.fairness != nil {
		n.Content = append(n.Content, pair("fairnessPolicyRef", text(plugins.fairness.name))...)
	}
	if plugins.ordering != nil {
		n.Content = append(n.Content, pair("orderingPolicyRef", text(plugins.ordering.name))...)
	}
	return n
}

func limitsNode(l flow.Limits) *yaml.Node {
	return mapping(pair("maxRequests", scalar(l.Requests)), pair("maxBytes", scalar(l.Bytes)))
}

// value returns the quantity rounded up to a whole number, or the fallback if it is not given.
func (q quantity) value(fallback int64) int64 {
	if q == "" {
		return fallback
	}
	v := math.Ceil(q.float())
	if v >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(v)
}
