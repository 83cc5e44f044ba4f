package affinity

import (
	"strings"

	"github.com/tandem-serving/tandem/epp"
)

// HeaderLabelScorer prefers endpoints whose label has the value that the client sends in a header: 1 for those, 0 for the others,
// and 0 for all if the header is missing.
type HeaderLabelScorer struct {
	// HeaderName is the header of the request.
	HeaderName string `yaml:"headerName"`
	// LabelKey is the label of the endpoint.
	LabelKey string `yaml:"labelKey"`
	// StampResponseHeader sets the header of the answer to the label of the endpoint that it comes from. Default true.
	StampResponseHeader bool `yaml:"stampResponseHeader"`
}

// NewHeaderLabelScorer returns the parameters with their defaults.
func NewHeaderLabelScorer() epp.Plugin { return &HeaderLabelScorer{StampResponseHeader: true} }

// Problems implements epp.Plugin.
func (p *HeaderLabelScorer) Problems(report epp.Report) {
	if p.HeaderName == "" {
		report("headerName", "must not be empty")
	}
	if p.LabelKey == "" {
		report("labelKey", "must not be empty")
	}
}

// Build implements epp.Plugin.
func (p *HeaderLabelScorer) Build(*epp.Builder) (any, error) {
	s := headerLabelScorer{header: strings.ToLower(p.HeaderName), label: p.LabelKey}
	if p.StampResponseHeader {
		return stampingHeaderLabelScorer{s}, nil
	}
	return s, nil
}

type headerLabelScorer struct{ header, label string }

// Score implements epp.Scorer.
func (s headerLabelScorer) Score(r *epp.Round, c []epp.Candidate, scores []float64) {
	wanted := r.Request.Header(s.header)
	if wanted == "" {
		return
	}
	for i := range c {
		if c[i].Labels[s.label] == wanted {
			scores[i] = 1
		}
	}
}

// stampingHeaderLabelScorer is a headerLabelScorer that tells clients the label.
type stampingHeaderLabelScorer struct{ headerLabelScorer }

// Stamp implements epp.Stamper.
func (s stampingHeaderLabelScorer) Stamp(a *epp.Answer, set func(name, value string)) {
	if value := a.By.Labels[s.label]; value != "" {
		set(s.header, value)
	}
}
