package page

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/epp"
)

// value identifies what a series of a page is read into. Values below epp.MaxSignals are signals.
type value uint8

const (
	valueLoRA  value = epp.MaxSignals + iota
	valueCache       // the size of the cache in labels
	valueBlockTokens
	valueBlocks
	valueCount
)

// Program says what is read from the pages of one engine. It does not change after it was made.
type Program struct {
	families []family
	// The labels of valueCache.
	blockTokensLabel, blocksLabel string
	attributes                    []string // the values from valueCount on
	// rankLabel is the label by which a page tells the loads of an engine's data-parallel ranks apart; "": it has none.
	rankLabel string
	// Path is where engines have the page if they are asked where most have it; "": there.
	Path string
}

// family is a metric family from which one or more values are read.
type family struct {
	name  string
	wants []want
}

type want struct {
	spec metricSpec
	of   value
}

type specField struct {
	field, text string
	of          value
}

// specs lists the specs of an engine by the names of their fields.
func (c *EngineConfig) specs() []specField {
	var all []specField
	for _, s := range epp.Signals() {
		if field, text := c.signalSpec(s); text != nil {
			all = append(all, specField{field, *text, value(s)})
		}
	}
	return append(all,
		specField{"loraSpec", c.LoRASpec, valueLoRA},
		specField{"cacheInfoSpec", c.CacheInfoSpec, valueCache},
		specField{"cacheBlockSizeSpec", c.CacheBlockSizeSpec, valueBlockTokens},
		specField{"cacheNumBlocksSpec", c.CacheNumBlocksSpec, valueBlocks})
}

// signalSpec returns the field of the configuration that holds the spec of a signal, nil if there is none.
func (c *EngineConfig) signalSpec(s epp.Signal) (field string, text *string) {
	d := s.Declaration()
	switch {
	case d.Kind != epp.PageSignal:
		return "", nil
	case d.Parameter == "":
		for i := range c.CustomMetrics {
			if m := &c.CustomMetrics[i]; m.AttributeKey == d.Name {
				return fmt.Sprintf("customMetrics[%d].metricSpec", i), &m.MetricSpec
			}
		}
		return "", nil
	}
	fields := reflect.ValueOf(c).Elem()
	for i := range fields.NumField() {
		if fields.Type().Field(i).Tag.Get("yaml") == d.Parameter {
			return d.Parameter, fields.Field(i).Addr().Interface().(*string)
		}
	}
	panic("page: the signal " + d.Name + " names the parameter " + d.Parameter + ", which EngineConfig does not have")
}

// ownPaths are where engines have their page that do not have it at /metrics. trtllm-serve has the iterations there, as JSON.
var ownPaths = map[string]string{"trtllm-serve": "/prometheus/metrics"}

// rankLabels are the labels of engines' pages that hold the number of a data-parallel rank. SGLang's engines tell their ranks on a page of
// their own.
var rankLabels = map[string]string{"vllm": "engine"}

// compile makes the program of an engine whose configuration has no problems.
func (c *EngineConfig) compile() *Program {
	p := &Program{
		Path:             ownPaths[c.Name],
		rankLabel:        rankLabels[c.Name],
		blockTokensLabel: cmp.Or(c.CacheBlockSizeLabelName, "block_size"),
		blocksLabel:      cmp.Or(c.CacheNumBlocksLabelName, "num_gpu_blocks"),
	}
	for _, s := range c.specs() {
		if s.text == "" {
			continue
		}
		spec, err := parseSpec(s.text)
		if err != nil {
			panic("page: a spec with a problem was compiled: " + s.text)
		}
		f := p.family(spec.family)
		f.wants = append(f.wants, want{spec, s.of})
	}
	for _, m := range c.CustomMetrics {
		if _, isSignal := epp.SignalNamed(m.AttributeKey); isSignal {
			continue
		}
		spec, err := parseSpec(m.MetricSpec)
		if err != nil {
			panic("page: a spec with a problem was compiled: " + m.MetricSpec)
		}
		f := p.family(spec.family)
		f.wants = append(f.wants, want{spec, valueCount + value(len(p.attributes))})
		p.attributes = append(p.attributes, m.AttributeKey)
	}
	return p
}

func (p *Program) family(name string) *family {
	for i := range p.families {
		if p.families[i].name == name {
			return &p.families[i]
		}
	}
	p.families = append(p.families, family{name: name})
	return &p.families[len(p.families)-1]
}

// page collects the values of one metrics page. reset prepares it for the next page.
type page struct {
	program *Program
	sums    [valueCount]sum
	custom  []sum // of the program's attributes
	lora    loraLabels
	cache   epp.CacheInfo // from labels
	engine  string        // that wrote the page: epp.EngineSGLang, or "" = another one
	mode    epp.EngineMode
	ranks   rankLoads

	cacheType []byte // of the elements of the cache; empty: the model's own
	nixl      bool   // the page has metrics of NIXL
}

// sum adds up the series of one value that have the newest timestamp.
type sum struct {
	total float64
	count int
	at    float64 // -Inf: they have no timestamp
	bad   bool    // one of them has an impossible value
}

// loraLabels are the labels of the LoRA family's newest series.
type loraLabels struct {
	running, waiting []byte
	max              int
}

func (p *page) reset(program *Program) {
	p.program = program
	for i := range p.sums {
		p.sums[i] = sum{at: math.Inf(-1)}
	}
	p.custom = slices.Grow(p.custom[:0], len(program.attributes))[:len(program.attributes)]
	for i := range p.custom {
		p.custom[i] = sum{at: math.Inf(-1)}
	}
	p.lora = loraLabels{running: p.lora.running[:0], waiting: p.lora.waiting[:0]}
	p.cache, p.engine, p.mode = epp.CacheInfo{}, "", epp.EngineAny
	p.ranks.reset()
	p.cacheType, p.nixl = p.cacheType[:0], false
}

// line reads one line without its line feed. whole is false if the line was too long, so that its end is missing.
func (p *page) line(text []byte, whole bool) {
	if len(text) > 0 && (text[0] == ' ' || text[0] == '\t') {
		text = trimLeft(text)
	}
	if len(text) == 0 || text[0] == '#' {
		return
	}
	if p.mode == epp.EngineAny {
		p.noticeSGLang(text)
	}
	if !p.nixl {
		p.nixl = bytes.HasPrefix(text, nixlFamily)
	}
	for i := range p.program.families {
		f := &p.program.families[i]
		n := len(f.name)
		if len(text) <= n || text[n] != '{' && text[n] != ' ' && text[n] != '\t' || string(text[:n]) != f.name {
			continue
		}
		s, ok := parseSeries(bytes.TrimSuffix(text[n:], []byte("\r")))
		ok = ok && whole
		for j := range f.wants {
			if w := &f.wants[j]; !ok || w.spec.matches(s.labels) {
				p.take(w.of, s, ok)
			}
		}
		return
	}
}

// nixlFamily is the beginning of the names of the families that vLLM's page has, from the start on, if the engine hands KV caches over by
// NIXL.
var nixlFamily = []byte("vllm:nixl_")

// sglangFamily is the beginning of the names of SGLang's families.
var sglangFamily = []byte("sglang:")

// noticeSGLang learns from a line that SGLang writes the page, and the mode of the engine, which most of its families have as a
// label.
func (p *page) noticeSGLang(text []byte) {
	if !bytes.HasPrefix(text, sglangFamily) {
		return
	}
	p.engine = epp.EngineSGLang
	open := bytes.IndexByte(text, '{')
	if open < 0 {
		return
	}
	if end := closingBrace(text[open:]); end > 0 {
		mode, _ := label(text[open+1:open+end], "engine_type")
		p.mode = epp.ParseEngineMode(string(mode))
	}
}

// take adds a series to a value. ok is false if the series could not be read; then the value becomes unknown.
func (p *page) take(of value, s series, ok bool) {
	v := p.sumOf(of)
	if !ok {
		v.bad = true
		return
	}
	at := math.Inf(-1)
	if s.timed {
		at = s.at
	}
	switch {
	case at < v.at:
		return
	case at > v.at:
		*v = sum{at: at}
		if of == valueCache {
			p.cache, p.cacheType = epp.CacheInfo{}, p.cacheType[:0]
		}
	}
	switch of {
	case valueLoRA:
		p.takeLoRA(v, s)
	case valueCache:
		p.takeCache(v, s)
	default:
		v.bad = v.bad || of < valueCount && !unitOf(of).Valid(s.value) || math.IsNaN(s.value) || math.IsInf(s.value, 0)
		v.total += s.value
		v.count++
		if p.program.rankLabel != "" {
			p.ranks.take(of, s, p.program.rankLabel)
		}
	}
}

func (p *page) sumOf(of value) *sum {
	if of < valueCount {
		return &p.sums[of]
	}
	return &p.custom[of-valueCount]
}

// unitOf returns the unit of a value that is a number.
func unitOf(of value) epp.Unit {
	if of < epp.MaxSignals {
		return epp.Signal(of).Unit()
	}
	return epp.Count
}

// takeLoRA keeps the series with the latest time, which is the series' value.
func (p *page) takeLoRA(v *sum, s series) {
	if !(s.value >= 0) || v.count > 0 && s.value <= v.total {
		return
	}
	limit, _ := label(s.labels, "max_lora")
	running, _ := label(s.labels, "running_lora_adapters")
	waiting, _ := label(s.labels, "waiting_lora_adapters")
	v.total, v.count = s.value, 1
	p.lora.running = append(p.lora.running[:0], running...)
	p.lora.waiting = append(p.lora.waiting[:0], waiting...)
	p.lora.max = count(limit)
}

// takeCache reads the size of one engine's cache. Engines of one page have blocks of the same size.
func (p *page) takeCache(v *sum, s series) {
	tokens, _ := label(s.labels, p.program.blockTokensLabel)
	blocks, _ := label(s.labels, p.program.blocksLabel)
	v.count++
	p.cache.BlockTokens = max(p.cache.BlockTokens, count(tokens))
	p.cache.Blocks += count(blocks)
	if of, ok := label(s.labels, cacheTypeLabel); ok && string(of) != epp.CacheTypeAuto {
		p.cacheType = append(p.cacheType[:0], of...)
	}
}

// cacheTypeLabel is vLLM's label of the type of a cache's elements.
const cacheTypeLabel = "cache_dtype"

// sameText returns a text, in the memory of before if it is the same.
func sameText(text []byte, before string) string {
	if string(text) == before {
		return before
	}
	return string(text)
}

// count reads a label that holds a number. Any other text, such as None, is 0.
func count(text []byte) int {
	n, err := strconv.ParseUint(string(text), 10, 40)
	if err != nil {
		return 0
	}
	return int(n)
}

// load returns the load that the page reports, without its time; before is the load that it follows. ok is false if the page
// has none of the wanted values, so it is not a page of this engine.
func (p *page) load(before *epp.Load) (l epp.Load, ok bool) {
	found := len(p.program.families) == 0
	for i := range p.sums {
		found = found || p.sums[i].count > 0
	}
	for i := range p.custom {
		found = found || p.custom[i].count > 0
	}
	l.Attributes = p.attributes()
	for i := range p.sums[:epp.MaxSignals] {
		if v := &p.sums[i]; v.known() {
			l.Signals.Set(epp.Signal(i), unitOf(value(i)).Combine(v.total, v.count))
		}
	}
	if v := &p.sums[valueCache]; v.known() {
		l.Cache = p.cache
		l.Cache.Type = sameText(p.cacheType, before.Cache.Type)
	}
	if v := &p.sums[valueBlockTokens]; v.known() {
		l.Cache.BlockTokens = int(v.total) / v.count
	}
	if v := &p.sums[valueBlocks]; v.known() {
		l.Cache.Blocks = int(v.total)
	}
	if p.sums[valueLoRA].known() {
		l.LoRA = p.lora.adapters(before.LoRA)
	}
	if l.Engine, l.Mode = p.engine, p.mode; p.nixl {
		l.Connector = epp.ConnectorNIXL
	}
	if !p.sums[epp.Waiting].bad && !p.sums[epp.Running].bad && !p.sums[epp.KVUsage].bad {
		l.Ranks = p.ranks.loads(before.Ranks)
	}
	return l, found
}

// attributes returns the program's attributes that the page has, nil if it has none.
func (p *page) attributes() *epp.Attributes {
	known := 0
	for i := range p.custom {
		if p.custom[i].known() {
			known++
		}
	}
	if known == 0 {
		return nil
	}
	all := make(epp.Attributes, 0, known)
	for i := range p.custom {
		if v := &p.custom[i]; v.known() {
			all = append(all, epp.Attribute{Key: p.program.attributes[i], Value: v.total})
		}
	}
	return &all
}

func (v *sum) known() bool { return v.count > 0 && !v.bad }

// adapters returns the adapters that the labels name. It returns before if nothing has changed, as is nearly always the case.
func (l *loraLabels) adapters(before *epp.LoRA) *epp.LoRA {
	if before != nil && before.Max == l.max && sameList(l.running, before.Running) && sameList(l.waiting, before.Waiting) {
		return before
	}
	return &epp.LoRA{Max: l.max, Running: splitList(l.running), Waiting: splitList(l.waiting)}
}

func splitList(text []byte) []string {
	var items []string
	for item := range strings.SplitSeq(string(text), ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// sameList reports whether text is the list in comma-separated form, without allocating.
func sameList(text []byte, list []string) bool {
	n := 0
	for item := range bytes.SplitSeq(text, []byte(",")) {
		if item = bytes.TrimSpace(item); len(item) == 0 {
			continue
		}
		if n == len(list) || string(item) != list[n] {
			return false
		}
		n++
	}
	return n == len(list)
}
