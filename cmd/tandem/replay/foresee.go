package replay

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/tandem-serving/tandem/epp/shadow"
	"github.com/tandem-serving/tandem/replay"
)

// foreseen is what a picker with the first configuration says that the second one would bring, as its --shadow-config, beside what it brings.
// Gains are in ms, as means of the requests that neither refuses: how much sooner they have their first token, and each further one.
type foreseen struct {
	Confidence float64 `json:"confidence"` // of the intervals
	TTFT       gain    `json:"ttft"`
	ITL        gain    `json:"itl"`
}

// gain is one time. Predicted gains are those of single requests that go elsewhere while all others stay; the one that was had is that of
// all requests going elsewhere.
type gain struct {
	Predicted float64 `json:"predicted_ms"`
	Low       float64 `json:"low_ms"`
	High      float64 `json:"high_ms"`
	Had       float64 `json:"had_ms"`
	Of        float64 `json:"of_ms"` // mean with the first configuration
}

// foresee performs the first of two runs again, with the second one's configuration as its shadow. The result is nil if no pick could be
// compared.
func foresee(ctx context.Context, first, second *run) (*foreseen, error) {
	o := first.options
	o.Shadow, o.Ended, o.Explain = second.options.Config, nil, 0
	result, err := replay.Run(ctx, o, first.requests)
	if err != nil {
		return nil, fmt.Errorf("replaying %s with %s as its shadow: %w", first.name(), second.config, err)
	}
	v := result.Shadow
	if v == nil || v.All.Picks == 0 {
		return nil, nil
	}
	f := &foreseen{Confidence: v.Confidence, TTFT: predictedGain(v.All.TTFT), ITL: predictedGain(v.All.ITL)}
	var ttft, itl means
	for i := range first.result.Records {
		a, b := &first.result.Records[i], &second.result.Records[i]
		if a.Refused || b.Refused {
			continue
		}
		ttft.add(millis(a.TTFT), millis(b.TTFT))
		before, ok := a.TPOT()
		if after, too := b.TPOT(); ok && too {
			itl.add(millis(before), millis(after))
		}
	}
	ttft.into(&f.TTFT)
	itl.into(&f.ITL)
	return f, nil
}

func predictedGain(g shadow.Gain) gain {
	const ms = 1e3
	return gain{Predicted: g.Mean * ms, Low: g.Low * ms, High: g.High * ms}
}

// means sums up the times of requests in two runs.
type means struct{ n, first, second float64 }

func (m *means) add(first, second float64) {
	m.n++
	m.first += first
	m.second += second
}

func (m *means) into(g *gain) {
	if m.n > 0 {
		g.Had, g.Of = (m.first-m.second)/m.n, m.first/m.n
	}
}

// write prints the gains.
func (f *foreseen) write(w io.Writer, first, second string) error {
	fmt.Fprintf(w, "mean gain of %s, in ms: as --shadow-config of %s it predicts\n", second, first)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\tpredicted\t%.0f %% from\tto\tand brings\tof\t\n", 100*f.Confidence)
	for _, row := range []struct {
		name string
		gain
	}{{"TTFT", f.TTFT}, {"ITL", f.ITL}} {
		fmt.Fprintf(t, "%s\t%+.2f\t%+.2f\t%+.2f\t%+.2f\t%.2f\t\n", row.name, row.Predicted, row.Low, row.High, row.Had, row.Of)
	}
	return t.Flush()
}
