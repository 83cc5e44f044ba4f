package producer

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
)

const (
	// judged is after how many prompts it is judged whether the picker and engines count alike.
	judged = 50
	// oddities is one of how many prompts may have another count: engines count what they add for members that the picker does not know.
	oddities = 20
)

// What makes the token ids that are compared.
const (
	checkedLocal   = "local"
	checkedService = "service"
)

var (
	checkedDesc = prometheus.NewDesc("tandem_tokens_checked_total",
		"Prompts whose token counts, the picker's and the engine's, were compared, by whether they are equal.", []string{"producer", "model", "by", "result"}, nil)
	errorDesc = prometheus.NewDesc("tandem_tokens_error",
		"How far the picker's count of a prompt's tokens is from the engine's, as a share of the engine's.", []string{"producer", "model", "by"}, nil)
)

// errorBounds are the upper bounds of the differences, as shares of what engines report. The first one is for equal counts.
var errorBounds = []float64{0, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1}

// tokenCheck compares the numbers of token ids that are made for a model's prompts with those that engines report. It is an epp.TokenSource,
// and a prometheus.Collector.
type tokenCheck struct {
	producer, model, by string
	log                 *slog.Logger
	wrong               atomic.Bool // the latest prompts that were judged differ

	mu         sync.Mutex
	exact, off uint64
	below      []uint64                                   // errors by errorBounds, and above the last one
	sum        float64                                    // of errors
	window     struct{ prompts, off, made, reported int } // since the last judgement; the last two of the latest that differs
}

// keptCheck returns the check of what makes token ids for a model. It outlives reloads, as long as version stays: what they are made by.
func keptCheck(b *epp.Builder, model, by, version string) *tokenCheck {
	return epp.Kept(b.Keep, fmt.Sprintf("token counts of model %q, by %s %s of plugin %s", model, by, version, b.Name), func() *tokenCheck {
		return &tokenCheck{producer: b.Name, model: model, by: by, log: b.Log, below: make([]uint64, len(errorBounds)+1)}
	})
}

// Counted implements epp.TokenSource.
func (c *tokenCheck) Counted(made, reported int) {
	err := float64(max(made-reported, reported-made)) / float64(reported)
	c.mu.Lock()
	defer c.mu.Unlock()
	i, _ := slices.BinarySearch(errorBounds, err)
	c.below[i]++
	c.sum += err
	w := &c.window
	w.prompts++
	if made == reported {
		c.exact++
	} else {
		c.off++
		w.off++
		w.made, w.reported = made, reported
	}
	if w.prompts < judged {
		return
	}
	wrong := w.off*oddities > w.prompts
	if was := c.wrong.Swap(wrong); wrong && !was {
		c.log.Warn("engines count other tokens in prompts than the picker: name the tokenizer.json and the chat template of the engines, or a tokenizer service in vllm.url",
			"model", c.model, "by", c.by, "prompts", w.prompts, "different", w.off, "latest_of_picker", w.made, "latest_of_engine", w.reported)
	}
	*w = struct{ prompts, off, made, reported int }{}
}

// Collect implements prometheus.Collector.
func (c *tokenCheck) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for result, n := range map[string]uint64{"exact": c.exact, "off": c.off} {
		ch <- prometheus.MustNewConstMetric(checkedDesc, prometheus.CounterValue, float64(n), c.producer, c.model, c.by, result)
	}
	buckets, count := make(map[float64]uint64, len(errorBounds)), uint64(0)
	for i, n := range c.below {
		count += n
		if i < len(errorBounds) {
			buckets[errorBounds[i]] = count
		}
	}
	ch <- prometheus.MustNewConstHistogram(errorDesc, count, c.sum, buckets, c.producer, c.model, c.by)
}
