package scorer

import (
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/filter"
)

// ContextLengthAware prefers endpoints whose label has the narrowest range of prompt lengths that the prompt is in, so that long
// prompts go where there is memory for them. In the range the score is
// 0.3 + 0.7 × (0.7/(1+width/10000) + 0.3 × headroom/width), where headroom is what the range has above the prompt. Out of it,
// the score is 0.3/(1+distance/1000). All lengths are in tokens. Endpoints without the label, or with one that is no range, get
// 0.5.
type ContextLengthAware struct {
	// Label is the label with the range, such as 0-8192; both ends belong to it. Default llm-d.ai/context-length-range.
	Label string `yaml:"label"`
	// EnableFiltering drops endpoints whose range the prompt is not in, before they are rated. Endpoints without a range stay.
	// Default false.
	EnableFiltering bool `yaml:"enableFiltering"`
}

// NewContextLengthAware returns the parameters with their defaults.
func NewContextLengthAware() epp.Plugin {
	return &ContextLengthAware{Label: "llm-d.ai/context-length-range"}
}

// Problems implements epp.Plugin.
func (p *ContextLengthAware) Problems(report epp.Report) {
	if p.Label == "" {
		report("label", "must not be empty")
	}
}

// Build implements epp.Plugin.
func (p *ContextLengthAware) Build(*epp.Builder) (any, error) {
	if p.EnableFiltering {
		return contextLengthFilter{contextLengthScorer(p.Label)}, nil
	}
	return contextLengthScorer(p.Label), nil
}

// contextLengthScorer rates by the range in the label that it names.
type contextLengthScorer string

// contextLengthFilter is a contextLengthScorer that filters as well.
type contextLengthFilter struct{ contextLengthScorer }

// lengthRange returns the range in a candidate's label.
func (s contextLengthScorer) lengthRange(c *epp.Candidate) (low, high int, ok bool) {
	first, last, found := strings.Cut(c.Labels[string(s)], "-")
	if !found {
		return 0, 0, false
	}
	low, lowErr := strconv.Atoi(first)
	high, highErr := strconv.Atoi(last)
	return low, high, lowErr == nil && highErr == nil && low >= 0 && low <= high
}

// Score implements epp.Scorer.
func (s contextLengthScorer) Score(r *epp.Round, c []epp.Candidate, scores []float64) {
	for i := range c {
		scores[i] = middle
		if low, high, ok := s.lengthRange(&c[i]); ok {
			scores[i] = contextFit(r.Request.Prompt.Tokens, low, high)
		}
	}
}

func contextFit(tokens, low, high int) float64 {
	switch width := float64(high - low); {
	case tokens < low:
		return 0.3 / (1 + float64(low-tokens)/1000)
	case tokens > high:
		return 0.3 / (1 + float64(tokens-high)/1000)
	case width == 0:
		return 0.3 + 0.7*0.7
	default:
		return 0.3 + 0.7*(0.7/(1+width/10000)+0.3*float64(high-tokens)/width)
	}
}

// Filter implements epp.Filter.
func (s contextLengthFilter) Filter(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	tokens := r.Request.Prompt.Tokens
	return filter.Keep(c, func(c *epp.Candidate) bool {
		low, high, ok := s.lengthRange(c)
		return !ok || low <= tokens && tokens <= high
	})
}
