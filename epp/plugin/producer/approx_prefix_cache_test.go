package producer

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// problems returns what a plugin reports, one "field: message" each.
func problems(p epp.Plugin) (found []string) {
	p.Problems(func(field, format string, args ...any) {
		found = append(found, field+": "+fmt.Sprintf(format, args...))
	})
	return found
}

// approx builds a producer, with its defaults changed.
func approx(tb testing.TB, keep *epp.Keep, change ...func(*ApproxPrefixCache)) *approxPrefixCache {
	tb.Helper()
	p := NewApproxPrefixCache().(*ApproxPrefixCache)
	for _, c := range change {
		c(p)
	}
	if found := problems(p); found != nil {
		tb.Fatal(found)
	}
	if keep == nil {
		keep = &epp.Keep{}
	}
	instance, err := p.Build(&epp.Builder{Keep: keep})
	if err != nil {
		tb.Fatal(err)
	}
	return instance.(*approxPrefixCache)
}

func blockSize(tokens int) func(*ApproxPrefixCache) {
	return func(p *ApproxPrefixCache) { p.BlockSizeTokens = tokens }
}

// cut makes a prompt of whole blocks of 16 tokens, whose hashes begin at first, and a tail of 5 tokens.
func cut(first, blocks int) *epp.Prompt {
	p := &epp.Prompt{Tokens: 16*blocks + 5, BlockTokens: 16}
	for i := range blocks {
		p.Blocks = append(p.Blocks, uint64(first+i)*0x1234_5678_9abc_def1)
	}
	return p
}

// cached returns how many tokens of a prompt each endpoint has cached.
func cached(m epp.Matcher, p *epp.Prompt, endpoints ...*epp.Endpoint) []int {
	c := make([]epp.Candidate, len(endpoints))
	for i, e := range endpoints {
		c[i] = epp.Candidate{Endpoint: e, Load: &epp.Load{}, Cached: -1}
	}
	m.Match(nil, p, c)
	tokens := make([]int, len(c))
	for i := range c {
		tokens[i] = c[i].Cached
	}
	return tokens
}

func TestApproxBlocks(t *testing.T) {
	for _, test := range []struct {
		name                              string
		blockTokens, maxBlocks, maxTokens int
		want                              epp.PromptSpec
	}{
		{"defaults", 16, 2048, 1 << 20, epp.PromptSpec{Tokens: 16, Max: 65536}},
		{"tokens win", 64, 10, 1000, epp.PromptSpec{Tokens: 64, Max: 15}},
		{"blocks without tokens", 1, 10, 0, epp.PromptSpec{Tokens: 1, Max: 10}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := approx(t, nil, func(p *ApproxPrefixCache) {
				p.BlockSizeTokens, p.MaxPrefixBlocksToMatch, p.MaxPrefixTokensToMatch = test.blockTokens, test.maxBlocks, test.maxTokens
			})
			if got := a.Needs(); got != test.want {
				t.Errorf("blocks are %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestApproxProblems(t *testing.T) {
	for _, test := range []struct {
		name string
		p    ApproxPrefixCache
		want []string
	}{
		{"all zero", ApproxPrefixCache{}, []string{"blockSizeTokens: must be at least 1, got 0",
			"lruCapacityPerServer: must be from 1 to 16777216, got 0"}},
		{"negative", ApproxPrefixCache{BlockSizeTokens: -16, MaxPrefixBlocksToMatch: -1, MaxPrefixTokensToMatch: -2,
			LRUCapacityPerServer: -3},
			[]string{"blockSizeTokens: must be at least 1, got -16",
				"maxPrefixTokensToMatch: must not be negative, got -2",
				"maxPrefixBlocksToMatch: must not be negative, got -1",
				"lruCapacityPerServer: must be from 1 to 16777216, got -3"}},
		{"less than a block", ApproxPrefixCache{BlockSizeTokens: 16, MaxPrefixTokensToMatch: 15, LRUCapacityPerServer: 1},
			[]string{"maxPrefixTokensToMatch: is less than one block of 16 tokens, so nothing would match"}},
		{"too much memory", ApproxPrefixCache{BlockSizeTokens: 1, MaxPrefixBlocksToMatch: 1, LRUCapacityPerServer: 1<<24 + 1},
			[]string{"lruCapacityPerServer: must be from 1 to 16777216, got 16777217"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := problems(&test.p); !reflect.DeepEqual(got, test.want) {
				t.Errorf("problems are\n%q, want\n%q", got, test.want)
			}
		})
	}
}

func TestApproxCapacity(t *testing.T) {
	for _, test := range []struct {
		name   string
		tune   bool
		cache  epp.CacheInfo
		blocks int // of 16 tokens
	}{
		{"engine's blocks are ours", true, epp.CacheInfo{BlockTokens: 16, Blocks: 1000}, 1000},
		{"engine's blocks are longer", true, epp.CacheInfo{BlockTokens: 64, Blocks: 1000}, 4000},
		{"engine's blocks are shorter", true, epp.CacheInfo{BlockTokens: 1, Blocks: 1000}, 62},
		{"smaller than a block", true, epp.CacheInfo{BlockTokens: 1, Blocks: 15}, 0},
		{"unknown", true, epp.CacheInfo{}, 31250},
		{"half known", true, epp.CacheInfo{Blocks: 1000}, 31250},
		{"garbage", true, epp.CacheInfo{BlockTokens: -16, Blocks: -1000}, 31250},
		{"absurd", true, epp.CacheInfo{BlockTokens: math.MaxInt, Blocks: math.MaxInt}, maxReported},
		{"not tuned", false, epp.CacheInfo{BlockTokens: 16, Blocks: 1000}, 31250},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := approx(t, nil, func(p *ApproxPrefixCache) { p.AutoTune = test.tune })
			if got := a.capacityOf(test.cache); got != test.blocks {
				t.Errorf("capacity is %d blocks, want %d", got, test.blocks)
			}
		})
	}
}

// TestApproxCountsWholeBlocksOfTheEngine: an engine with longer blocks than ours has only whole ones of these to reuse.
func TestApproxCountsWholeBlocksOfTheEngine(t *testing.T) {
	for _, test := range []struct {
		name  string
		tune  bool
		block int // tokens; 0 = not known
		want  int // of 80 learnt tokens
	}{
		{"not known", true, 0, 80}, {"shorter", true, 1, 80}, {"equal", true, 16, 80}, {"longer", true, 64, 64}, {"longer than the prompt", true, 128, 0},
		{"not tuned", false, 64, 80},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := approx(t, nil, func(p *ApproxPrefixCache) { p.AutoTune = test.tune })
			e := epp.NewEndpoint("d", "p", netip.MustParseAddrPort("10.0.0.1:8000"), "", nil)
			load := epp.Load{Cache: epp.CacheInfo{BlockTokens: test.block, Blocks: 100}}
			a.Learn(nil, cut(0, 5), e, &load)
			c := []epp.Candidate{{Endpoint: e, Load: &load}}
			if a.Match(nil, cut(0, 8), c); c[0].Cached != test.want {
				t.Errorf("cached are %d tokens, want %d", c[0].Cached, test.want)
			}
		})
	}
}

func TestApproxLearnsAtOnce(t *testing.T) {
	a := approx(t, nil)
	// Two ranks of one pod, and a pod of another group of the index.
	addr := netip.MustParseAddr("10.0.0.1")
	ranks := []*epp.Endpoint{
		epp.NewEndpoint("d", "p-0", netip.AddrPortFrom(addr, 8000), "", nil),
		epp.NewEndpoint("d", "p-1", netip.AddrPortFrom(addr, 8001), "", nil),
		epp.NewEndpoint("d", "q", netip.AddrPortFrom(addr.Next(), 8000), "", nil),
	}
	ranks[1].Slot, ranks[2].Slot = 1, 700
	a.Learn(nil, cut(0, 10), ranks[1], &epp.Load{})
	a.Learn(nil, cut(0, 3), ranks[2], &epp.Load{})
	if got, want := cached(a, cut(0, 8), ranks...), []int{0, 128, 48}; !reflect.DeepEqual(got, want) {
		t.Errorf("cached are %v tokens, want %v", got, want)
	}
	if got, want := cached(a, cut(5, 5), ranks...), []int{0, 0, 0}; !reflect.DeepEqual(got, want) {
		t.Errorf("of hashes that begin no prompt cached are %v tokens, want %v", got, want)
	}
	short := cut(0, 2)
	short.Tokens = 20 // less than its blocks: an estimate must not exceed another
	if got, want := cached(a, short, ranks...), []int{0, 20, 20}; !reflect.DeepEqual(got, want) {
		t.Errorf("of a prompt of 20 tokens cached are %v, want %v", got, want)
	}
}

func TestApproxFollowsTheCache(t *testing.T) {
	a := approx(t, nil)
	e := &epp.Endpoint{}
	size := func(blocks int) *epp.Load { return &epp.Load{Cache: epp.CacheInfo{BlockTokens: 16, Blocks: blocks}} }
	old, next := cut(0, 100), cut(1000, 50)
	a.Learn(nil, old, e, size(200))
	a.Learn(nil, next, e, size(80)) // the engine restarted with less memory
	if got, want := append(cached(a, old, e), cached(a, next, e)...), []int{30 * 16, 50 * 16}; !reflect.DeepEqual(got, want) {
		t.Errorf("cached are %v tokens, want %v", got, want)
	}
	a.Learn(nil, old, e, size(1000))
	if got, want := append(cached(a, old, e), cached(a, next, e)...), []int{100 * 16, 50 * 16}; !reflect.DeepEqual(got, want) {
		t.Errorf("after the cache grew, cached are %v tokens, want %v", got, want)
	}
}

func TestApproxOverReloads(t *testing.T) {
	keep := new(epp.Keep)
	e, next := &epp.Endpoint{Name: "e"}, &epp.Endpoint{Name: "next"}
	prompt := cut(0, 4)
	approx(t, keep).Learn(nil, prompt, e, &epp.Load{})

	again := approx(t, keep, func(p *ApproxPrefixCache) { p.MaxPrefixTokensToMatch = 32 })
	if got := cached(again, prompt, e)[0]; got != 32 {
		t.Errorf("%d tokens are known after a reload that limits them to 32", got)
	}
	other := approx(t, keep, blockSize(64))
	other.Learn(nil, prompt, e, &epp.Load{}) // read before the reload
	if got := cached(other, prompt, e)[0]; got != 0 {
		t.Errorf("%d tokens match a prompt that was cut otherwise", got)
	}
	keep.EndpointLeft(e) // also by the index that no configuration uses now
	back := approx(t, keep)
	if got := cached(back, prompt, e, next); got[0] != 0 || got[1] != 0 {
		t.Errorf("%v tokens are known of an endpoint that was forgotten, and of the next in its slot", got)
	}
}

// TestApproxSideBySide: producers have an index each, by their names, also over a reload.
func TestApproxSideBySide(t *testing.T) {
	keep := new(epp.Keep)
	named := func(name string) *approxPrefixCache {
		instance, err := NewApproxPrefixCache().Build(&epp.Builder{Name: name, Keep: keep})
		if err != nil {
			t.Fatal(err)
		}
		return instance.(*approxPrefixCache)
	}
	e, prompt := &epp.Endpoint{Name: "e"}, cut(0, 4)
	named("one").Learn(nil, prompt, e, &epp.Load{})
	if got := cached(named("other"), prompt, e)[0]; got != 0 {
		t.Errorf("a producer knows %d tokens that another one learned", got)
	}
	if got := cached(named("one"), prompt, e)[0]; got != 64 {
		t.Errorf("after a reload, a producer knows %d tokens of 64", got)
	}
}

// TestApproxConcurrently is for the race detector: it calls all methods at once, over a reload.
func TestApproxConcurrently(t *testing.T) {
	keep := new(epp.Keep)
	var wg sync.WaitGroup
	for i := range 4 {
		a := approx(t, keep)
		wg.Go(func() {
			mine, all := &epp.Endpoint{Slot: i}, &epp.Endpoint{Slot: 99}
			for round := range 200 {
				prompt := cut(100*(round%7), 20)
				a.Learn(nil, prompt, mine, &epp.Load{})
				a.Learn(nil, prompt, all, &epp.Load{})
				if got := cached(a, prompt, mine, all)[0]; got != 320 {
					t.Errorf("%d tokens are cached just after 320 were learned", got)
				}
				if round%50 == 49 {
					a.EndpointLeft(mine)
					keep.EndpointLeft(all)
				}
			}
		})
	}
	wg.Wait()
}

func TestApproxAllocatesNothing(t *testing.T) {
	a := approx(t, nil)
	e, prompt, load := &epp.Endpoint{}, cut(0, 500), &epp.Load{}
	c := []epp.Candidate{{Endpoint: e, Load: load}}
	a.Learn(nil, prompt, e, load)
	if n := testing.AllocsPerRun(100, func() { a.Match(nil, prompt, c); a.Learn(nil, prompt, e, load) }); n != 0 {
		t.Errorf("matching and learning a known prompt allocates %v times", n)
	}
}
