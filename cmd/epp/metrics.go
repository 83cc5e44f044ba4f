package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp/config"
)

// pluginMetrics collects the metrics of the plugins in use. They change with the configuration, so Describe describes none.
type pluginMetrics struct{ picker *picker }

// Describe implements prometheus.Collector.
func (m pluginMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m pluginMetrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range config.Of[prometheus.Collector](m.picker.inUse().built) {
		c.Collect(out)
	}
}
