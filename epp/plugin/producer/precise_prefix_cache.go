package producer

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/kvfeed"
	"github.com/tandem-serving/tandem/epp/kvhash"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// PrecisePrefixCache knows how much of a prompt each endpoint has in its prefix cache, because engines tell: it subscribes to their KV
// events. It needs the token ids of prompts, which requests carry or token-producer finds; of other prompts it knows nothing. Blocks are
// looked up by the token ids in the events, so engines and picker need no common seed, unless hashAlgorithm says that the engines' hashes are
// computed. Engines may have blocks of different lengths. All holders of a block are remembered, each rank of an engine on its own. A plugin that names no producer reads this one if the file has no
// approx-prefix-cache-producer; llm-d adds one of these for it.
type PrecisePrefixCache struct {
	// TokenProcessorConfig is about how prompts are cut into blocks.
	TokenProcessorConfig PreciseTokens `yaml:"tokenProcessorConfig"`
	// IndexerConfig is about the index of blocks.
	IndexerConfig PreciseIndex `yaml:"indexerConfig"`
	// KVEventsConfig says where engines publish.
	KVEventsConfig PreciseEvents `yaml:"kvEventsConfig"`
	// SpeculativeIndexing takes a prompt to be cached where it was sent, until the engine tells, so that the requests of a burst with the
	// same prompt stay together. Default true; llm-d's is false.
	SpeculativeIndexing bool `yaml:"speculativeIndexing"`
	// SpeculativeTTL is for how long that is taken for granted, at least; at most it is twice as long. Default 2s.
	SpeculativeTTL string `yaml:"speculativeTTL"`
}

// PreciseTokens is about how prompts are cut into blocks.
type PreciseTokens struct {
	// BlockSizeTokens is the length of engines' blocks, in tokens. The length that their events tell counts; if it is another one, that
	// is logged and counted in tandem_prefix_mismatch_total. Default 0: whatever they tell. llm-d cuts prompts into blocks of this length.
	BlockSizeTokens int `yaml:"blockSizeTokens"`
	// BlockSize is an older name of blockSizeTokens.
	BlockSize int `yaml:"blockSize"`
	// HashSeed is PYTHONHASHSEED of the engines, where their hashes are computed. Default "": they have none. xxhash and xxhash_cbor need one.
	HashSeed string `yaml:"hashSeed"`
	// HashAlgorithm has blocks looked up by the engines' own hashes: sha256, sha256_cbor, xxhash or xxhash_cbor, as vLLM's flag
	// --prefix-caching-hash-algo says, or sglang. Then blocks are also found that engines tell of without token ids, or whose predecessors the
	// picker has missed: after lost messages, in slower memory, in shared stores. It takes 1 to 2 ms longer for a prompt of 128k tokens, and
	// all engines must have the same algorithm and seed; if one has not, that is logged and counted in tandem_prefix_mismatch_total. Default
	// "": by their token ids, which llm-d's cbor-fnv and xxh64 mean too.
	HashAlgorithm string `yaml:"hashAlgorithm"`
}

// PreciseIndex is about the index of blocks.
type PreciseIndex struct {
	// KVBlockIndexConfig is about its memory.
	KVBlockIndexConfig PreciseBlocks `yaml:"kvBlockIndexConfig"`
	// KVCacheBackendConfigs are the weights of blocks by the memory that they are in. Default: none, so that a block in slower memory counts as
	// much as it saves on the endpoint: the time of computing it there, as it was measured, less the time of loading it. llm-d's are gpu 1.0
	// and cpu 0.8.
	KVCacheBackendConfigs []PreciseTier `yaml:"kvCacheBackendConfigs"`
	// TokenizersPoolConfig is of older versions, and has no effect: list a token-producer.
	TokenizersPoolConfig map[string]any `yaml:"tokenizersPoolConfig"`
	// PrefixStoreConfig is of older versions, and has no effect.
	PrefixStoreConfig map[string]any `yaml:"prefixStoreConfig"`
}

// PreciseBlocks is about the memory of the index.
type PreciseBlocks struct {
	// InMemoryConfig bounds it.
	InMemoryConfig PreciseMemory `yaml:"inMemoryConfig"`
	// RedisConfig asks for an index outside the picker, and has no effect: each replica of the picker listens to all engines.
	RedisConfig map[string]any `yaml:"redisConfig"`
	// ValkeyConfig is the same for Valkey.
	ValkeyConfig map[string]any `yaml:"valkeyConfig"`
	// CostAwareMemoryConfig asks for another form of the index in memory, and has no effect.
	CostAwareMemoryConfig map[string]any `yaml:"costAwareMemoryConfig"`
	// EnableMetrics is accepted and has no effect: there are always metrics.
	EnableMetrics bool `yaml:"enableMetrics"`
	// MetricsLoggingInterval is accepted and has no effect: metrics are not logged.
	MetricsLoggingInterval any `yaml:"metricsLoggingInterval"`
}

// PreciseMemory bounds the memory of the index.
type PreciseMemory struct {
	// Size is the most blocks that are remembered, each counted for each endpoint that has it; a block takes 25 to 50 bytes. Further ones
	// are counted in tandem_prefix_events_skipped_total, with the reason full. Default 100000000.
	Size int64 `yaml:"size"`
	// PodCacheSize is how many endpoints llm-d remembers for a block. It has no effect: all are.
	PodCacheSize *int `yaml:"podCacheSize"`
}

// PreciseTier is the weight of blocks in a kind of memory.
type PreciseTier struct {
	// Name is the kind of memory, as in engines' events: gpu, cpu, disk or storage, or shared.
	Name string `yaml:"name"`
	// Weight is how much a block there counts for scores, 0..1, where one that the engine need not load counts 1. Weights of gpu have no
	// effect. Deciders go by the measured times in any case.
	Weight float64 `yaml:"weight"`
}

// PreciseEvents says where engines publish their KV events.
type PreciseEvents struct {
	// ZMQEndpoint is the address to which engines connect, such as tcp://*:5557. Default "": they do not connect to the picker.
	ZMQEndpoint string `yaml:"zmqEndpoint"`
	// TopicFilter is with what the topics of engines begin that connect to zmqEndpoint. Behind it an endpoint is named by its address or
	// its pod, up to an @. Topics of engines that the picker connects to do not count. Default kv@.
	TopicFilter string `yaml:"topicFilter"`
	// Concurrency is accepted and has no effect.
	Concurrency int `yaml:"concurrency"`
	// EngineType is accepted and has no effect: the events of all engines are read. Default "".
	EngineType string `yaml:"engineType"`
	// Tracing is accepted and has no effect.
	Tracing bool `yaml:"tracing"`
	// DiscoverPods has the picker connect to every endpoint. Default: true, unless there is a zmqEndpoint; llm-d then does both.
	DiscoverPods *bool `yaml:"discoverPods"`
	// PodDiscoveryConfig says where endpoints publish.
	PodDiscoveryConfig PrecisePods `yaml:"podDiscoveryConfig"`
}

// PrecisePods says where endpoints publish.
type PrecisePods struct {
	// SocketPort is the port at which engines publish. Of several endpoints of one pod each is a rank, and has the next port. Default 0: the
	// picker asks each engine, at /kv_event_sources or SGLang's /server_info, and takes 5557 if it does not tell. llm-d's default is 5557.
	SocketPort int `yaml:"socketPort"`
	// ReplaySocketPort is the port at which engines send earlier events again. Default 0: with a socketPort they do not, so lost messages make
	// the picker forget what an engine has.
	ReplaySocketPort int `yaml:"replaySocketPort"`
	// PodLabelSelector is accepted and has no effect: all endpoints of the pool are followed.
	PodLabelSelector string `yaml:"podLabelSelector"`
	// PodNamespace is accepted and has no effect.
	PodNamespace string `yaml:"podNamespace"`
	// DataParallelSize is accepted and has no effect.
	DataParallelSize int `yaml:"dataParallelSize"`
	// EngineType is accepted and has no effect.
	EngineType string `yaml:"engineType"`
}

const (
	preciseTTL    = 2 * time.Second
	preciseBlocks = 100_000_000
	// preciseIDs is the most token ids that are kept of one prompt: more than any model's context. They take 4 bytes each.
	preciseIDs = 1 << 20
)

// NewPrecisePrefixCache returns the parameters with their defaults.
func NewPrecisePrefixCache() epp.Plugin { return DefaultPrecisePrefixCache() }

// DefaultPrecisePrefixCache returns the parameters with their defaults.
func DefaultPrecisePrefixCache() *PrecisePrefixCache {
	p := &PrecisePrefixCache{SpeculativeIndexing: true, KVEventsConfig: PreciseEvents{TopicFilter: "kv@"}}
	p.IndexerConfig.KVBlockIndexConfig.InMemoryConfig.Size = preciseBlocks
	return p
}

// Correct implements epp.Corrector.
func (p *PrecisePrefixCache) Correct(warn epp.Report) {
	blocks, tokens := &p.IndexerConfig.KVBlockIndexConfig, &p.TokenProcessorConfig
	for _, w := range []struct {
		given       bool
		field, text string
	}{
		{tokens.HashSeed != "" && !tokens.computes(), "tokenProcessorConfig.hashSeed", "the token ids in events are compared, not the engines' hashes"},
		{tokens.HashAlgorithm != "" && !tokens.computes(), "tokenProcessorConfig.hashAlgorithm", "the token ids in events are compared, not the engines' hashes"},
		{p.IndexerConfig.TokenizersPoolConfig != nil, "indexerConfig.tokenizersPoolConfig", "list a token-producer, which finds the token ids of prompts"},
		{p.IndexerConfig.PrefixStoreConfig != nil, "indexerConfig.prefixStoreConfig", "list a token-producer, which finds the token ids of prompts"},
		{blocks.RedisConfig != nil, "indexerConfig.kvBlockIndexConfig.redisConfig", "the index is in the picker's memory, and each replica listens to all engines"},
		{blocks.ValkeyConfig != nil, "indexerConfig.kvBlockIndexConfig.valkeyConfig", "the index is in the picker's memory, and each replica listens to all engines"},
		{blocks.CostAwareMemoryConfig != nil, "indexerConfig.kvBlockIndexConfig.costAwareMemoryConfig", "inMemoryConfig.size bounds the index"},
		{blocks.InMemoryConfig.PodCacheSize != nil, "indexerConfig.kvBlockIndexConfig.inMemoryConfig.podCacheSize", "all endpoints that have a block are remembered"},
		{p.KVEventsConfig.PodDiscoveryConfig.PodLabelSelector != "", "kvEventsConfig.podDiscoveryConfig.podLabelSelector", "all endpoints of the pool are followed"},
		{p.KVEventsConfig.PodDiscoveryConfig.PodNamespace != "", "kvEventsConfig.podDiscoveryConfig.podNamespace", "all endpoints of the pool are followed"},
	} {
		if w.given {
			warn(w.field, "has no effect: %s", w.text)
		}
	}
	for i := range p.IndexerConfig.KVCacheBackendConfigs {
		tier, field := &p.IndexerConfig.KVCacheBackendConfigs[i], fmt.Sprintf("indexerConfig.kvCacheBackendConfigs[%d]", i)
		if _, known := kvfeed.TierOf(tier.Name); !known {
			warn(field+".name", "has no effect: %q is no kind of memory that engines tell of, such as cpu, disk or shared", tier.Name)
		}
		if !(tier.Weight >= 0 && tier.Weight <= 1) {
			warn(field+".weight", "is %v and must be from 0 to 1: 1 is taken", tier.Weight)
			tier.Weight = 1
		}
	}
}

// Problems implements epp.Plugin.
func (p *PrecisePrefixCache) Problems(report epp.Report) {
	tokens, pods := &p.TokenProcessorConfig, &p.KVEventsConfig.PodDiscoveryConfig
	param.AtLeast(report, "tokenProcessorConfig.blockSizeTokens", tokens.BlockSizeTokens, 0)
	param.AtLeast(report, "tokenProcessorConfig.blockSize", tokens.BlockSize, 0)
	if tokens.BlockSize > 0 && tokens.BlockSizeTokens > 0 && tokens.BlockSize != tokens.BlockSizeTokens {
		report("tokenProcessorConfig.blockSize", "is an older name of blockSizeTokens, which says %d: leave it out", tokens.BlockSizeTokens)
	}
	param.AtLeast(report, "indexerConfig.kvBlockIndexConfig.inMemoryConfig.size", p.IndexerConfig.KVBlockIndexConfig.InMemoryConfig.Size, 1)
	for _, port := range []struct {
		field string
		n     int
	}{{"socketPort", pods.SocketPort}, {"replaySocketPort", pods.ReplaySocketPort}} {
		if port.n < 0 || port.n > 65535 {
			report("kvEventsConfig.podDiscoveryConfig."+port.field, "must be a port from 1 to 65535, or 0, got %d", port.n)
		}
	}
	if tokens.computes() {
		if _, err := kvhash.Parse(tokens.HashAlgorithm, tokens.HashSeed); err != nil {
			report("tokenProcessorConfig.hashAlgorithm", "%v", err)
		}
	}
	if pods.SocketPort == 0 && pods.ReplaySocketPort > 0 {
		report("kvEventsConfig.podDiscoveryConfig.replaySocketPort", "is of no use without socketPort: engines that are asked where they publish name both")
	}
	if _, err := listens(p.KVEventsConfig.ZMQEndpoint); err != nil {
		report("kvEventsConfig.zmqEndpoint", "%v", err)
	}
	if p.KVEventsConfig.ZMQEndpoint == "" && !p.KVEventsConfig.dials() {
		report("kvEventsConfig.discoverPods", "is false, and there is no zmqEndpoint, so no engine would be heard")
	}
	if ttl, err := p.ttl(); err != nil || ttl <= 0 {
		report("speculativeTTL", "must be a positive duration such as 2s, got %q", p.SpeculativeTTL)
	}
}

// computes reports whether the engines' hashes are computed. llm-d has algorithms of its own, which are those of no engine.
func (t *PreciseTokens) computes() bool {
	return t.HashAlgorithm != "" && t.HashAlgorithm != "cbor-fnv" && t.HashAlgorithm != "xxh64"
}

func (p *PrecisePrefixCache) ttl() (time.Duration, error) {
	if p.SpeculativeTTL == "" {
		return preciseTTL, nil
	}
	return time.ParseDuration(p.SpeculativeTTL)
}

// dials reports whether the picker connects to engines.
func (e *PreciseEvents) dials() bool {
	if e.DiscoverPods != nil {
		return *e.DiscoverPods
	}
	return e.ZMQEndpoint == ""
}

// listens returns the host:port of an address such as tcp://*:5557, "" for none.
func listens(endpoint string) (string, error) {
	if endpoint == "" {
		return "", nil
	}
	u, err := url.Parse(strings.Replace(endpoint, "//*", "//0.0.0.0", 1))
	if err != nil || u.Scheme != "tcp" || u.Path != "" {
		return "", fmt.Errorf("must be an address to which engines connect, such as tcp://*:5557, got %q", endpoint)
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || port == 0 {
		return "", fmt.Errorf("must end with a port, as in tcp://*:5557, got %q", endpoint)
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err != nil {
		return "", fmt.Errorf("must name an address of the picker, or *, to which engines connect, got %q; to connect to engines, leave it out", endpoint)
	} else if ip.IsUnspecified() {
		return ":" + u.Port(), nil // of all addresses, IPv6 too
	}
	return u.Host, nil
}

// Build implements epp.Plugin.
func (p *PrecisePrefixCache) Build(b *epp.Builder) (any, error) {
	m, err := p.Matcher(b)
	if err != nil {
		return nil, err
	}
	m.Self = m
	return m, nil
}

// Matcher returns the matcher, whose Self is still to be set.
func (p *PrecisePrefixCache) Matcher(b *epp.Builder) (*PreciseMatcher, error) {
	ttl, err := p.ttl()
	if err != nil {
		return nil, err
	}
	listen, err := listens(p.KVEventsConfig.ZMQEndpoint)
	if err != nil {
		return nil, err
	}
	options := kvfeed.Options{Port: p.KVEventsConfig.PodDiscoveryConfig.SocketPort, ReplayPort: p.KVEventsConfig.PodDiscoveryConfig.ReplaySocketPort,
		Listen: listen, Dial: p.KVEventsConfig.dials(), Topic: p.KVEventsConfig.TopicFilter,
		Limit:       p.IndexerConfig.KVBlockIndexConfig.InMemoryConfig.Size,
		BlockTokens: cmp.Or(p.TokenProcessorConfig.BlockSizeTokens, p.TokenProcessorConfig.BlockSize)}
	if tokens := &p.TokenProcessorConfig; tokens.computes() {
		if options.Names, err = kvhash.Parse(tokens.HashAlgorithm, tokens.HashSeed); err != nil {
			return nil, err
		}
	}
	if p.SpeculativeIndexing {
		options.Presume = ttl
	}
	if b.Keep.Offline {
		options.Listen, options.Dial = "", false
	}
	key := fmt.Sprintf("KV events as %+v, of plugin %s", options, b.Name)
	feed := epp.Kept(b.Keep, key, func() *kvfeed.Feed { return kvfeed.New(options, b.Clock(), b.Log) })
	m := &PreciseMatcher{Feed: feed, name: b.Name, model: latency.Of(b)}
	for _, c := range p.IndexerConfig.KVCacheBackendConfigs {
		if tier, known := kvfeed.TierOf(c.Name); known {
			m.weights[tier] = &c.Weight
		}
	}
	return m, nil
}

// PreciseMatcher is an epp.Knower that goes by what engines tell.
type PreciseMatcher struct {
	*kvfeed.Feed
	// Self is the matcher that the scheduler calls: the instance of the plugin.
	Self    epp.Matcher
	name    string
	model   *latency.Model
	weights [epp.Tiers]*float64 // as configured; nil = what is measured
}

// Close implements nothing: the feed outlives the configuration, and is closed by epp.Keep. It hides the feed's own.
func (m *PreciseMatcher) Close() error { return nil }

// Events returns what follows the engines.
func (m *PreciseMatcher) Events() (name string, feed *kvfeed.Feed) { return m.name, m.Feed }

// Collect implements prometheus.Collector.
func (m *PreciseMatcher) Collect(ch chan<- prometheus.Metric) { m.CollectAs(m.name, ch) }

// Describe implements prometheus.Collector.
func (m *PreciseMatcher) Describe(chan<- *prometheus.Desc) {}

// Needs implements epp.Matcher.
func (m *PreciseMatcher) Needs() epp.PromptSpec { return epp.PromptSpec{IDs: preciseIDs} }

// Value implements epp.Valuer.
func (m *PreciseMatcher) Value(c *epp.Candidate, cached int, loads epp.Loads) epp.Saving {
	saving := m.model.Value(c, cached, loads)
	slow := loads.Sum()
	if slow == 0 {
		return saving
	}
	measured := max(0, saving.Tokens-float64(cached-slow)) / float64(slow)
	saving.Tokens = float64(cached - slow)
	for t := epp.CPUTier; t < epp.Tiers; t++ {
		weight := measured
		if m.weights[t] != nil {
			weight = *m.weights[t]
		}
		saving.Tokens += weight * float64(loads.In(t))
	}
	return saving
}

// Learn implements epp.Matcher.
func (m *PreciseMatcher) Learn(r *epp.Request, p *epp.Prompt, e *epp.Endpoint, _ *epp.Load) {
	m.Presume(r, p, e)
}

// Picked implements epp.PickObserver: it notes how much of the prompt is expected to be cached where it is computed.
func (m *PreciseMatcher) Picked(r *epp.Round, all []epp.Candidate, d *epp.Decision) {
	computes := -1
	for i := range d.Picks {
		if d.Picks[i].Row.Computes {
			computes = i
		}
	}
	if computes < 0 {
		return
	}
	found := r.Found(m.Self)
	for i := range all {
		if all[i].Endpoint == d.Picks[computes].Endpoints[0] {
			m.Feed.Picked(r.Request, d, found.Of(&all[i]))
			return
		}
	}
}
