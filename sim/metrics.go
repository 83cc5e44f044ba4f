package sim

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"
)

// metrics is the engine's own page. It is written by hand because its format is part of the protocol: label order, the
// `_created` gauges and the content type follow the real engine's page, and a scraper of that page must read this one.
type metrics struct {
	mu         sync.Mutex
	labels     string // engine="0",model_name="…"
	created    string
	values     map[family]map[string]float64 // by the value of the family's own label, "" without one
	histograms map[family]*histogram
}

// family is one metric; families says everything else about it.
type family int

type familyKind string

const (
	counterKind   familyKind = "counter"
	gaugeKind     familyKind = "gauge"
	histogramKind familyKind = "histogram"
)

type familyInfo struct {
	name, help string
	kind       familyKind
	label      string   // the family's own label, if it has one
	series     []string // the values of that label, always all present
	bounds     []float64
	frontEnd   bool // counted by the API server, which has no engine label
}

type histogram struct {
	counts []uint64 // per bucket, not cumulated; the last is +Inf
	sum    float64
}

func newMetrics(cfg *Config) *metrics {
	m := &metrics{
		labels:     fmt.Sprintf("engine=\"0\",model_name=%q", cfg.ServedModelName),
		created:    formatFloat(float64(time.Now().UnixNano()) / 1e9),
		values:     make(map[family]map[string]float64),
		histograms: make(map[family]*histogram),
	}
	for f, info := range families {
		if info.kind == histogramKind {
			m.histograms[family(f)] = &histogram{counts: make([]uint64, len(info.bounds)+1)}
			continue
		}
		m.values[family(f)] = make(map[string]float64)
	}
	m.values[cacheConfigInfo][cacheConfigLabels(cfg)] = 1
	m.values[sleepState]["awake"] = 1
	return m
}

func cacheConfigLabels(cfg *Config) string {
	return fmt.Sprintf(`block_size="%d",cache_dtype="auto",enable_prefix_caching="True",engine="0",hash_block_size="None",kv_cache_size_tokens="%d",num_gpu_blocks="%d",prefix_caching_hash_algo="sha256"`,
		cfg.KV.BlockSize, cfg.KV.Blocks*cfg.KV.BlockSize, cfg.KV.Blocks)
}

func (m *metrics) add(f family, v float64) { m.addTo(f, "", v) }

func (m *metrics) addTo(f family, series string, v float64) {
	m.mu.Lock()
	m.values[f][series] += v
	m.mu.Unlock()
}

func (m *metrics) observe(f family, v float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.histograms[f]
	h.sum += v
	for i, bound := range families[f].bounds {
		if v <= bound {
			h.counts[i]++
			return
		}
	}
	h.counts[len(h.counts)-1]++
}

// token counts a drawn token. The prompt is counted with the first.
func (m *metrics) token(s *sequence, now time.Time) {
	m.add(generationTokens, 1)
	if !s.times.first.IsZero() {
		m.observe(interTokenLatency, now.Sub(s.times.last).Seconds())
		s.times.last = now
		return
	}
	s.times.first, s.times.last = now, now
	m.observe(timeToFirstToken, now.Sub(s.times.queued).Seconds())
	local := s.prompt - s.hit - s.external
	m.add(promptTokens, float64(s.prompt))
	m.addTo(promptBySource, "local_compute", float64(local))
	m.addTo(promptBySource, "local_cache_hit", float64(s.hit))
	m.addTo(promptBySource, "external_kv_transfer", float64(s.external))
	m.add(promptCached, float64(s.hit+s.external))
}

// finished counts a sequence that ended by itself. One whose client left is not counted, as in the real engine.
func (m *metrics) finished(s *sequence, reason string, now time.Time) {
	m.addTo(requestSuccess, reason, 1)
	m.observe(requestPromptTokens, float64(s.prompt))
	m.observe(requestGenerationTokens, float64(s.generated()))
	m.observe(requestKVComputed, float64(s.prompt-max(0, s.usage.cached)))
	m.observe(e2eLatency, now.Sub(s.times.queued).Seconds())
	m.observe(queueTime, s.times.started.Sub(s.times.queued).Seconds())
	m.observe(inferenceTime, now.Sub(s.times.started).Seconds())
	if !s.times.first.IsZero() {
		m.observe(prefillTime, s.times.first.Sub(s.times.started).Seconds())
		m.observe(decodeTime, now.Sub(s.times.first).Seconds())
	}
}

func (m *metrics) transferred(took time.Duration, bytes, descriptors int) {
	m.observe(transferSeconds, took.Seconds())
	m.observe(postSeconds, 0)
	m.observe(transferBytes, float64(bytes))
	m.observe(transferDescriptors, float64(descriptors))
}

// set replaces the value of a gauge.
func (m *metrics) set(f family, series string, v float64) {
	m.mu.Lock()
	m.values[f][series] = v
	m.mu.Unlock()
}

// page renders everything in the text format of Prometheus.
func (m *metrics) page() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b bytes.Buffer
	for f, info := range families {
		sampleName := info.name
		if info.kind == counterKind {
			sampleName += "_total"
		}
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", sampleName, info.help, sampleName, info.kind)
		if info.kind == histogramKind {
			m.writeHistogram(&b, info, m.histograms[family(f)])
		} else {
			m.writeValues(&b, sampleName, info, m.values[family(f)])
		}
		m.writeCreated(&b, info)
	}
	return b.Bytes()
}

func (m *metrics) writeValues(b *bytes.Buffer, name string, info familyInfo, values map[string]float64) {
	switch {
	case info.label == "":
		fmt.Fprintf(b, "%s{%s} %s\n", name, m.labels, formatFloat(values[""]))
	case info.series == nil: // the label is a whole set of labels
		for labels, v := range values {
			fmt.Fprintf(b, "%s{%s} %s\n", name, labels, formatFloat(v))
		}
	default:
		for _, s := range info.series {
			fmt.Fprintf(b, "%s{%s} %s\n", name, m.seriesLabels(info, s), formatFloat(values[s]))
		}
	}
}

func (m *metrics) seriesLabels(info familyInfo, series string) string {
	labels := m.withLabel(info.label, series)
	if info.frontEnd {
		_, labels, _ = strings.Cut(labels, ",")
	}
	return labels
}

// withLabel keeps the labels in alphabetical order.
func (m *metrics) withLabel(name, value string) string {
	own := fmt.Sprintf("%s=%q", name, value)
	engine, model, _ := strings.Cut(m.labels, ",")
	if name < "model_name" {
		return engine + "," + own + "," + model
	}
	return m.labels + "," + own
}

func (m *metrics) writeHistogram(b *bytes.Buffer, info familyInfo, h *histogram) {
	total := uint64(0)
	for i, n := range h.counts {
		total += n
		bound := math.Inf(1)
		if i < len(info.bounds) {
			bound = info.bounds[i]
		}
		fmt.Fprintf(b, "%s_bucket{%s} %s\n", info.name, m.withLabel("le", formatFloat(bound)), formatFloat(float64(total)))
	}
	fmt.Fprintf(b, "%s_count{%s} %s\n%s_sum{%s} %s\n", info.name, m.labels, formatFloat(float64(total)), info.name, m.labels, formatFloat(h.sum))
}

// writeCreated adds the gauge that the real page has beside each counter and histogram: a third of its lines.
func (m *metrics) writeCreated(b *bytes.Buffer, info familyInfo) {
	if info.kind == gaugeKind {
		return
	}
	name := info.name + "_created"
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s gauge\n", name, info.help, name)
	if info.series == nil {
		fmt.Fprintf(b, "%s{%s} %s\n", name, m.labels, m.created)
	}
	for _, s := range info.series {
		fmt.Fprintf(b, "%s{%s} %s\n", name, m.seriesLabels(info, s), m.created)
	}
}

// formatFloat always shows a fraction, as the real page does.
func formatFloat(v float64) string {
	if math.IsInf(v, 1) {
		return "+Inf"
	}
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}
