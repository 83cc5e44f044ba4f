package shadow

import "github.com/prometheus/client_golang/prometheus"

// Descriptions of the metrics.
var (
	picksDesc = prometheus.NewDesc("tandem_shadow_picks_total",
		"Picks since the shadow's configuration came into use, by what the shadow would have done otherwise: same, prefill, decode, verdict or refused.", []string{"kind"}, nil)
	gainDesc = prometheus.NewDesc("tandem_shadow_gain_seconds",
		"How much less time requests are expected to take by the shadow's decisions on average, to the first token (ttft) and for each further one (itl), with the ends of the 90 % interval.",
		[]string{"of", "bound"}, nil)
)

// Describe implements prometheus.Collector.
func (r *Report) Describe(ch chan<- *prometheus.Desc) {
	ch <- picksDesc
	ch <- gainDesc
}

// Collect implements prometheus.Collector.
func (r *Report) Collect(ch chan<- prometheus.Metric) {
	v := r.View()
	counts := map[Kind]int{Same: 0, Prefill: 0, Decode: 0, Verdict: 0, Refused: 0}
	for _, g := range v.Kinds {
		counts[g.Kind] = g.Picks
	}
	for kind, n := range counts {
		ch <- prometheus.MustNewConstMetric(picksDesc, prometheus.CounterValue, float64(n), string(kind))
	}
	for of, g := range map[string]Gain{"ttft": v.All.TTFT, "itl": v.All.ITL} {
		for bound, value := range map[string]float64{"mean": g.Mean, "low": g.Low, "high": g.High} {
			ch <- prometheus.MustNewConstMetric(gainDesc, prometheus.GaugeValue, value, of, bound)
		}
	}
}
