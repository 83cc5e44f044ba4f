package scorer

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/producer"
)

// TestPrecisePrefixCache: the plugin reads what it knows itself, and not what another matcher has found.
func TestPrecisePrefixCache(t *testing.T) {
	keep := &epp.Keep{}
	defer keep.Close()
	instance, err := NewPrecisePrefixCache().Build(&epp.Builder{Name: "mine", Keep: keep, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := &epp.Round{Request: &epp.Request{Prompt: epp.Prompt{Tokens: 100}}, Matches: []epp.Matches{
		{Whole: 100}, {Matcher: instance.(epp.Matcher), Whole: 96, Cached: []int{48, 96}}}}
	c := []epp.Candidate{{Endpoint: &epp.Endpoint{Slot: 0}, Cached: 100}, {Endpoint: &epp.Endpoint{Slot: 1}}}
	scores := make([]float64, 2)
	instance.(epp.Scorer).Score(r, c, scores)
	if scores[0] != 0.5 || scores[1] != 1 {
		t.Errorf("scores %v", scores)
	}
}

// TestSlowerMemory: tokens that an engine must load count as much as they save, or as the configuration says.
func TestSlowerMemory(t *testing.T) {
	for _, tc := range []struct {
		name    string
		weights []producer.PreciseTier
		want    string // scores of: nothing cached, from disk, from the host's memory, half in the accelerator's memory and half in the host's, all in it
	}{
		{"measured", nil, "0.00 0.00 0.86 0.93 1.00"}, // of a usual engine: 50 ms for 1,000 tokens, 7 ms for loading them, 55 ms from disk
		{"configured", []producer.PreciseTier{{Name: "gpu", Weight: 1}, {Name: "CPU", Weight: 0.5}, {Name: "disk", Weight: 0.25}}, "0.00 0.25 0.50 0.75 1.00"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			keep := &epp.Keep{}
			defer keep.Close()
			parameters := NewPrecisePrefixCache().(*PrecisePrefixCache)
			parameters.IndexerConfig.KVCacheBackendConfigs = tc.weights
			instance, err := parameters.Build(&epp.Builder{Name: "mine", Keep: keep, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			r := &epp.Round{Request: new(epp.Request), Matches: []epp.Matches{{Matcher: instance.(epp.Matcher), Whole: 1000}}}
			var c []epp.Candidate
			for i, loads := range []epp.Loads{{}, {0, 1000}, {1000}, {500}, {}} {
				c = append(c, epp.Candidate{Endpoint: &epp.Endpoint{Slot: i}, Load: new(epp.Load), Cached: min(i, 1) * 1000, Loads: loads})
			}
			scores := make([]float64, len(c))
			instance.(epp.Scorer).Score(r, c, scores)
			got := ""
			for _, s := range scores {
				got += fmt.Sprintf(" %.2f", s)
			}
			if got[1:] != tc.want {
				t.Errorf("scores%s, want %s", got, tc.want)
			}
		})
	}
}
