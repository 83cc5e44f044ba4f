package config

import "github.com/prometheus/client_golang/prometheus"

// Values of the label result of tandem_config_reloads_total.
const (
	resultOK         = "ok"         // the new configuration is in use
	resultInvalid    = "invalid"    // it cannot be used; the old one stays in use
	resultUnreadable = "unreadable" // the file could not be read
)

// metrics are the metrics of reloads.
type metrics struct {
	reloads *prometheus.CounterVec
	success prometheus.Gauge
}

// newMetrics makes the metrics and registers them, unless reg is nil.
func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_config_reloads_total",
			Help: "Changes of the configuration file, by result."}, []string{"result"}),
		success: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tandem_config_last_reload_successful",
			Help: "1 while the configuration in use is the file's, 0 after a change of the file that could not be used."}),
	}
	for _, result := range []string{resultOK, resultInvalid, resultUnreadable} {
		m.reloads.WithLabelValues(result)
	}
	m.success.Set(1)
	if reg != nil {
		reg.MustRegister(m.reloads, m.success)
	}
	return m
}

func (m *metrics) count(result string) {
	m.reloads.WithLabelValues(result).Inc()
	m.success.Set(0)
	if result == resultOK {
		m.success.Set(1)
	}
}
