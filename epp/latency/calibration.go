package latency

import (
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
)

// calibration is how well predictions were met: the predictions of picks, beside what came.
type calibration struct{ ttft, tpot checked }

// checked compares predictions of one kind with outcomes. It is safe for concurrent use.
type checked struct {
	mu        sync.Mutex
	n         uint64
	errors    [len(errorBounds)]uint64 // outcomes whose error is up to each bound
	distance  float64                  // sum of errors
	times     [len(timeBounds)]uint64  // predictions up to each bound
	predicted float64                  // sum, in seconds
	within    [len(levels)]uint64      // outcomes up to each quantile
	signed    float64                  // sum of (outcome − prediction), in seconds
}

// Bounds of histograms: of errors as a share of what came, and of predicted times in seconds.
var (
	errorBounds = [...]float64{0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5}
	timeBounds  = [...]float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60}
)

// add adds an outcome whose prediction is known.
func (c *checked) add(predicted epp.Quantiles, came time.Duration) {
	if predicted.P50 <= 0 || came <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	off := math.Abs(float64(predicted.P50-came)) / float64(came)
	c.distance += off
	count(c.errors[:], errorBounds[:], off)
	c.predicted += predicted.P50.Seconds()
	count(c.times[:], timeBounds[:], predicted.P50.Seconds())
	c.signed += (came - predicted.P50).Seconds()
	for i, at := range []time.Duration{predicted.P50, predicted.P90} {
		if came <= at {
			c.within[i]++
		}
	}
}

// count counts a value in every bucket of a histogram that it is in.
func count(buckets []uint64, bounds []float64, v float64) {
	for i, bound := range bounds {
		if v <= bound {
			buckets[i]++
		}
	}
}

// What predictions are of.
const (
	ofTTFT = "ttft"
	ofITL  = "itl"
)

// Descriptions of the metrics.
var (
	errorDesc = prometheus.NewDesc("tandem_prediction_error",
		"Distance of the predicted median from what came, as a share of what came, of requests that went as planned: the time to first token, or between tokens.", []string{"of"}, nil)
	withinDesc = prometheus.NewDesc("tandem_predictions_within_total",
		"Of these requests, those that took no longer than the predicted quantile: calibrated predictions have that share of tandem_prediction_error_count.", []string{"of", "quantile"}, nil)
	predictedDescs = map[string]*prometheus.Desc{
		ofTTFT: prometheus.NewDesc("tandem_predicted_ttft_seconds", "Predicted median of the time to first token, of these requests.", nil, nil),
		ofITL:  prometheus.NewDesc("tandem_predicted_itl_seconds", "Predicted median of the time between tokens, of these requests.", nil, nil),
	}
)

// Describe implements prometheus.Collector.
func (m *Model) Describe(ch chan<- *prometheus.Desc) {
	ch <- errorDesc
	ch <- withinDesc
	for _, d := range predictedDescs {
		ch <- d
	}
}

// Collect implements prometheus.Collector: how well predictions were met.
func (m *Model) Collect(ch chan<- prometheus.Metric) {
	m.calls.ttft.collect(ofTTFT, ch)
	m.calls.tpot.collect(ofITL, ch)
}

func (c *checked) collect(of string, ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch <- prometheus.MustNewConstHistogram(errorDesc, c.n, c.distance, buckets(errorBounds[:], c.errors[:]), of)
	ch <- prometheus.MustNewConstHistogram(predictedDescs[of], c.n, c.predicted, buckets(timeBounds[:], c.times[:]))
	for i, quantile := range []string{"0.5", "0.9"} {
		ch <- prometheus.MustNewConstMetric(withinDesc, prometheus.CounterValue, float64(c.within[i]), of, quantile)
	}
}

func buckets(bounds []float64, counts []uint64) map[float64]uint64 {
	all := make(map[float64]uint64, len(bounds))
	for i, bound := range bounds {
		all[bound] = counts[i]
	}
	return all
}

// Calibration says how well the predictions of one kind were met so far.
type Calibration struct {
	Requests int     `json:"requests"`
	Error    float64 `json:"error"`        // mean distance of the predicted median from what came, as a share of what came
	Mean     float64 `json:"mean_seconds"` // mean of the predicted medians
	Bias     float64 `json:"bias_seconds"` // mean of what came less the predicted median
	Within50 float64 `json:"within_p50"`   // share of the requests that took no longer than the predicted median
	Within90 float64 `json:"within_p90"`   // likewise, the 90th percentile
}

// RelativeBias returns the bias as a share of the predictions, without its sign; 1 if no prediction was checked.
func (c *Calibration) RelativeBias() float64 {
	if c.Requests == 0 || c.Mean <= 0 {
		return 1
	}
	return math.Abs(c.Bias) / c.Mean
}

// TTFT returns how well predicted times to first token were met.
func (m *Model) TTFT() Calibration { return m.calls.ttft.sum() }

// TPOT returns how well predicted times between tokens were met.
func (m *Model) TPOT() Calibration { return m.calls.tpot.sum() }

func (c *checked) sum() Calibration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == 0 {
		return Calibration{}
	}
	n := float64(c.n)
	return Calibration{int(c.n), c.distance / n, c.predicted / n, c.signed / n, float64(c.within[0]) / n, float64(c.within[1]) / n}
}
