package config

import (
	"strings"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
)

// describe returns what a plugin is, for an error message.
func describe(p *plugin, instance any) string {
	switch instance.(type) {
	case epp.Detector:
		return "a saturation detector"
	case epp.Filter:
		return "a filter"
	case epp.Scorer:
		return "a scorer"
	case epp.Picker:
		return "a picker"
	case epp.Handler:
		return "a profile handler"
	case epp.Decider:
		return "a decider"
	case epp.Assigner:
		return "a producer of placements"
	case epp.Matcher:
		return "a producer of prefix matches"
	case epp.Charger:
		return "a producer of load in flight"
	case epp.Producer:
		return "a producer of signals"
	case epp.Preparer:
		return "a preparer of requests"
	case flow.Sharing:
		return "a fairness policy"
	case flow.Ordering:
		return "an ordering policy"
	case flow.Usage:
		return "a usage limit policy"
	case epp.Admission:
		return "an admission"
	case epp.LinkEstimator:
		return "an estimator of links"
	case epp.Observer:
		return "an observer of outcomes"
	case epp.Screener:
		return "a screener"
	case epp.Admitter:
		return "an admitter"
	case epp.Identifier:
		return "an identifier of requests"
	case epp.SourceFinder:
		return "a finder of sources"
	case epp.PickObserver:
		return "an observer of picks"
	case epp.Reporter:
		return "a reporter of answers"
	case epp.Stamper:
		return "a stamper of answers"
	case epp.Parser:
		return "a request parser"
	case epp.EndpointObserver, epp.SnapshotObserver:
		return "an observer of the pool"
	}
	if kind := dataLayerKind(p); kind != "" {
		return kind.article()
	}
	return "of type " + p.row.Type
}

func isA[T any](instance any) bool { _, ok := instance.(T); return ok }

// inProfile reports whether a profile can run the instance.
func inProfile(instance any) bool {
	return isA[epp.Filter](instance) || isA[epp.Scorer](instance) || isA[epp.Picker](instance)
}

// passive reports whether the instance has an effect only if something refers to it.
func passive(instance any) bool {
	return inProfile(instance) || isA[epp.Decider](instance) || isA[epp.Parser](instance) || isA[epp.Identifier](instance) ||
		isA[flow.Sharing](instance) || isA[flow.Ordering](instance) || isA[flow.Usage](instance)
}

// layerKind is a kind of plugin that only the data layer refers to. Their interfaces belong to the pool, which this
// package does not know; llm-d's type names end in the kind.
type layerKind string

const (
	kindDiscovery layerKind = "discovery"
	kindSource    layerKind = "source"
	kindExtractor layerKind = "extractor"
)

func dataLayerKind(p *plugin) layerKind {
	for _, kind := range []layerKind{kindDiscovery, kindSource, kindExtractor} {
		if strings.HasSuffix(p.row.Type, "-"+string(kind)) {
			return kind
		}
	}
	return ""
}

// article returns the kind in words, with its article.
func (k layerKind) article() string {
	switch k {
	case kindDiscovery:
		return "a discovery plugin"
	case kindSource:
		return "a data source"
	default:
		return "an extractor"
	}
}
