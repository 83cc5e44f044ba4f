package producer

import (
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// precise builds a producer, with its defaults changed.
func precise(t *testing.T, keep *epp.Keep, change func(*PrecisePrefixCache)) *PreciseMatcher {
	t.Helper()
	p := DefaultPrecisePrefixCache()
	p.KVEventsConfig.PodDiscoveryConfig.SocketPort = 1 // nothing listens there
	change(p)
	if found := problems(p); found != nil {
		t.Fatal(found)
	}
	instance, err := p.Build(&epp.Builder{Name: "mine", Keep: keep, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return instance.(*PreciseMatcher)
}

func TestPreciseProblems(t *testing.T) {
	yes, no := true, false
	for name, c := range map[string]struct {
		change func(*PrecisePrefixCache)
		want   string
	}{
		"defaults":       {func(*PrecisePrefixCache) {}, ""},
		"the older name": {func(p *PrecisePrefixCache) { p.TokenProcessorConfig.BlockSize = 64 }, ""},
		"two lengths": {func(p *PrecisePrefixCache) {
			p.TokenProcessorConfig = PreciseTokens{BlockSize: 64, BlockSizeTokens: 16}
		}, "tokenProcessorConfig.blockSize:"},
		"a negative length": {func(p *PrecisePrefixCache) { p.TokenProcessorConfig.BlockSizeTokens = -1 }, "must not be negative"},
		"engines' hashes": {func(p *PrecisePrefixCache) {
			p.TokenProcessorConfig.HashAlgorithm, p.TokenProcessorConfig.HashSeed = "sha256_cbor", "0"
		}, ""},
		"hashes of no engine": {func(p *PrecisePrefixCache) { p.TokenProcessorConfig.HashAlgorithm = "cbor-fnv" }, ""},
		"unknown hashes":      {func(p *PrecisePrefixCache) { p.TokenProcessorConfig.HashAlgorithm = "md5" }, "hashAlgorithm: must be one of sha256, "},
		"no memory":           {func(p *PrecisePrefixCache) { p.IndexerConfig.KVBlockIndexConfig.InMemoryConfig.Size = 0 }, "inMemoryConfig.size"},
		"no port":             {func(p *PrecisePrefixCache) { p.KVEventsConfig.PodDiscoveryConfig.SocketPort = 70000 }, "socketPort"},
		"only replays":        {func(p *PrecisePrefixCache) { p.KVEventsConfig.PodDiscoveryConfig.ReplaySocketPort = 5558 }, "of no use without socketPort"},
		"no engine is heard":  {func(p *PrecisePrefixCache) { p.KVEventsConfig.DiscoverPods = &no }, "no engine would be heard"},
		"engines connect":     {func(p *PrecisePrefixCache) { p.KVEventsConfig.ZMQEndpoint = "tcp://*:5557" }, ""},
		"both": {func(p *PrecisePrefixCache) {
			p.KVEventsConfig.ZMQEndpoint, p.KVEventsConfig.DiscoverPods = "tcp://*:5557", &yes
		}, ""},
		"another host":            {func(p *PrecisePrefixCache) { p.KVEventsConfig.ZMQEndpoint = "tcp://indexer:5557" }, "to connect to engines, leave it out"},
		"an address without port": {func(p *PrecisePrefixCache) { p.KVEventsConfig.ZMQEndpoint = "tcp://*" }, "must end with a port"},
		"no address":              {func(p *PrecisePrefixCache) { p.KVEventsConfig.ZMQEndpoint = "5557" }, "such as tcp://*:5557"},
		"no duration":             {func(p *PrecisePrefixCache) { p.SpeculativeTTL = "2" }, "speculativeTTL"},
		"a negative duration":     {func(p *PrecisePrefixCache) { p.SpeculativeTTL = "-1s" }, "speculativeTTL"},
	} {
		p := DefaultPrecisePrefixCache()
		c.change(p)
		if got := strings.Join(problems(p), "; "); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestPreciseWeights: what is no weight, or of no memory, is said, and disturbs nothing.
func TestPreciseWeights(t *testing.T) {
	p := DefaultPrecisePrefixCache()
	p.IndexerConfig.KVCacheBackendConfigs = []PreciseTier{{"gpu", 1}, {"cpu", 0.8}, {"tape", 0.1}, {"STORAGE", 3}, {"", math.NaN()}}
	var warned []string
	p.Correct(func(field, format string, args ...any) { warned = append(warned, field) })
	at := "indexerConfig.kvCacheBackendConfigs"
	if want := []string{at + "[2].name", at + "[3].weight", at + "[4].name", at + "[4].weight"}; !slices.Equal(warned, want) {
		t.Errorf("warned of %v, want %v", warned, want)
	}
	keep := &epp.Keep{}
	defer keep.Close()
	m, err := p.Matcher(&epp.Builder{Name: "mine", Keep: keep, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c := epp.Candidate{Endpoint: new(epp.Endpoint), Load: new(epp.Load)}
	if s := m.Value(&c, 1000, epp.Loads{100, 200}); s.Tokens != 700+80+200 {
		t.Errorf("1,000 cached tokens are worth %v", s.Tokens)
	}
}

// TestPreciseHashes: how engines name blocks reaches the feed, and what has no effect is said.
func TestPreciseHashes(t *testing.T) {
	for name, c := range map[string]struct {
		given  PreciseTokens
		names  string
		warned int
	}{
		"none":                {PreciseTokens{}, "", 0},
		"vLLM's":              {PreciseTokens{HashAlgorithm: "sha256"}, "sha256", 0},
		"with a seed":         {PreciseTokens{HashAlgorithm: "sha256_cbor", HashSeed: "42"}, `sha256_cbor with hashSeed "42"`, 0},
		"llm-d's":             {PreciseTokens{HashAlgorithm: "xxh64", HashSeed: "42"}, "", 2},
		"a seed without them": {PreciseTokens{HashSeed: "42"}, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			keep := &epp.Keep{}
			defer keep.Close()
			warned := 0
			m := precise(t, keep, func(p *PrecisePrefixCache) {
				p.TokenProcessorConfig = c.given
				p.Correct(func(string, string, ...any) { warned++ })
			})
			if got := m.State().Names; got != c.names || warned != c.warned {
				t.Errorf("%q and %d warnings, want %q and %d", got, warned, c.names, c.warned)
			}
		})
	}
}

// TestPreciseListens: which address engines can connect to.
func TestPreciseListens(t *testing.T) {
	for endpoint, want := range map[string]string{"tcp://*:5557": ":5557", "tcp://0.0.0.0:5557": ":5557", "tcp://[::]:5557": ":5557",
		"tcp://127.0.0.1:5557": "127.0.0.1:5557", "": ""} {
		if got, err := listens(endpoint); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", endpoint, got, err, want)
		}
	}
}

// TestPrecise: a prompt is taken to be where it was sent, the scorers see that, and a changed configuration keeps what is known as long as
// engines are followed in the same way. What no configuration uses is closed.
func TestPrecise(t *testing.T) {
	defer goleak.VerifyNone(t)
	keep := &epp.Keep{}
	defer keep.Close()
	a := epp.NewEndpoint("ns", "a", netip.MustParseAddrPort("127.0.0.1:1"), "", nil)
	b := epp.NewEndpoint("ns", "b", netip.MustParseAddrPort("127.0.0.1:2"), "", nil)
	b.Slot = 1
	m := precise(t, keep, func(*PrecisePrefixCache) {})
	m.EndpointJoined(a)
	m.EndpointJoined(b)
	ids := make([]uint32, 101)
	r := &epp.Request{Model: "m", Prompt: epp.Prompt{IDs: ids, Tokens: len(ids)}}
	if whole := m.Match(r, &r.Prompt, []epp.Candidate{{Endpoint: a}}); whole != 96 {
		t.Errorf("%d tokens can be cached of %d, want 96", whole, len(ids))
	}
	m.Learn(r, &r.Prompt, b, &epp.Load{})
	of := func(m epp.Matcher) []int {
		c := []epp.Candidate{{Endpoint: a}, {Endpoint: b}}
		m.Match(r, &r.Prompt, c)
		return []int{c[0].Cached, c[1].Cached}
	}
	if got := of(m); !slices.Equal(got, []int{0, 96}) {
		t.Errorf("cached tokens %v", got)
	}
	if again := precise(t, keep, func(p *PrecisePrefixCache) { p.KVEventsConfig.Concurrency = 8 }); !slices.Equal(of(again), []int{0, 96}) {
		t.Error("what was known is lost with a change of the configuration that does not concern it")
	}
	other := precise(t, keep, func(p *PrecisePrefixCache) { p.SpeculativeIndexing = false })
	other.EndpointJoined(b)
	other.Learn(r, &r.Prompt, b, &epp.Load{})
	if got := of(other); !slices.Equal(got, []int{0, 0}) {
		t.Errorf("without speculation: cached tokens %v", got)
	}
	if err := keep.Settle(); err != nil { // all were asked for
		t.Fatal(err)
	}
	precise(t, keep, func(p *PrecisePrefixCache) { p.SpeculativeIndexing = false })
	if err := keep.Settle(); err != nil {
		t.Fatal(err)
	}
	if got := of(m); !slices.Equal(got, []int{0, 0}) {
		t.Errorf("what no configuration uses still knows %v", got)
	}
}

// TestPrecisePredicts: what was predicted is that of the endpoint that computes the prompt.
func TestPrecisePredicts(t *testing.T) {
	keep := &epp.Keep{}
	defer keep.Close()
	m := precise(t, keep, func(*PrecisePrefixCache) {})
	a := epp.NewEndpoint("ns", "a", netip.MustParseAddrPort("127.0.0.1:1"), "", nil)
	b := epp.NewEndpoint("ns", "b", netip.MustParseAddrPort("127.0.0.1:2"), "", nil)
	b.Slot = 1
	decode, prefill := epp.DecodeRow("d"), epp.PrefillRow("p", 1)
	r := &epp.Round{Request: &epp.Request{Prompt: epp.Prompt{IDs: make([]uint32, 100), Tokens: 100}}}
	r.Matches = []epp.Matches{{Matcher: m, Whole: 96, Cached: []int{32, 64}}}
	d := &epp.Decision{Picks: []epp.StagePick{{Row: &decode, Endpoints: []*epp.Endpoint{a}}, {Row: &prefill, Endpoints: []*epp.Endpoint{b}}}}
	m.Picked(r, []epp.Candidate{{Endpoint: a}, {Endpoint: b}}, d)
	m.Observe(&epp.Outcome{Decision: d, Result: &pd.AnswerSummary{Cached: 48}})
	if predicted, reported := m.Predicted(); predicted != 64 || reported != 48 {
		t.Errorf("predicted %d and reported %d, want 64 and 48", predicted, reported)
	}
}
