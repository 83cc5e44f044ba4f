package pd_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestThreshold(t *testing.T) {
	cases := []struct {
		name      string
		threshold pd.Threshold
		prompt    pd.Prompt
		verdict   pd.Verdict
		reason    pd.Reason
	}{
		{"0 is never", pd.Threshold{}, pd.Prompt{Tokens: 100_000}, pd.Local, pd.BelowThreshold},
		{"0 is never, also for an empty prompt", pd.Threshold{}, pd.Prompt{}, pd.Local, pd.BelowThreshold},
		{"0 is never, whatever the least length", pd.Threshold{PromptTokens: 10}, pd.Prompt{Tokens: 11}, pd.Local, pd.BelowThreshold},
		{"exactly enough uncached", pd.Threshold{NonCachedTokens: 512}, pd.Prompt{Tokens: 1000, Cached: 488}, pd.Remote, pd.Uncached},
		{"one token too few", pd.Threshold{NonCachedTokens: 512}, pd.Prompt{Tokens: 1000, Cached: 489}, pd.Local, pd.BelowThreshold},
		{"nothing cached, exactly long enough", pd.Threshold{NonCachedTokens: 512}, pd.Prompt{Tokens: 512}, pd.Remote, pd.Uncached},
		{"shorter than the threshold", pd.Threshold{NonCachedTokens: 512}, pd.Prompt{Tokens: 511}, pd.Local, pd.ShortPrompt},
		{"everything cached", pd.Threshold{NonCachedTokens: 1}, pd.Prompt{Tokens: 1000, Cached: 1000}, pd.Local, pd.BelowThreshold},
		{"more cached than there is", pd.Threshold{NonCachedTokens: 1}, pd.Prompt{Tokens: 1000, Cached: 1024}, pd.Local, pd.BelowThreshold},
		{"at the least length", pd.Threshold{NonCachedTokens: 16, PromptTokens: 100}, pd.Prompt{Tokens: 100}, pd.Remote, pd.Uncached},
		{"one below the least length", pd.Threshold{NonCachedTokens: 16, PromptTokens: 100}, pd.Prompt{Tokens: 99}, pd.Local, pd.ShortPrompt},
		{"an empty prompt", pd.Threshold{NonCachedTokens: 1}, pd.Prompt{}, pd.Local, pd.ShortPrompt},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if v, r := c.threshold.Decide(c.prompt); v != c.verdict || r != c.reason {
				t.Errorf("got %s, %s", v, r)
			}
		})
	}
}

func TestDecidersExplainThemselves(t *testing.T) {
	deciders := map[string]pd.Decider{
		"always": pd.AlwaysRemote{}, "never": pd.Threshold{}, "threshold": pd.Threshold{NonCachedTokens: 3, PromptTokens: 5},
	}
	for name, d := range deciders {
		for tokens := range 10 {
			for cached := range 12 {
				v, r := d.Decide(pd.Prompt{Tokens: tokens, Cached: cached})
				if v == pd.Refused || !r.Explains(v) {
					t.Errorf("%s, %d of %d cached: %q does not explain %s", name, cached, tokens, r, v)
				}
				if name == "always" && (v != pd.Remote || r != pd.Always) {
					t.Errorf("always said %s, %s", v, r)
				}
			}
		}
	}
}

func TestThresholdValidate(t *testing.T) {
	cases := []struct {
		name      string
		threshold pd.Threshold
		ok        bool
	}{
		{"zero", pd.Threshold{}, true},
		{"usual", pd.Threshold{NonCachedTokens: 512, PromptTokens: 1024}, true},
		{"negative threshold", pd.Threshold{NonCachedTokens: -1}, false},
		{"negative length", pd.Threshold{NonCachedTokens: 1, PromptTokens: -1}, false},
	}
	for _, c := range cases {
		if err := c.threshold.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}
