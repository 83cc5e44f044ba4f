package pd

import "fmt"

// Prompt is what a decider looks at: token counts on the decode pod that was chosen.
type Prompt struct {
	Tokens int // tokens of the prompt
	Cached int // of these, tokens whose KV cache the decode pod already has
}

// Decider decides between local and remote prefill. It is called with the decode pod already chosen and returns the
// reason beside the verdict, always one that explains it.
type Decider interface {
	Decide(Prompt) (Verdict, Reason)
}

// Threshold is llm-d's prefix-based-pd-decider: remote if enough of the prompt is not cached on the decode pod.
type Threshold struct {
	// NonCachedTokens is the least number of uncached prompt tokens that is worth a transfer. 0 means never.
	NonCachedTokens int `json:"nonCachedTokens" yaml:"nonCachedTokens"`
	// PromptTokens is the least length of a prompt, in tokens, at which the cache is looked at at all. 0 switches it off.
	PromptTokens int `json:"promptTokens" yaml:"promptTokens"`
}

// Validate reports parameters that mean nothing.
func (t Threshold) Validate() error {
	if t.NonCachedTokens < 0 || t.PromptTokens < 0 {
		return fmt.Errorf("nonCachedTokens and promptTokens must not be negative (have %d and %d)", t.NonCachedTokens, t.PromptTokens)
	}
	return nil
}

// Decide implements Decider.
func (t Threshold) Decide(p Prompt) (Verdict, Reason) {
	switch {
	case t.NonCachedTokens == 0:
		return Local, BelowThreshold
	case p.Tokens < t.PromptTokens, p.Tokens < t.NonCachedTokens:
		return Local, ShortPrompt
	case p.Tokens-p.Cached >= t.NonCachedTokens:
		return Remote, Uncached
	}
	return Local, BelowThreshold
}

// AlwaysRemote is llm-d's always-disagg-pd-decider.
type AlwaysRemote struct{}

// Decide implements Decider.
func (AlwaysRemote) Decide(Prompt) (Verdict, Reason) { return Remote, Always }

var (
	_ Decider = Threshold{}
	_ Decider = AlwaysRemote{}
)
