package metrics

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Page is the metrics page of one engine, or of one of its ranks. Its methods may be called from several goroutines at once.
type Page struct {
	families []Info
	labels   []Label
	sparse   bool
	created  string // "": the page has no _created lines

	mu         sync.Mutex // guards values and histograms
	values     map[Family]map[string]float64
	histograms map[Family]map[string]*histogram
}

// Label is a label with its value.
type Label struct{ Name, Value string }

// Family is one metric: its place in the list of families.
type Family int

// Kind is the type of a family.
type Kind string

// The kinds.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Info describes one family.
type Info struct {
	Name, Help string
	Kind       Kind
	Label      string   // the family's own label, if it has one
	Series     []string // the values of that label
	Bounds     []float64
	Without    string // the page's label that this family lacks
	hidden     bool
	Raw        bool // the family's series are whole sets of labels, without the page's own
}

type histogram struct {
	counts []uint64 // per bucket, not cumulative; the last is +Inf
	sum    float64
}

// NewPage makes a page whose series all have some labels, and show from the first value on.
func NewPage(families []Info, labels ...Label) *Page {
	return &Page{families: families, labels: labels, sparse: true,
		values: make(map[Family]map[string]float64), histograms: make(map[Family]map[string]*histogram)}
}

// showAll has every series shown from the start, and the times at which counters and histograms began.
func (p *Page) showAll() {
	p.sparse, p.created = false, FormatFloat(float64(time.Now().UnixNano())/1e9)
}

// Hide leaves the families with this beginning of their names out of the page.
func (p *Page) Hide(prefix string) {
	p.families = slices.Clone(p.families)
	for i := range p.families {
		p.families[i].hidden = p.families[i].hidden || strings.HasPrefix(p.families[i].Name, prefix)
	}
}

// Add adds to a counter without a label of its own.
func (p *Page) Add(f Family, v float64) { p.AddTo(f, "", v) }

// AddTo adds to one series of a counter.
func (p *Page) AddTo(f Family, series string, v float64) {
	p.mu.Lock()
	p.series(f)[series] += v
	p.mu.Unlock()
}

// Set replaces the value of one series of a gauge; "" without a label of its own.
func (p *Page) Set(f Family, series string, v float64) {
	p.mu.Lock()
	p.series(f)[series] = v
	p.mu.Unlock()
}

// series returns the values of a family. mu is held.
func (p *Page) series(f Family) map[string]float64 {
	if p.values[f] == nil {
		p.values[f] = make(map[string]float64)
	}
	return p.values[f]
}

// Observe counts a value in a histogram without a label of its own. Durations are in seconds, unless the name says otherwise.
func (p *Page) Observe(f Family, v float64) { p.ObserveIn(f, "", v) }

// ObserveIn counts a value in one series of a histogram.
func (p *Page) ObserveIn(f Family, series string, v float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.histogram(f, series)
	h.sum += v
	i, _ := slices.BinarySearch(p.families[f].Bounds, v)
	h.counts[i]++
}

// histogram returns one series of a histogram. mu is held.
func (p *Page) histogram(f Family, series string) *histogram {
	if p.histograms[f] == nil {
		p.histograms[f] = make(map[string]*histogram)
	}
	h := p.histograms[f][series]
	if h == nil {
		h = &histogram{counts: make([]uint64, len(p.families[f].Bounds)+1)}
		p.histograms[f][series] = h
	}
	return h
}

// Render returns pages of the same families as one, in the text format of Prometheus.
func Render(pages ...*Page) []byte {
	for _, p := range pages {
		p.mu.Lock()
		defer p.mu.Unlock()
	}
	var b bytes.Buffer
	for f, info := range pages[0].families {
		if info.hidden {
			continue
		}
		name := info.Name
		if info.Kind == Counter {
			name += "_total"
		}
		var lines bytes.Buffer
		for _, p := range pages {
			if info.Kind == Histogram {
				p.writeHistograms(&lines, info, Family(f))
			} else {
				p.writeValues(&lines, name, info, Family(f))
			}
		}
		if lines.Len() == 0 {
			continue
		}
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, info.Help, name, info.Kind)
		b.Write(lines.Bytes())
		for _, p := range pages {
			p.writeCreated(&b, info)
		}
	}
	return b.Bytes()
}

// shown returns the series of a family that the page has, or all of them.
func shown[V any](p *Page, info Info, values map[string]V) []string {
	known := func(series string) bool { _, ok := values[series]; return ok }
	switch {
	case info.Raw || info.Series == nil && info.Label != "":
		var list []string
		for series := range values {
			list = append(list, series)
		}
		slices.Sort(list)
		return list
	case info.Series == nil:
		if p.sparse && !known("") {
			return nil
		}
		return []string{""}
	case !p.sparse:
		return info.Series
	}
	return slices.DeleteFunc(slices.Clone(info.Series), func(s string) bool { return !known(s) })
}

func (p *Page) writeValues(b *bytes.Buffer, name string, info Info, f Family) {
	for _, s := range shown(p, info, p.values[f]) {
		fmt.Fprintf(b, "%s{%s} %s\n", name, p.labelsOf(info, s), FormatFloat(p.values[f][s]))
	}
}

// labelsOf returns the labels of one series, by name.
func (p *Page) labelsOf(info Info, series string, more ...Label) string {
	if info.Raw {
		return series
	}
	list := slices.DeleteFunc(slices.Concat(p.labels, more), func(l Label) bool { return l.Name == info.Without })
	if info.Label != "" {
		list = append(list, Label{info.Label, series})
	}
	slices.SortFunc(list, func(a, b Label) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	for i, l := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s=%q", l.Name, l.Value)
	}
	return b.String()
}

func (p *Page) writeHistograms(b *bytes.Buffer, info Info, f Family) {
	for _, s := range shown(p, info, p.histograms[f]) {
		h, total := p.histogram(f, s), uint64(0)
		for i, n := range h.counts {
			total += n
			bound := math.Inf(1)
			if i < len(info.Bounds) {
				bound = info.Bounds[i]
			}
			fmt.Fprintf(b, "%s_bucket{%s} %s\n", info.Name, p.labelsOf(info, s, Label{"le", FormatFloat(bound)}), FormatFloat(float64(total)))
		}
		labels := p.labelsOf(info, s)
		fmt.Fprintf(b, "%s_count{%s} %s\n%s_sum{%s} %s\n", info.Name, labels, FormatFloat(float64(total)), info.Name, labels, FormatFloat(h.sum))
	}
}

// writeCreated adds the gauge that vLLM's page has beside each counter and histogram: a third of its lines.
func (p *Page) writeCreated(b *bytes.Buffer, info Info) {
	if p.created == "" || info.Kind == Gauge {
		return
	}
	name := info.Name + "_created"
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s gauge\n", name, info.Help, name)
	series := info.Series
	if series == nil {
		series = []string{""}
	}
	for _, s := range series {
		fmt.Fprintf(b, "%s{%s} %s\n", name, p.labelsOf(info, s), p.created)
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
