package scorer

import (
	"log/slog"
	"testing"

	"github.com/tandem-serving/tandem/epp"
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
