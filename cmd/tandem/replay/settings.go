package replay

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/workload"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/replay"
	"github.com/tandem-serving/tandem/replay/engine"
)

// settings are the flags.
type settings struct {
	Picker  pickerFlags  `group:"Picker"`
	Pool    poolFlags    `group:"Pool"`
	Scaling scalingFlags `group:"Scaling"`
	Network networkFlags `group:"Network"`
	Load    loadFlags    `group:"Load"`
	Why     whyFlags     `group:"Why"`
	Output  outputFlags  `group:"Output"`
	Fit     fitFlags     `group:"Fit"`

	differ poolFile // that --pool-file names

	_ struct{} `flag:"check" refused:"tandem check checks a configuration"`
}

type pickerFlags struct {
	Configs    []string      `flag:"config" arg:"FILE[,…]" help:"EndpointPickerConfigs to compare; may be repeated. Default: that of a capture, else the built-in one"`
	Thresholds []int         `flag:"threshold" arg:"TOKENS[,…]" help:"nonCachedTokens of each configuration's prefix-based-pd-decider, in place of its own; 0: never remote. Several thresholds are compared"`
	Replicas   []int         `flag:"replicas" arg:"NUMBER[,…]" help:"pickers that get the requests in turn, as replicas. Several numbers are compared. Default: those of a capture, else 1"`
	Sync       time.Duration `flag:"replica-sync" arg:"DURATION" help:"as crossReplica.syncInterval of a configuration: how often replicas tell each other their load in flight and their prompts. 0: each knows only of its own requests"`
	Scrape     time.Duration `flag:"refresh-metrics-interval" arg:"DURATION" help:"as of the picker: time between two readings of a busy engine's metrics"`
	Events     time.Duration `flag:"event-delay" arg:"DURATION" help:"from a change of an engine's prefix cache until pickers that listen to KV events know of it"`
	Stale      time.Duration `flag:"metrics-staleness-threshold" arg:"DURATION" help:"as of the picker: age from which loads are trusted less"`
	Seed       int           `flag:"seed" arg:"NUMBER" help:"of all random numbers: the same seed gives the same output, byte by byte"`
}

type poolFlags struct {
	Pools       []replay.Pool `flag:"pool" arg:"POOL[,…]" help:"engines of each role, such as 4P+12D: P prefills, D decodes, B does both. Several pools are compared. Default: that of a capture, else 4P+12D"`
	File        string        `flag:"pool-file" arg:"FILE" help:"more about the pools (YAML): zones, links with another bandwidth or latency, or that lose or delay transfers, engines of several kinds with what they cost, and what LoRA adapters cost; replay.md has the members"`
	Engines     []string      `flag:"engine" arg:"NAME|FILE[,…]" help:"step times: one of the built-in tables, or a CSV file (kind,new_tokens,batch,context,ms). Several engines are compared"`
	Scheduler   string        `flag:"scheduler" arg:"vllm|sglang" help:"whose defaults and order of steps the engines have. Default: what the file of --engine says, or vllm"`
	KVTokens    int           `flag:"kv-tokens" arg:"TOKENS" help:"size of an engine's KV cache. Default: that of the built-in engine, or what the file says"`
	KVBytes     int           `flag:"kv-bytes-per-token" arg:"BYTES" help:"of the KV cache. Default: that of the built-in engine, or what the file says"`
	HostTokens  int           `flag:"host-tokens" arg:"TOKENS" help:"size of the host's memory of an engine, to which its prefix cache is copied and from which it loads what has been dropped there (vLLM: OffloadingConnector, SGLang: HiCache). Default: none"`
	HostSpeed   float64       `flag:"host-bandwidth" arg:"GB/S" help:"at which an engine loads from the host's memory, in gigabytes a second"`
	GPUs        int           `flag:"gpus" arg:"NUMBER" help:"of one engine. Default: those of the built-in engine; 1 for a file"`
	BlockTokens int           `flag:"block-size" arg:"TOKENS" help:"tokens of a block of the KV cache. Default: what the file says, or the scheduler's"`
	StepTokens  int           `flag:"max-num-batched-tokens" arg:"TOKENS" help:"most tokens of a step. Default: what the file says, or the scheduler's"`
	Sequences   int           `flag:"max-num-seqs" arg:"NUMBER" help:"most requests that run in an engine. Default: what the file says, or the scheduler's"`
	Overhead    time.Duration `flag:"step-overhead" arg:"DURATION" help:"of every step, besides the kernels' time. A table that was made by --fit has it already"`
	Factor      float64       `flag:"step-factor" arg:"FACTOR" help:"by which the table's step times are multiplied: 1.4 for engines that are slower than those that were measured, or share their processors with other programs"`
	Arrival     int           `flag:"arrival-steps" arg:"NUMBER" help:"steps of a busy decode engine that end before it runs a request whose KV cache has arrived: engines look for arrivals between steps, and have scheduled the next one already"`
	Request     time.Duration `flag:"request-overhead" arg:"DURATION" help:"of every request at an engine, besides its steps: HTTP, tokenizer. Default: what the file says, or none"`
}

type networkFlags struct {
	Bandwidth float64       `flag:"bandwidth" arg:"GB/S" help:"of each engine's port, in gigabytes a second"`
	Latency   time.Duration `flag:"transfer-latency" arg:"DURATION" help:"of every KV transfer, besides its bytes"`
	Handshake time.Duration `flag:"handshake" arg:"DURATION" help:"of the first transfer between two engines; Tandem's sidecar makes connections before"`
	First     time.Duration `flag:"first-event-timeout" arg:"DURATION" help:"as of the sidecar: longest wait for the first token of a remote request, from the decode leg on; 0: no bound"`
	Hop       time.Duration `flag:"hop" arg:"DURATION" help:"from the pick to the engine, and from the prefill leg to the decode leg"`
}

type loadFlags struct {
	Speeds      []float64        `flag:"speed" arg:"FACTOR[,…]" help:"2: requests come, and users think, twice as fast. Several speeds are compared"`
	Days        []int            `flag:"week-days" arg:"DAY[,…]" help:"of --arrivals=week and office: the days that are replayed, from 1, one after the other. Default: all seven"`
	Requests    int              `flag:"requests" arg:"NUMBER" help:"use only the first ones. Default: all of a trace, those of a shape, 1000 without either"`
	Strict      bool             `flag:"strict" help:"end if a line of the trace cannot be used; otherwise it is named and left out"`
	Sessions    bool             `flag:"sessions" help:"have the turns of a session, where the trace names sessions, wait for the answer before, and then as long as in the trace"`
	Shape       string           `flag:"shape" arg:"NAME" help:"synthetic load of a well-known kind instead of a trace, such as chat or b2b-saas; replay.md lists them"`
	Rate        workload.Rates   `flag:"rate" arg:"NUMBER|FROM-TO" help:"sessions that begin in a second, instead of the arrivals of the trace or the shape; FROM-TO changes evenly. Default without either: 4"`
	Arrivals    string           `flag:"arrivals" enum:"poisson,constant,week,office" help:"how they are spaced. week: --rate is the mean of a week with a daily pattern, a quiet weekend, bursts and a flash crowd; office: likewise with ten times the requests from nine to five of working days; lengths of a trace are drawn at random, and nothing is shared. Default: as the shape has them, or poisson"`
	MaxInput    int              `flag:"max-input-tokens" arg:"TOKENS" help:"leave out the requests of a trace with longer prompts; 0: none"`
	Concurrency []int            `flag:"concurrency" arg:"NUMBER[,…]" help:"so many sessions run at a time, and when one ends the next begins. Several numbers are compared"`
	Classes     string           `flag:"classes" arg:"FILE" help:"classes of requests (YAML): shares, priorities, fairness ids, LoRA adapters, objectives"`
	Input       workload.Lengths `flag:"input-tokens" arg:"TOKENS" help:"without a trace and a shape: length of prompts, or a range of equally likely lengths: 256-1024. Default: 4096"`
	Output      workload.Lengths `flag:"output-tokens" arg:"TOKENS" help:"length of answers, likewise. Default: 256"`
}

type whyFlags struct {
	Explain int  `flag:"explain" arg:"NUMBER" help:"print why this request of the trace, from 1, went where it went, and what was done there step by step"`
	Regret  bool `flag:"regret" help:"instead of one load: nine workloads (or the TRACE, or --shape) on three engines and three pools (or --engine, --pool) at 50 to 110 % of their capacity, and how far each policy and each --config is behind the best one"`
	Oracle  bool `flag:"oracle" help:"with --regret: also an oracle, which knows how long answers will be and the state of every engine, and tries each choice for each request. A cell takes it minutes"`
	Elastic bool `flag:"elastic" help:"instead of one load: days of a week, with a flash crowd, on two engines, and how well and how cheaply each autoscaler serves them; --week-days, --config, --engine, --attainment and the times that engines take to serve may be given"`
	Compare bool `flag:"compare" help:"of each configuration and threshold against the first one: the first pick that differs, the requests that lost and gained most, and what gain the first one predicts with it as its shadow"`
}

// possible returns why the flags ask for what the runs cannot tell; nil if they can.
func (f *whyFlags) possible(runs []*run) error {
	if n := len(runs[0].requests.Requests); f.Explain > n {
		return fmt.Errorf("--explain=%d: there are only %d requests", f.Explain, n)
	}
	same := func(r *run) bool {
		return r.pool == runs[0].pool && r.engine == runs[0].engine && r.replicas == runs[0].replicas && r.requests == runs[0].requests
	}
	if f.Compare && !slices.ContainsFunc(runs[1:], same) {
		return errors.New("--compare needs two configurations or two thresholds")
	}
	return nil
}

type outputFlags struct {
	JSON       bool          `flag:"json" help:"print JSON instead of the table"`
	Page       string        `flag:"page" arg:"FILE" help:"write an HTML page with plots"`
	PerRequest string        `flag:"per-request" arg:"FILE" help:"write what became of every request of every run, as JSON lines"`
	TTFT       time.Duration `flag:"slo-ttft" arg:"DURATION" help:"goodput counts requests whose first token came within this time; 0: any"`
	TPOT       time.Duration `flag:"slo-tpot" arg:"DURATION" help:"and whose further tokens came within this time each, on average; 0: any"`
}

type fitFlags struct {
	URL     string        `flag:"fit" arg:"URL" help:"instead of a replay: measure the steps of this engine (vLLM, SGLang), which serves nothing else meanwhile, and print a table for --engine"`
	For     time.Duration `flag:"fit-for" arg:"DURATION" help:"how long. Each step is measured once, however long that takes, and then again"`
	Model   string        `flag:"fit-model" arg:"NAME" help:"model to ask for. Default: the first one that the engine lists"`
	Key     string        `flag:"fit-api-key-file" arg:"FILE" help:"file with the engine's API key, which is sent as a bearer token"`
	Timeout time.Duration `flag:"fit-timeout" arg:"DURATION" help:"longest time of one answer"`
}

func defaults() settings {
	return settings{
		Picker:  pickerFlags{Scrape: 200 * time.Millisecond, Events: 5 * time.Millisecond, Stale: 2 * time.Second, Seed: 1},
		Pool:    poolFlags{Engines: []string{"llama-70b-h100-tp4"}, Overhead: 2 * time.Millisecond, Factor: 1, HostSpeed: 50},
		Scaling: scalingFlags{Prefill: limits{1, 16}, Decode: limits{1, 16}, PrefillReady: 2 * time.Minute, DecodeReady: 2 * time.Minute, PrefillQueue: 1, DecodeQueue: 1, PrefillKV: 0.5, DecodeKV: 0.7, Share: 0.99},
		Network: networkFlags{Bandwidth: 50, Latency: time.Millisecond, First: 30 * time.Second, Hop: time.Millisecond},
		Load:    loadFlags{Speeds: []float64{1}},
		Output:  outputFlags{TTFT: 3 * time.Second, TPOT: 50 * time.Millisecond},
		Fit:     fitFlags{For: 3 * time.Minute, Timeout: time.Minute},
	}
}

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	for _, tokens := range s.Picker.Thresholds {
		p.Require(tokens >= 0, "threshold", "must not be negative")
	}
	for _, n := range s.Picker.Replicas {
		p.Require(n > 0 && n <= maxReplicas, "replicas", "must be a number from 1 to %d", maxReplicas)
	}
	p.Require(s.Picker.Sync >= 0, "replica-sync", "must not be negative")
	p.Require(s.Picker.Scrape > 0, "refresh-metrics-interval", "must be positive")
	p.Require(s.Picker.Events >= 0, "event-delay", "must not be negative")
	p.Require(s.Picker.Stale > 0, "metrics-staleness-threshold", "must be positive")
	p.Require(len(s.Pool.Engines) > 0, "engine", "must name an engine")
	p.Require(slices.Contains([]string{"", "vllm", "sglang"}, s.Pool.Scheduler), "scheduler", "%q is not one of vllm, sglang", s.Pool.Scheduler)
	p.Require(s.Pool.KVTokens >= 0, "kv-tokens", "must not be negative")
	p.Require(s.Pool.KVBytes >= 0, "kv-bytes-per-token", "must not be negative")
	p.Require(s.Pool.HostTokens >= 0, "host-tokens", "must not be negative")
	p.Require(s.Pool.HostSpeed > 0, "host-bandwidth", "must be positive")
	p.Require(s.Pool.GPUs >= 0, "gpus", "must not be negative")
	p.Require(s.Pool.BlockTokens >= 0, "block-size", "must not be negative")
	p.Require(s.Pool.StepTokens >= 0, "max-num-batched-tokens", "must not be negative")
	p.Require(s.Pool.Sequences >= 0, "max-num-seqs", "must not be negative")
	p.Require(s.Pool.Overhead >= 0, "step-overhead", "must not be negative")
	p.Require(s.Pool.Factor >= 0.01 && s.Pool.Factor <= 100, "step-factor", "must be a number from 0.01 to 100")
	p.Require(s.Pool.Arrival >= 0, "arrival-steps", "must not be negative")
	p.Require(s.Pool.Request >= 0, "request-overhead", "must not be negative")
	p.Require(s.Network.Bandwidth > 0, "bandwidth", "must be positive")
	p.Require(s.Network.Latency >= 0, "transfer-latency", "must not be negative")
	p.Require(s.Network.Handshake >= 0, "handshake", "must not be negative")
	p.Require(s.Network.First >= 0, "first-event-timeout", "must not be negative")
	p.Require(s.Network.Hop >= 0, "hop", "must not be negative")
	p.Require(len(s.Load.Speeds) > 0, "speed", "must name a factor")
	for _, speed := range s.Load.Speeds {
		p.Require(speed > 0, "speed", "must be positive")
	}
	p.Require(s.Load.Requests >= 0, "requests", "must not be negative")
	p.Require(s.Load.MaxInput >= 0, "max-input-tokens", "must not be negative")
	for _, day := range s.Load.Days {
		p.Require(day >= 1 && day <= 7, "week-days", "must be from 1 to 7, got %d", day)
	}
	p.Require(!s.Load.weekly() || s.Load.Rate.First > 0 && s.Load.Rate.First == s.Load.Rate.Last, "arrivals", "%s needs the mean of a week as --rate, such as --rate=1", s.Load.Arrivals)
	for _, n := range s.Load.Concurrency {
		p.Require(n > 0, "concurrency", "must be positive")
	}
	p.Require(len(s.Load.Concurrency) == 0 || s.Load.Rate == workload.Rates{}, "rate", "cannot be combined with --concurrency")
	_, ok := workload.ShapeOf(s.Load.Shape)
	p.Require(ok || s.Load.Shape == "", "shape", "must be one of %s", shapeNames())
	p.Require(s.Why.Explain >= 0, "explain", "must not be negative")
	p.Require(!s.Why.Oracle || s.Why.Regret, "oracle", "needs --regret")
	p.Require(s.Output.TTFT >= 0, "slo-ttft", "must not be negative")
	p.Require(s.Output.TPOT >= 0, "slo-tpot", "must not be negative")
	s.Scaling.validate(p)
	s.Fit.validate(p)
}

// maxReplicas bounds the pickers of a run: each has an index of prefixes.
const maxReplicas = 64

// shapeNames lists the shapes.
func shapeNames() string {
	var all []string
	for _, shape := range workload.Shapes() {
		all = append(all, shape.Name)
	}
	return strings.Join(all, ", ")
}

// named is a configuration with what tables show of it.
type named struct {
	name      string
	threshold *int // that it got by --threshold; nil: its own
	config    *config.Config
}

// configs reads the configurations, each once for every threshold.
func (f *pickerFlags) configs(from *source, warnings io.Writer) (all []named, err error) {
	files := f.Configs
	if len(files) == 0 {
		files = []string{""}
	}
	swept := false
	for _, file := range files {
		name, data := from.config()
		if file != "" {
			name = file
			if data, err = epp.ReadFile(file, config.MaxSize); err != nil {
				return nil, err
			}
		}
		c, err := config.Parse(data, plugin.Table)
		if err != nil {
			return nil, fmt.Errorf("%s cannot be used:\n%w", name, err)
		}
		if len(f.Thresholds) > 0 && !slices.Contains(c.Types(), decider) {
			fmt.Fprintf(warnings, "warning: %s has no %s: it runs as it is\n", name, decider)
		}
		if len(f.Thresholds) == 0 || !slices.Contains(c.Types(), decider) {
			all = append(all, named{name, nil, c})
			continue
		}
		swept = true
		for _, tokens := range f.Thresholds {
			changed, err := withThreshold(c, tokens)
			if err != nil {
				return nil, fmt.Errorf("%s with a threshold of %d cannot be used:\n%w", name, tokens, err)
			}
			all = append(all, named{name, &tokens, changed})
		}
	}
	if len(f.Thresholds) > 0 && !swept {
		return nil, fmt.Errorf("--threshold has nothing to change: no configuration has a %s", decider)
	}
	return all, nil
}

// decider is the type of the plugin that --threshold changes.
const decider = "prefix-based-pd-decider"

// withThreshold returns a configuration in which every prefix-based decider has another threshold.
func withThreshold(c *config.Config, tokens int) (*config.Config, error) {
	return changed(c, func(all map[string]any) {
		plugins, _ := all["plugins"].([]any)
		for _, one := range plugins {
			if p, _ := one.(map[string]any); p["type"] == decider {
				parameters, _ := p["parameters"].(map[string]any)
				if parameters == nil {
					parameters = map[string]any{}
					p["parameters"] = parameters
				}
				parameters["nonCachedTokens"] = tokens
			}
		}
	})
}

// changed returns a configuration with changes. They are made to the effective configuration, because a plugin may have been added to the file.
func changed(c *config.Config, change func(all map[string]any)) (*config.Config, error) {
	var all map[string]any
	if err := yaml.Unmarshal(c.YAML(), &all); err != nil {
		return nil, err
	}
	change(all)
	data, err := yaml.Marshal(all)
	if err != nil {
		return nil, err
	}
	return config.Parse(data, plugin.Table)
}

// model is a kind of engine.
type model struct {
	name     string
	table    *engine.Table
	hardware engine.Hardware
	config   engine.Config
	request  time.Duration // of a request, besides its steps
}

// model returns an engine by the name of a built-in table, or of a file. Flags have precedence over what a file says.
func (f *poolFlags) model(name string) (m model, err error) {
	said := engine.Settings{}
	m.name = name
	if strings.ContainsAny(name, "./") {
		m.name, m.hardware = strings.TrimSuffix(filepath.Base(name), ".csv"), engine.Hardware{GPUs: 1}
		m.table, said, err = readTable(name)
	} else {
		m.table, m.hardware, err = engine.Preset(name)
	}
	if err != nil {
		return model{}, err
	}
	m.config = engine.VLLM()
	if cmp.Or(f.Scheduler, said.Scheduler) == "sglang" {
		m.config = engine.SGLang()
	}
	for _, one := range []struct{ given, said, to *int }{
		{&f.KVTokens, &said.KVTokens, &m.hardware.KVTokens}, {&f.KVBytes, &said.KVBytes, &m.hardware.KVBytes}, {&f.GPUs, new(int), &m.hardware.GPUs},
		{&f.BlockTokens, &said.BlockTokens, &m.config.BlockTokens}, {&f.StepTokens, &said.StepTokens, &m.config.StepTokens},
		{&f.Sequences, &said.Sequences, &m.config.Sequences},
	} {
		*one.to = cmp.Or(*one.given, *one.said, *one.to)
	}
	if m.hardware.KVTokens == 0 || m.hardware.KVBytes == 0 {
		return model{}, fmt.Errorf("%s does not say how large a KV cache is: --kv-tokens and --kv-bytes-per-token must", name)
	}
	m.config.ArrivalSteps, m.config.Factor = f.Arrival, f.Factor
	if f.HostTokens > 0 {
		m.config.HostTokens, m.config.HostLoad = f.HostTokens, time.Duration(float64(m.hardware.KVBytes)/f.HostSpeed) // bytes by bytes in a nanosecond
	}
	m.config.KVTokens, m.config.Overhead, m.request = m.hardware.KVTokens, f.Overhead, f.Request
	if said.Request != nil { // times of steps, and not of kernels alone
		m.config.Overhead, m.request = 0, cmp.Or(f.Request, *said.Request)
	}
	return m, nil
}

// readTable reads a file with a table of step times.
func readTable(name string) (*engine.Table, engine.Settings, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, engine.Settings{}, err
	}
	defer file.Close()
	t, said, err := engine.ReadTable(file)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return t, said, err
}
