package handler

import (
	"math"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
	"github.com/tandem-serving/tandem/pd"
)

// PrefixBasedPDDecider chooses remote prefill if enough of the prompt is not cached on the decode pod that was picked.
type PrefixBasedPDDecider struct {
	// NonCachedTokens is how many prompt tokens must not be cached on the decode pod for remote prefill. Default 0: never
	// remote.
	NonCachedTokens int `yaml:"nonCachedTokens"`
	// PromptTokens is the length, in tokens, below which a prompt stays local without a look at the cache. Default 0: none
	// does.
	PromptTokens int `yaml:"promptTokens"`
	// PrefixMatchInfoProducerName names the producer of cached tokens. Default "": the one named approx-prefix-cache-producer, or
	// else the first of the file.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
}

// NewPrefixBasedPDDecider returns the parameters with their defaults.
func NewPrefixBasedPDDecider() epp.Plugin { return &PrefixBasedPDDecider{} }

// Problems implements epp.Plugin.
func (p *PrefixBasedPDDecider) Problems(report epp.Report) {
	param.AtLeast(report, "nonCachedTokens", p.NonCachedTokens, 0)
	param.AtLeast(report, "promptTokens", p.PromptTokens, 0)
}

// References implements epp.Referrer.
func (p *PrefixBasedPDDecider) References() map[string]string {
	return param.References("prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName)
}

// Build implements epp.Plugin.
func (p *PrefixBasedPDDecider) Build(b *epp.Builder) (any, error) {
	matcher, err := param.Matcher(b, p.PrefixMatchInfoProducerName)
	if err != nil {
		return nil, err
	}
	return threshold{NonCachedTokens: p.NonCachedTokens, PromptTokens: p.PromptTokens, matcher: matcher}, nil
}

// threshold is the epp.Decider that compares a prompt's uncached tokens with a constant. Explanations show its fields.
type threshold struct {
	NonCachedTokens int `json:"nonCachedTokens"` // 0 = never remote
	PromptTokens    int `json:"promptTokens"`    // 0 = prompts of any length
	matcher         epp.Matcher
}

// Reads implements epp.CacheReader.
func (t threshold) Reads() epp.Matcher { return t.matcher }

// RemoteFrom implements epp.LengthDecider.
func (t threshold) RemoteFrom() int {
	if t.NonCachedTokens == 0 {
		return math.MaxInt
	}
	return max(t.PromptTokens, t.NonCachedTokens)
}

// Decide implements epp.Decider.
func (t threshold) Decide(a *epp.Alternatives) epp.Ruling {
	switch {
	case t.NonCachedTokens == 0:
		return epp.Ruling{Verdict: pd.Local, Reason: pd.BelowThreshold}
	case a.Tokens < t.PromptTokens, a.Tokens < t.NonCachedTokens:
		return epp.Ruling{Verdict: pd.Local, Reason: pd.ShortPrompt}
	case a.Tokens-a.Cached >= t.NonCachedTokens:
		return epp.Ruling{Verdict: pd.Remote, Reason: pd.Uncached}
	}
	return epp.Ruling{Verdict: pd.Local, Reason: pd.BelowThreshold}
}
