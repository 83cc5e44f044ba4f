package handler

import (
	"math"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

func TestThreshold(t *testing.T) {
	cases := []struct {
		name      string
		threshold threshold
		asked     epp.Alternatives
		verdict   pd.Verdict
		reason    pd.Reason
	}{
		{"0 is never", threshold{}, epp.Alternatives{Tokens: 100_000}, pd.Local, pd.BelowThreshold},
		{"0 is never, also for an empty prompt", threshold{}, epp.Alternatives{}, pd.Local, pd.BelowThreshold},
		{"0 is never, whatever the least length", threshold{PromptTokens: 10}, epp.Alternatives{Tokens: 11}, pd.Local, pd.BelowThreshold},
		{"exactly enough uncached", threshold{NonCachedTokens: 512}, epp.Alternatives{Tokens: 1000, Cached: 488}, pd.Remote, pd.Uncached},
		{"one token too few", threshold{NonCachedTokens: 512}, epp.Alternatives{Tokens: 1000, Cached: 489}, pd.Local, pd.BelowThreshold},
		{"nothing cached, exactly long enough", threshold{NonCachedTokens: 512}, epp.Alternatives{Tokens: 512}, pd.Remote, pd.Uncached},
		{"shorter than the threshold", threshold{NonCachedTokens: 512}, epp.Alternatives{Tokens: 511}, pd.Local, pd.ShortPrompt},
		{"everything cached", threshold{NonCachedTokens: 1}, epp.Alternatives{Tokens: 1000, Cached: 1000}, pd.Local, pd.BelowThreshold},
		{"more cached than there is", threshold{NonCachedTokens: 1}, epp.Alternatives{Tokens: 1000, Cached: 1024}, pd.Local, pd.BelowThreshold},
		{"at the least length", threshold{NonCachedTokens: 16, PromptTokens: 100}, epp.Alternatives{Tokens: 100}, pd.Remote, pd.Uncached},
		{"one below the least length", threshold{NonCachedTokens: 16, PromptTokens: 100}, epp.Alternatives{Tokens: 99}, pd.Local, pd.ShortPrompt},
		{"an empty prompt", threshold{NonCachedTokens: 1}, epp.Alternatives{}, pd.Local, pd.ShortPrompt},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := c.threshold.Decide(&c.asked); got.Verdict != c.verdict || got.Reason != c.reason {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestDecidersExplainThemselves(t *testing.T) {
	deciders := map[string]epp.Decider{
		"always": alwaysRemote{}, "never": threshold{}, "threshold": threshold{NonCachedTokens: 3, PromptTokens: 5},
	}
	for name, d := range deciders {
		for tokens := range 10 {
			for cached := range 12 {
				ruling := d.Decide(&epp.Alternatives{Tokens: tokens, Cached: cached})
				v, r := ruling.Verdict, ruling.Reason
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

// TestRemoteFrom: the length that flow control is told is the shortest one that is ruled remote while nothing is cached.
func TestRemoteFrom(t *testing.T) {
	for _, d := range []threshold{{}, {NonCachedTokens: 1}, {NonCachedTokens: 512}, {PromptTokens: 10}, {NonCachedTokens: 512, PromptTokens: 100},
		{NonCachedTokens: 512, PromptTokens: 1000}} {
		from := d.RemoteFrom()
		at := func(tokens int) pd.Verdict { return d.Decide(&epp.Alternatives{Tokens: tokens}).Verdict }
		if never := d.NonCachedTokens == 0; never != (from == math.MaxInt) || never != (at(from) == pd.Local) || at(from-1) != pd.Local {
			t.Errorf("%+v: remote from %d, and rules %v at that length and %v below", d, from, at(from), at(from-1))
		}
	}
}
