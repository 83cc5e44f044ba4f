package load

import "runtime/metrics"

// schedulerWaits measures how long goroutines of this program were ready to run and did not: time that the latencies of the endpoint
// wrongly contain. It grows when the processors of this machine are busy.
type schedulerWaits struct {
	before, after *metrics.Float64Histogram
}

const waitsMetric = "/sched/latencies:seconds"

func (w *schedulerWaits) begin() { w.before = readWaits() }
func (w *schedulerWaits) end()   { w.after = readWaits() }

func readWaits() *metrics.Float64Histogram {
	all := []metrics.Sample{{Name: waitsMetric}}
	metrics.Read(all)
	if all[0].Value.Kind() != metrics.KindFloat64Histogram {
		return nil // a Go version that does not have it
	}
	h := all[0].Value.Float64Histogram()
	return &metrics.Float64Histogram{Counts: append([]uint64(nil), h.Counts...), Buckets: h.Buckets}
}

// p99 returns the 99th percentile of the waits between begin and end, in ms, as the upper bound of its bucket; 0 if it is unknown.
func (w *schedulerWaits) p99() float64 {
	if w.before == nil || w.after == nil {
		return 0
	}
	total, seen := uint64(0), uint64(0)
	for i, n := range w.after.Counts {
		total += n - w.before.Counts[i]
	}
	for i, n := range w.after.Counts {
		if seen += n - w.before.Counts[i]; total > 0 && seen*100 >= total*99 {
			return 1000 * w.after.Buckets[min(i+1, len(w.after.Buckets)-2)] // the last bound is infinite
		}
	}
	return 0
}
