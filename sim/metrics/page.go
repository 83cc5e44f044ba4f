package metrics

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ContentType is the content type of the page.
const ContentType = "text/plain; version=1.0.0; charset=utf-8"

// Page is the metrics page of one engine. Its methods may be called from several goroutines at once.
type Page struct {
	mu         sync.Mutex // guards values and histograms
	labels     string     // engine="0",model_name="…"
	created    string
	values     map[Family]map[string]float64 // by the value of the family's own label, "" without one
	histograms map[Family]*histogram
}

// Family is one metric. The table families describes each.
type Family int

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
	series     []string // the values of that label; the page always shows all of them
	bounds     []float64
	frontEnd   bool // counted by the real engine's API server, which has no engine label
}

type histogram struct {
	counts []uint64 // per bucket, not cumulative; the last is +Inf
	sum    float64
}

// Cache describes an engine's KV cache for the page.
type Cache struct {
	Blocks    int // with the null block
	BlockSize int // tokens
}

// NewPage makes the page of an engine that serves a model.
func NewPage(servedModel string, c Cache) *Page {
	p := &Page{
		labels:     fmt.Sprintf("engine=\"0\",model_name=%q", servedModel),
		created:    FormatFloat(float64(time.Now().UnixNano()) / 1e9),
		values:     make(map[Family]map[string]float64),
		histograms: make(map[Family]*histogram),
	}
	for f, info := range families {
		if info.kind == histogramKind {
			p.histograms[Family(f)] = &histogram{counts: make([]uint64, len(info.bounds)+1)}
			continue
		}
		p.values[Family(f)] = make(map[string]float64)
	}
	p.values[CacheConfigInfo][c.labels()] = 1
	p.values[SleepState]["awake"] = 1
	return p
}

func (c Cache) labels() string {
	return fmt.Sprintf(`block_size="%d",cache_dtype="auto",enable_prefix_caching="True",engine="0",hash_block_size="None",kv_cache_size_tokens="%d",num_gpu_blocks="%d",prefix_caching_hash_algo="sha256"`,
		c.BlockSize, c.Blocks*c.BlockSize, c.Blocks)
}

// Add adds to a counter without a label of its own.
func (p *Page) Add(f Family, v float64) { p.AddTo(f, "", v) }

// AddTo adds to one series of a counter.
func (p *Page) AddTo(f Family, series string, v float64) {
	p.mu.Lock()
	p.values[f][series] += v
	p.mu.Unlock()
}

// Set replaces the value of one series of a gauge; "" without a label of its own.
func (p *Page) Set(f Family, series string, v float64) {
	p.mu.Lock()
	p.values[f][series] = v
	p.mu.Unlock()
}

// Observe counts a value in a histogram. Durations are in seconds.
func (p *Page) Observe(f Family, v float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.histograms[f]
	h.sum += v
	for i, bound := range families[f].bounds {
		if v <= bound {
			h.counts[i]++
			return
		}
	}
	h.counts[len(h.counts)-1]++
}

// Render returns the page in the text format of Prometheus.
func (p *Page) Render() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b bytes.Buffer
	for f, info := range families {
		sampleName := info.name
		if info.kind == counterKind {
			sampleName += "_total"
		}
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", sampleName, info.help, sampleName, info.kind)
		if info.kind == histogramKind {
			p.writeHistogram(&b, info, p.histograms[Family(f)])
		} else {
			p.writeValues(&b, sampleName, info, p.values[Family(f)])
		}
		p.writeCreated(&b, info)
	}
	return b.Bytes()
}

func (p *Page) writeValues(b *bytes.Buffer, name string, info familyInfo, values map[string]float64) {
	switch {
	case info.label == "":
		fmt.Fprintf(b, "%s{%s} %s\n", name, p.labels, FormatFloat(values[""]))
	case info.series == nil: // the label is a whole set of labels
		for labels, v := range values {
			fmt.Fprintf(b, "%s{%s} %s\n", name, labels, FormatFloat(v))
		}
	default:
		for _, s := range info.series {
			fmt.Fprintf(b, "%s{%s} %s\n", name, p.seriesLabels(info, s), FormatFloat(values[s]))
		}
	}
}

func (p *Page) seriesLabels(info familyInfo, series string) string {
	labels := p.withLabel(info.label, series)
	if info.frontEnd {
		_, labels, _ = strings.Cut(labels, ",")
	}
	return labels
}

// withLabel adds a label at its place in the alphabetical order.
func (p *Page) withLabel(name, value string) string {
	own := fmt.Sprintf("%s=%q", name, value)
	engine, model, _ := strings.Cut(p.labels, ",")
	if name < "model_name" {
		return engine + "," + own + "," + model
	}
	return p.labels + "," + own
}

func (p *Page) writeHistogram(b *bytes.Buffer, info familyInfo, h *histogram) {
	total := uint64(0)
	for i, n := range h.counts {
		total += n
		bound := math.Inf(1)
		if i < len(info.bounds) {
			bound = info.bounds[i]
		}
		fmt.Fprintf(b, "%s_bucket{%s} %s\n", info.name, p.withLabel("le", FormatFloat(bound)), FormatFloat(float64(total)))
	}
	fmt.Fprintf(b, "%s_count{%s} %s\n%s_sum{%s} %s\n", info.name, p.labels, FormatFloat(float64(total)), info.name, p.labels, FormatFloat(h.sum))
}

// writeCreated adds the gauge that the real page has beside each counter and histogram: a third of its lines.
func (p *Page) writeCreated(b *bytes.Buffer, info familyInfo) {
	if info.kind == gaugeKind {
		return
	}
	name := info.name + "_created"
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s gauge\n", name, info.help, name)
	if info.series == nil {
		fmt.Fprintf(b, "%s{%s} %s\n", name, p.labels, p.created)
	}
	for _, s := range info.series {
		fmt.Fprintf(b, "%s{%s} %s\n", name, p.seriesLabels(info, s), p.created)
	}
}

// FormatFloat writes a number as the real page does, always with a fraction.
func FormatFloat(v float64) string {
	if math.IsInf(v, 1) {
		return "+Inf"
	}
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}
