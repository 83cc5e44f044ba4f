package prefix

import "github.com/prometheus/client_golang/prometheus"

// label is the producer whose index it is.
var label = []string{"producer"}

var (
	// BlocksDesc describes the size of a producer's index, of whatever kind.
	BlocksDesc = prometheus.NewDesc("tandem_prefix_blocks",
		"Blocks in the prefix index; one that several endpoints hold counts for each of them.", label, nil)
	evictionsDesc = prometheus.NewDesc("tandem_prefix_evictions_total",
		"Blocks that left the prefix index because an endpoint's cache was full.", label, nil)
)

// Describe describes the metrics of CollectAs.
func (x *Index) Describe(ch chan<- *prometheus.Desc) {
	ch <- BlocksDesc
	ch <- evictionsDesc
}

// CollectAs collects the metrics of the index under the name of its producer.
func (x *Index) CollectAs(producer string, ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(BlocksDesc, prometheus.GaugeValue, float64(x.blocks.Load()), producer)
	ch <- prometheus.MustNewConstMetric(evictionsDesc, prometheus.CounterValue, float64(x.evictions.Load()), producer)
}
