package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp/config"
)

// pluginMetrics are the metrics of the plugins in use. Which ones there are changes with the configuration, so the registry
// is told none beforehand.
type pluginMetrics struct{ picker *picker }

// Describe implements prometheus.Collector.
func (m pluginMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m pluginMetrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range config.Of[prometheus.Collector](m.picker.inUse().built) {
		c.Collect(out)
	}
}
