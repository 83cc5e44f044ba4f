package replay

import (
	"fmt"
	"io"
	"math"

	"github.com/tandem-serving/tandem/replay"
)

// measured compares what was measured of a trace with its replay.
type measured struct {
	TTFT comparedTimes `json:"ttft_ms"`
	ITL  comparedTimes `json:"itl_ms"`
	TPOT comparedTimes `json:"tpot_ms"`
}

// comparedTimes are percentiles of the same times.
type comparedTimes struct {
	Measured replay.Quantiles `json:"measured"`
	Replayed replay.Quantiles `json:"replayed"`
}

// measured returns the comparison; nil if nothing was measured, or not under the load that was replayed.
func (r *run) measured() *measured {
	m := r.times
	if m == nil {
		return nil
	}
	at := func(all []float64) (q replay.Quantiles) {
		for _, one := range []struct {
			to    *float64
			share float64
		}{{&q.P50, 0.5}, {&q.P95, 0.95}, {&q.P99, 0.99}} {
			if len(all) > 0 {
				*one.to = all[max(0, int(math.Ceil(one.share*float64(len(all))))-1)]
			}
		}
		return q
	}
	return &measured{comparedTimes{at(m.TTFT), r.summary.TTFT}, comparedTimes{at(m.ITL), r.summary.ITL}, comparedTimes{at(m.TPOT), r.summary.TPOT}}
}

// writeMeasured prints the comparison of each run, if the trace was measured.
func writeMeasured(w io.Writer, runs []*run) error {
	for _, r := range runs {
		m := r.measured()
		if m == nil {
			continue
		}
		fmt.Fprintf(w, "\nMeasured, and replayed with %s:\n", r.name())
		t := aligned(w)
		fmt.Fprintln(t, "\tp50\treplayed\tratio\tp95\treplayed\tratio\t")
		for _, row := range []struct {
			name string
			comparedTimes
		}{{"TTFT", m.TTFT}, {"ITL", m.ITL}, {"TPOT", m.TPOT}} {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", row.name, ms(row.Measured.P50), ms(row.Replayed.P50), ratio(row.Replayed.P50, row.Measured.P50),
				ms(row.Measured.P95), ms(row.Replayed.P95), ratio(row.Replayed.P95, row.Measured.P95))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func ratio(a, b float64) string {
	if b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a/b)
}
