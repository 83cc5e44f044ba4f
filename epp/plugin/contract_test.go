package plugin

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/netip"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/epp/plugin/affinity"
	"github.com/tandem-serving/tandem/epp/plugin/handler"
	"github.com/tandem-serving/tandem/epp/plugin/picker"
	"github.com/tandem-serving/tandem/epp/plugin/producer"
	"github.com/tandem-serving/tandem/epp/pool"
	"github.com/tandem-serving/tandem/epp/pool/page"
	"github.com/tandem-serving/tandem/pd"
)

// required are the parameters of plugins that cannot do without.
var required = map[string]string{
	"cheapest-variant-filter":           "costs: {a: 1, b: 2}",
	"endpoint-attribute-filter":         "{attribute: depth, algorithm: {type: threshold, threshold: {operator: LessThan, value: 10}}}",
	"endpoint-attribute-scorer":         "{attributeKey: depth, algorithm: {type: linear_lower_is_better}}",
	"disaggregatedset-rollout-screener": "{scope: {labelSelector: set=x}, revisionGating: {mode: sum, requireRoles: {values: [prefill, decode]}}}",
	"header-label-affinity-scorer":      "{headerName: x-zone, labelKey: zone}",
	"file-discovery":                    "path: endpoints.yaml",
	"priority-holdback-policy":          "minCeiling: 0.5",
	"request-attribute-reporter":        "attributes: [{key: {name: cost}, expression: usage.total_tokens}]",
	"utilization-filter":                "conditions: [{metric: waiting-queue, maxValue: 10}]",
}

// decode returns a plugin of the table with these parameters over its defaults.
func decode(t testing.TB, typ, parameters string) (epp.Plugin, error) {
	t.Helper()
	i := slices.IndexFunc(Table, func(r epp.Row) bool {
		return r.Type == typ || slices.Contains(r.Aliases, typ) || slices.Contains(r.Deprecated, typ)
	})
	if i < 0 {
		t.Fatalf("%s is not in the table", typ)
	}
	p := Table[i].New()
	dec := yaml.NewDecoder(strings.NewReader(parameters))
	dec.KnownFields(true)
	if err := dec.Decode(p); err != nil && err != io.EOF {
		return nil, err
	}
	return p, nil
}

// problems returns what a plugin reports, one "field: message" each.
func problems(p epp.Plugin) (found []string) {
	p.Problems(func(field, format string, args ...any) {
		found = append(found, field+": "+fmt.Sprintf(format, args...))
	})
	return found
}

// others are the instances that plugins of the tests may refer to.
var others = map[string]any{
	"matcher": knownCache{}, "charger": knownCharge{}, "always": alwaysRemote, "picker": instanceOf(picker.NewMaxScore),
	"topology-extractor":           instanceOf(affinity.NewTopologyExtractor),
	"sessions":                     &affinity.Sessions{},
	"mm-embeddings-cache-producer": instanceWith(affinity.NewMediaProducer, &epp.Builder{Keep: &epp.Keep{}}),
}

func builder() *epp.Builder {
	return &epp.Builder{
		Name:     "mine",
		Log:      slog.New(slog.DiscardHandler),
		Instance: func(name string) (any, bool) { i, ok := others[name]; return i, ok },
		Keep:     &epp.Keep{},
	}
}

// build returns an instance, which must not fail.
func build[T any](t testing.TB, typ, parameters string) T {
	t.Helper()
	p, err := decode(t, typ, parameters)
	if err != nil {
		t.Fatalf("%s: %v", typ, err)
	}
	if found := problems(p); found != nil {
		t.Fatalf("%s: %s", typ, found)
	}
	instance, err := p.Build(builder())
	if err != nil {
		t.Fatalf("%s: %v", typ, err)
	}
	v, ok := instance.(T)
	if !ok {
		t.Fatalf("%s is no %s", typ, reflect.TypeFor[T]())
	}
	return v
}

// alwaysRemote is the decider that does not look at the request.
var alwaysRemote = instanceOf(handler.NewAlwaysDisaggPDDecider).(epp.Decider)

// instanceOf builds a plugin that needs neither parameters nor others.
func instanceOf(newPlugin func() epp.Plugin) any { return instanceWith(newPlugin, nil) }

// instanceWith builds a plugin that needs no parameters.
func instanceWith(newPlugin func() epp.Plugin, b *epp.Builder) any {
	instance, err := newPlugin().Build(b)
	if err != nil {
		panic(err)
	}
	return instance
}

// knownCharge is a Charger that charges nothing.
type knownCharge struct{}

func (knownCharge) Charge() epp.Charge { return epp.Charge{} }

// knownCache is a Matcher that knows nothing.
type knownCache struct{}

func (knownCache) Needs() epp.PromptSpec                                     { return epp.PromptSpec{} }
func (knownCache) Match(*epp.Request, *epp.Prompt, []epp.Candidate) int      { return 0 }
func (knownCache) Learn(*epp.Request, *epp.Prompt, *epp.Endpoint, *epp.Load) {}
func (knownCache) EndpointJoined(*epp.Endpoint)                              {}
func (knownCache) EndpointLeft(*epp.Endpoint)                                {}

// eachRow runs check for every row whose instance is a T, and fails if there are fewer than atLeast.
func eachRow[T any](t *testing.T, check func(t *testing.T, plugin T), atLeast int) {
	t.Helper()
	n := 0
	for _, row := range Table {
		if instance, ok := build[any](t, row.Type, required[row.Type]).(T); ok {
			n++
			t.Run(row.Type, func(t *testing.T) { check(t, instance) })
		}
	}
	if n < atLeast {
		t.Errorf("%d plugins are a %s", n, reflect.TypeFor[T]())
	}
}

var roleLabels = []string{"", "prefill", "decode", "encode", "prefill-decode", "encode-prefill-decode", "both", "nonsense"}

// somePods makes candidates of all kinds: each value of their load may be unknown, stale, huge or nonsense.
func somePods(rng *rand.Rand, n int) []epp.Candidate {
	count := func() float64 { return float64([]int{0, 1, rng.IntN(8), rng.IntN(1000), math.MaxInt}[rng.IntN(5)]) }
	usage := func() float64 { return []float64{0, 1, rng.Float64(), -1, 7, math.NaN(), math.Inf(1)}[rng.IntN(7)] }
	c := make([]epp.Candidate, n)
	for i := range c {
		labels := map[string]string{"zone": string(rune('a' + rng.IntN(3)))}
		if role := roleLabels[rng.IntN(len(roleLabels))]; role != "" {
			labels[pd.RoleLabel] = role
		}
		load := &epp.Load{Batch: float64(rng.IntN(20)), Sent: epp.InFlight{Requests: rng.IntN(20), Tokens: rng.IntN(10_000)}}
		if rng.IntN(2) == 0 {
			load.Cache = epp.CacheInfo{BlockTokens: 16, Blocks: rng.IntN(10_000)}
		}
		for _, signal := range []epp.Signal{epp.Waiting, epp.Running, epp.KVUsage} {
			value := count()
			if signal == epp.KVUsage {
				value = usage()
			}
			if rng.IntN(2) == 0 {
				load.Signals.Set(signal, value)
			}
		}
		if rng.IntN(2) == 0 {
			load.Attributes = &epp.Attributes{{Key: "other", Value: 1}, {Key: "depth", Value: usage()}}
		}
		if rng.IntN(3) > 0 {
			load.LoRA = &epp.LoRA{Max: rng.IntN(4), Running: adapters(rng), Waiting: adapters(rng)}
		}
		c[i] = epp.Candidate{
			Endpoint: epp.NewEndpoint("ns", fmt.Sprintf("pod-%04d", i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000), "", labels),
			Load:     load,
			Trust:    []float64{0, 1, 1, rng.Float64()}[rng.IntN(4)],
			InFlight: epp.InFlight{Requests: rng.IntN(20), Tokens: []int{0, rng.IntN(10_000), 1 << 40}[rng.IntN(3)]},
			Cached:   []int{0, 1024, rng.IntN(2048), 1 << 30}[rng.IntN(4)],
		}
	}
	return c
}

func adapters(rng *rand.Rand) []string {
	return [][]string{nil, {"adapter"}, {"other"}, {"other", "adapter"}}[rng.IntN(4)]
}

// round is one run for a request of 1,030 tokens, of which 1,024 are in blocks.
func round(rng *rand.Rand) *epp.Round {
	prompt := epp.Prompt{Tokens: 1030, Blocks: make([]uint64, 64), BlockTokens: 16}
	return &epp.Round{Request: &epp.Request{API: pd.APIChat, Model: "adapter", Prompt: prompt}, Rand: rng, Now: time.Unix(1e9, 0)}
}

func source(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range Table {
		for _, name := range slices.Concat([]string{row.Type}, row.Aliases, row.Deprecated) {
			if seen[name] {
				t.Errorf("%s is there twice", name)
			}
			seen[name] = true
		}
	}
}

func TestDefaultsAreValid(t *testing.T) {
	for _, row := range Table {
		p, err := decode(t, row.Type, required[row.Type])
		if err != nil {
			t.Fatalf("%s: %v", row.Type, err)
		}
		if found := problems(p); found != nil {
			t.Errorf("%s: %q", row.Type, found)
		}
		if typ := reflect.TypeOf(p); typ.Kind() != reflect.Pointer || typ.Elem().Size() > 0 && row.New() == row.New() {
			t.Errorf("%s: New must give a new pointer each time", row.Type)
		}
	}
}

func TestParametersRoundTrip(t *testing.T) {
	for _, row := range Table {
		p, err := decode(t, row.Type, required[row.Type])
		if err != nil {
			t.Fatal(err)
		}
		first, err := yaml.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode(t, row.Type, string(first))
		if err != nil {
			t.Fatalf("%s: %v\n%s", row.Type, err, first)
		}
		if second, _ := yaml.Marshal(again); string(first) != string(second) {
			t.Errorf("%s: wrote\n%sread\n%s", row.Type, first, second)
		}
		if _, err := decode(t, row.Type, "thisIsNoParameter: 1"); err == nil {
			t.Errorf("%s accepts an unknown parameter", row.Type)
		}
	}
}

func TestEveryInstanceHasAKind(t *testing.T) {
	for _, row := range Table {
		switch instance := build[any](t, row.Type, required[row.Type]).(type) {
		case epp.Filter, epp.Scorer, epp.Picker, epp.Handler, epp.Matcher, epp.Charger, epp.Decider, epp.Preparer, epp.Admission,
			epp.LinkEstimator, epp.Observer, epp.SourceFinder, epp.Admitter, epp.Stamper, epp.Parser, epp.Reporter, epp.EndpointObserver, epp.SnapshotObserver,
			*pool.File, pool.Source, page.Extractor, pool.FurtherSource, pool.FurtherReader, producer.Estimated, *affinity.Topology, epp.Identifier, epp.Screener, *affinity.Sessions,
			flow.Sharing, flow.Ordering, flow.Usage:
		default:
			t.Errorf("%s builds a %T, which is of no use", row.Type, instance)
		}
	}
}

// TestParametersAreDocumented reads the source: the comments are the manual.
func TestParametersAreDocumented(t *testing.T) {
	docs := fieldDocs(t)
	var visit func(typ reflect.Type)
	visit = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || !strings.Contains(typ.PkgPath(), "tandem/epp/") {
			return
		}
		key := path.Base(typ.PkgPath()) + "." + typ.Name()
		if docs[key] == "" {
			t.Errorf("%s has no comment", key)
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			if f.IsExported() && name != "-" && options != "inline" && (name == "" || docs[key+"."+f.Name] == "") {
				t.Errorf("%s.%s has no yaml name or no comment", key, f.Name)
			}
			visit(f.Type)
		}
	}
	for _, row := range Table {
		visit(reflect.TypeOf(row.New()))
	}
}

// fieldDocs returns the comments of all types and of the fields of structs, under package.Type and package.Type.Field.
func fieldDocs(t *testing.T) map[string]string {
	docs := map[string]string{}
	fset := token.NewFileSet()
	for _, pattern := range []string{"*.go", "*/*.go", "../pool/*.go", "../pool/page/*.go"} {
		files, _ := filepath.Glob(pattern)
		for _, name := range files {
			file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range file.Decls {
				if d, ok := decl.(*ast.GenDecl); ok {
					collectDocs(file.Name.Name, d, docs)
				}
			}
		}
	}
	return docs
}

func collectDocs(pkg string, d *ast.GenDecl, docs map[string]string) {
	for _, spec := range d.Specs {
		typ, ok := spec.(*ast.TypeSpec)
		if !ok {
			continue
		}
		key := pkg + "." + typ.Name.Name
		docs[key] = d.Doc.Text() + typ.Doc.Text()
		fields, ok := typ.Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range fields.Fields.List {
			for _, name := range f.Names {
				docs[key+"."+name.Name] = f.Doc.Text() + f.Comment.Text()
			}
		}
	}
}

func TestFilters(t *testing.T) {
	eachRow(t, func(t *testing.T, f epp.Filter) {
		rng := source(1)
		for range 200 {
			c := somePods(rng, rng.IntN(40))
			before := slices.Clone(c)
			left := f.Filter(round(rng), c)
			if len(left) > 0 && &left[0] != &c[0] {
				t.Fatal("the result is not at the beginning of the array")
			}
			for _, l := range left { // in order: each is found behind the one before
				at := slices.IndexFunc(before, func(b epp.Candidate) bool { return b == l })
				if at < 0 {
					t.Fatal("a candidate came from nowhere, or the order changed")
				}
				before = before[at+1:]
			}
			if again := f.Filter(round(rng), slices.Clone(left)); !slices.Equal(again, left) {
				t.Fatalf("of %d candidates that were kept, %d are kept again", len(left), len(again))
			}
		}
		c, r := somePods(rng, 100), round(rng)
		if n := testing.AllocsPerRun(100, func() { f.Filter(r, c) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}, 4)
}

func TestScorers(t *testing.T) {
	const untouched = -99
	eachRow(t, func(t *testing.T, s epp.Scorer) {
		rng := source(2)
		for range 500 {
			c := somePods(rng, rng.IntN(40))
			before := slices.Clone(c)
			around := make([]float64, len(c)+2)
			around[0], around[len(c)+1] = untouched, untouched
			scores := around[1 : len(c)+1]
			s.Score(round(rng), c, scores)
			for i, score := range scores {
				if !(score >= 0 && score <= 1) {
					t.Fatalf("%v for %+v, %+v", score, c[i], *c[i].Load)
				}
			}
			if around[0] != untouched || around[len(c)+1] != untouched || !slices.Equal(c, before) {
				t.Fatal("it changed what is not its own")
			}
		}
		c, r := somePods(rng, 100), round(rng)
		scores := make([]float64, len(c))
		if n := testing.AllocsPerRun(100, func() { clear(scores); s.Score(r, c, scores) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}, 7)
}

func TestPickers(t *testing.T) {
	eachRow(t, func(t *testing.T, p epp.Picker) {
		if p.Endpoints() != 1 {
			t.Errorf("picks %d by default", p.Endpoints())
		}
		rng := source(3)
		for range 500 {
			totals := someTotals(rng, rng.IntN(40))
			n := rng.IntN(50)
			picked := p.Pick(round(rng), totals, n, []int{-7})
			if picked[0] != -7 || len(picked)-1 != min(n, len(totals)) {
				t.Fatalf("%v of %d, wanted %d behind -7", picked, len(totals), n)
			}
			slices.Sort(picked)
			if len(slices.Compact(picked)) != len(picked) || picked[len(picked)-1] >= len(totals) {
				t.Fatalf("not distinct indices: %v", picked)
			}
		}
		r, totals, dst := round(rng), someTotals(rng, 100), make([]int, 0, 100)
		for _, n := range []int{1, 3, 100} {
			if a := testing.AllocsPerRun(100, func() { p.Pick(r, totals, n, dst) }); a != 0 {
				t.Errorf("%v allocations for %d", a, n)
			}
		}
		first, second := p.Pick(round(source(9)), totals, 5, nil), p.Pick(round(source(9)), totals, 5, nil)
		if !slices.Equal(first, second) {
			t.Errorf("%v and %v under the same seed", first, second)
		}
	}, 3)
}

func someTotals(rng *rand.Rand, n int) []float64 {
	totals := make([]float64, n)
	for i := range totals {
		totals[i] = []float64{0, 1, 1, rng.Float64(), -1, 1e300, math.NaN()}[rng.IntN(7)]
	}
	return totals
}

// TestConcurrent is for the race detector: instances are shared by all requests.
func TestConcurrent(t *testing.T) {
	for _, row := range Table {
		instance := build[any](t, row.Type, required[row.Type])
		var wg sync.WaitGroup
		for g := range uint64(8) {
			wg.Go(func() {
				rng := source(g)
				c, r := somePods(rng, 20), round(rng)
				totals := make([]float64, len(c))
				switch p := instance.(type) {
				case epp.Scorer:
					p.Score(r, c, totals)
				case epp.Filter:
					p.Filter(r, c)
				case epp.Picker:
					p.Pick(r, totals, 3, nil)
				case epp.Decider:
					p.Decide(&epp.Alternatives{Round: r, Tokens: 100})
				case epp.Handler:
					p.Stages([]string{"decode"}) //nolint:errcheck // only shared here
				}
			})
		}
		wg.Wait()
	}
}
