package replay

import (
	"math"
	"testing"
	"time"
)

// loaded is requests of several lengths that come evenly, for some minutes, so many in a second.
func loaded(rate int) *Trace {
	trace := &Trace{BlockTokens: 512}
	for i := range 300 * rate {
		trace.Requests = append(trace.Requests, Request{Due: time.Duration(i) * time.Second / time.Duration(rate), Input: 500 + 1731*i%7500, Output: 100})
	}
	return trace
}

func meanTTFT(r *Result) (seconds float64) {
	for i := range r.Records {
		seconds += r.Records[i].TTFT.Seconds() / float64(len(r.Records))
	}
	return seconds
}

// TestShadowForesees: the gain that a shadow predicts is had when its configuration is put to use: the same way, and of that order.
func TestShadowForesees(t *testing.T) {
	live, other := options(t, 1, "1P+2D"), options(t, 0, "1P+2D") // the prefill engine is the bottleneck of the first
	trace := loaded(3)
	with := live
	with.Shadow = other.Config
	a, b, shadowed := replayed(t, live, trace), replayed(t, other, trace), replayed(t, with, trace)
	if meanTTFT(a) != meanTTFT(shadowed) {
		t.Error("a shadow changes what happens")
	}
	v, had := shadowed.Shadow, meanTTFT(a)-meanTTFT(b)
	g := v.All.TTFT
	t.Logf("predicted %.3f s (%.3f to %.3f) of %.3f s, had %.3f s of %.3f s; predictions are off by %.0f %%", g.Mean, g.Low, g.High, g.Live, had, meanTTFT(a), 100*v.TTFT.Error)
	if v.Picks != len(trace.Requests) {
		t.Errorf("%d picks were compared of %d", v.Picks, len(trace.Requests))
	}
	if math.Signbit(g.Mean) != math.Signbit(had) {
		t.Errorf("the predicted gain is %.3f s, and the one that was had %.3f s", g.Mean, had)
	}
	// And the other way.
	back := other
	back.Shadow = live.Config
	if g := replayed(t, back, trace).Shadow.All.TTFT; math.Signbit(g.Mean) == math.Signbit(had) {
		t.Errorf("the predicted gain of going back is %.3f s, and that of going was %.3f s", g.Mean, had)
	}
}
