package latency

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
)

// TestPredictionsAreCalibrated: of the outcomes of an engine that takes three times as long while requests wait, and whose times spread, half take no longer than
// the predicted median, and nine of ten no longer than the 90th percentile.
func TestPredictionsAreCalibrated(t *testing.T) {
	clock, r := &handClock{now: time.Unix(100, 0)}, rand.New(rand.NewPCG(7, 8))
	m := NewModel(clock)
	at := func(tokens int, waiting float64) time.Duration {
		seconds := 0.02 + 0.06*float64(tokens)/1000
		if waiting > 0 {
			seconds *= 3
		}
		return time.Duration(seconds * math.Exp(0.3*r.NormFloat64()) * float64(time.Second))
	}
	var errors, n, within50, within90 float64
	for i := range 4000 {
		clock.advance(200 * time.Millisecond)
		d := candidate(endpoint(1, "decode"), float64(r.IntN(30)))
		d.Load.Signals.Set(epp.Waiting, float64(r.IntN(2)*r.IntN(6)))
		waiting, _ := d.Load.Signals.Value(epp.Waiting)
		tokens := 200 + r.IntN(6000)
		took := at(tokens, waiting)
		if i > 1000 {
			p := m.Predict(clock.Now(), &d, tokens, 0, epp.Loads{}).TTFT
			errors += math.Abs(float64(p.P50-took)) / float64(took)
			n++
			if took <= p.P50 {
				within50++
			}
			if took <= p.P90 {
				within90++
			}
		}
		served(m, outcome(&d, nil, tokens, 0, took, 0, 20*time.Millisecond))
	}
	if got := within50 / n; got < 0.42 || got > 0.58 {
		t.Errorf("%.1f %% of the outcomes are within the median", 100*got)
	}
	if got := within90 / n; got < 0.86 || got > 0.94 {
		t.Errorf("%.1f %% of the outcomes are within the 90th percentile", 100*got)
	}
	if got := errors / n; got > 0.30 { // 0.25 is what the spread alone makes of the best prediction
		t.Errorf("predictions are off by %.1f %% on average", 100*got)
	}
}

// TestPredictionsOfHandoffs: what a pick expects of a remote request is the prompt and the hand-off, and is checked against both.
func TestPredictionsOfHandoffs(t *testing.T) {
	clock := &handClock{now: time.Unix(100, 0)}
	m := NewModel(clock)
	d, p := candidate(endpoint(1, "decode"), 8), candidate(endpoint(2, "prefill"), 0)
	const prompt, handoff, perToken = 300 * time.Millisecond, 100 * time.Millisecond, 25 * time.Millisecond
	var last *epp.Outcome
	for range 200 {
		clock.advance(time.Second)
		last = outcome(&d, &p, 4000, 0, prompt, handoff, perToken)
		served(m, last)
	}
	got := m.Expect(clock.Now(), last.Decision)
	near(t, "the first token of a remote request", got.TTFT.P50, prompt+handoff, 0.1)
	near(t, "further ones", got.TPOT.P50, perToken, 0.1)
	if got.TTFT.P90 < got.TTFT.P50 || got.TPOT.P90 < got.TPOT.P50 {
		t.Errorf("expected %+v", got)
	}
	if unseen := *last.Decision; true {
		unseen.Picks = append([]epp.StagePick(nil), unseen.Picks...)
		unseen.Picks[0].Seen = nil
		if e := m.Expect(clock.Now(), &unseen); e != (epp.Expected{}) {
			t.Errorf("expected %+v of what nothing was noted of", e)
		}
	}
}

// TestCalibrationIsCounted: outcomes are compared with what their picks expected, and both are on the metrics page.
func TestCalibrationIsCounted(t *testing.T) {
	clock := &handClock{now: time.Unix(100, 0)}
	m := NewModel(clock)
	d := candidate(endpoint(1, "decode"), 8)
	for i := range 100 {
		clock.advance(time.Second)
		o := outcome(&d, nil, 1000, 0, 100*time.Millisecond, 0, 20*time.Millisecond)
		m.Sent(o.Decision)
		if o.Decision.Expected.TTFT.P50 <= 0 || o.Decision.Expected.TPOT.P90 <= 0 {
			t.Fatalf("pick %d expects %+v", i, o.Decision.Expected)
		}
		m.Observe(o)
	}
	for what, c := range map[string]Calibration{"time to first token": m.TTFT(), "time between tokens": m.TPOT()} {
		if c.Requests != 100 || !(c.Error >= 0 && c.Error < 0.5) || c.Within90 < c.Within50 {
			t.Errorf("%s: %+v", what, c)
		}
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]uint64{}
	for _, f := range families {
		for _, one := range f.GetMetric() {
			if h := one.GetHistogram(); h != nil {
				seen[f.GetName()] += h.GetSampleCount()
			} else {
				seen[f.GetName()]++
			}
		}
	}
	want := map[string]uint64{"tandem_prediction_error": 200, "tandem_predicted_ttft_seconds": 100, "tandem_predicted_itl_seconds": 100, "tandem_predictions_within_total": 4}
	for name, n := range want {
		if seen[name] != n {
			t.Errorf("%s: %d, want %d", name, seen[name], n)
		}
	}
}
