package prefix

import "github.com/prometheus/client_golang/prometheus"

var (
	blocksDesc = prometheus.NewDesc("tandem_prefix_blocks",
		"Blocks in the prefix index; one that several endpoints hold counts for each of them.", nil, nil)
	evictionsDesc = prometheus.NewDesc("tandem_prefix_evictions_total",
		"Blocks that left the prefix index because an endpoint's cache was full.", nil, nil)
)

// Describe implements prometheus.Collector.
func (x *Index) Describe(ch chan<- *prometheus.Desc) {
	ch <- blocksDesc
	ch <- evictionsDesc
}

// Collect implements prometheus.Collector.
func (x *Index) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(blocksDesc, prometheus.GaugeValue, float64(x.blocks.Load()))
	ch <- prometheus.MustNewConstMetric(evictionsDesc, prometheus.CounterValue, float64(x.evictions.Load()))
}
