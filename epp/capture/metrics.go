package capture

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// kinds are what can be dropped: see message. "write" counts lines that the file did not take.
var kinds = []string{"setup", "load", "request", "outcome", "write"}

type metrics struct {
	lines   prometheus.Counter
	dropped map[string]prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	dropped := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_capture_dropped_total",
		Help: "What the capture lacks because its queue was full or its file could not be written, by kind."}, []string{"kind"})
	m := &metrics{dropped: make(map[string]prometheus.Counter), lines: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tandem_capture_lines_total", Help: "Lines written to the capture."})}
	for _, kind := range kinds {
		m.dropped[kind] = dropped.WithLabelValues(kind)
	}
	for _, c := range []prometheus.Collector{dropped, m.lines} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering the metrics of the capture: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) drop(kind string) { m.dropped[kind].Inc() }
