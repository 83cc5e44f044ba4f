package flow

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
)

// What waits and how full the pool is, under our names and under llm-d's, which autoscalers are configured with.
var (
	requestsDesc   = prometheus.NewDesc("tandem_queue_requests", "Requests that wait for capacity.", []string{"priority"}, nil)
	bytesDesc      = prometheus.NewDesc("tandem_queue_bytes", "Bytes of the bodies of requests that wait for capacity.", []string{"priority"}, nil)
	saturationDesc = prometheus.NewDesc("tandem_pool_saturation", "How full the endpoints of a stage are together: 1 is full.",
		[]string{"stage"}, nil)

	theirRequestsDesc = prometheus.NewDesc("llm_d_epp_flow_control_queue_size", "Requests that wait for capacity.",
		[]string{"fairness_id", "priority", "inference_pool", "model_name", "target_model_name"}, nil)
	theirBytesDesc = prometheus.NewDesc("llm_d_epp_flow_control_queue_bytes", "Bytes of the bodies of requests that wait for capacity.",
		[]string{"fairness_id", "priority", "inference_pool", "model_name", "target_model_name"}, nil)
	theirSaturationDesc = prometheus.NewDesc("llm_d_epp_flow_control_pool_saturation",
		"How full the endpoints of a stage are together: 1 is full. Stage effective is the fuller one.", []string{"inference_pool", "stage"}, nil)
	requestShareDesc = prometheus.NewDesc("llm_d_epp_flow_control_capacity_utilization_requests",
		"Requests that wait, as a share of those of the priority that may.", []string{"priority", "inference_pool"}, nil)
	byteShareDesc = prometheus.NewDesc("llm_d_epp_flow_control_capacity_utilization_bytes",
		"Bytes that wait, as a share of those of the priority that may.", []string{"priority", "inference_pool"}, nil)
	allRequestsShareDesc = prometheus.NewDesc("llm_d_epp_flow_control_global_capacity_utilization_requests",
		"Requests that wait, as a share of those that may.", []string{"inference_pool"}, nil)
	allBytesShareDesc = prometheus.NewDesc("llm_d_epp_flow_control_global_capacity_utilization_bytes",
		"Bytes that wait, as a share of those that may.", []string{"inference_pool"}, nil)
	theirRunningDesc = prometheus.NewDesc("llm_d_epp_request_running", "Requests that were sent to an endpoint and have not ended.",
		[]string{"model_name", "target_model_name", "fairness_id", "priority"}, nil)
)

// Describe implements prometheus.Collector. There are no metrics while requests do not wait, so it describes none.
func (c *Controller) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *Controller) Collect(out chan<- prometheus.Metric) {
	in := c.current.Load()
	if _, off := in.gate.(OpenGate); off {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	pool := ""
	if c.opt.Metrics != nil {
		pool = c.opt.Metrics.pool
	}
	c.collectBands(in, pool, gauge)
	c.collectSaturation(in, pool, gauge)
	c.queued.atLeastOne(func(o epp.Origin, requests, bytes int64) {
		gauge(theirRequestsDesc, float64(requests), o.Flow, strconv.Itoa(o.Priority), pool, o.Model, o.Target)
		gauge(theirBytesDesc, float64(bytes), o.Flow, strconv.Itoa(o.Priority), pool, o.Model, o.Target)
	})
}

// collectBands tells what waits in each band, and of which share of the limits.
func (c *Controller) collectBands(in *configured, pool string, gauge func(*prometheus.Desc, float64, ...string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.band(0) // so that there always is a series
	all := 0
	for _, b := range c.bands {
		all += b.requests
		priority, limits := strconv.Itoa(b.priority), &b.settings.Limits
		gauge(requestsDesc, float64(b.requests), priority)
		gauge(bytesDesc, float64(b.bytes), priority)
		if limits.Requests > 0 {
			gauge(requestShareDesc, float64(b.requests)/float64(limits.Requests), priority, pool)
		}
		if limits.Bytes > 0 {
			gauge(byteShareDesc, float64(b.bytes)/float64(limits.Bytes), priority, pool)
		}
	}
	if limits := &in.settings.All; limits.Requests > 0 {
		gauge(allRequestsShareDesc, float64(all)/float64(limits.Requests), pool)
	}
	if limits := &in.settings.All; limits.Bytes > 0 {
		gauge(allBytesShareDesc, float64(c.bytes)/float64(limits.Bytes), pool)
	}
}

// collectSaturation tells how full each stage is.
func (c *Controller) collectSaturation(in *configured, pool string, gauge func(*prometheus.Desc, float64, ...string)) {
	stages := [lanes]epp.Stage{laneFirst: epp.StageDecode, laneSplit: epp.StagePrefill}
	most, load := 0.0, epp.InFlight{}
	for stage := laneSplit; ; stage-- {
		asked := c.asked[stage].Load()
		load = c.pendingAt(stage, load)
		saturation := in.gate.Saturation(stage == laneSplit, asked, load, 0)
		most = max(most, saturation)
		gauge(saturationDesc, saturation, string(stages[stage]))
		gauge(theirSaturationDesc, saturation, pool, string(stages[stage]))
		if stage == laneFirst {
			break
		}
	}
	gauge(theirSaturationDesc, most, pool, "effective")
}
