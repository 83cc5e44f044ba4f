// Command sim runs one simulated engine. Package sim describes it and how it differs from a real one.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/server"
)

func main() { boot.Main(run) }

var program = boot.Program{Summary: "sim is a simulated engine of vLLM, SGLang or TensorRT-LLM that really moves KV bytes, for tests and trials.",
	Notes: map[string][]string{"Faults": fault.Usage()}}

// flags is the command line; its defaults are the engine's own.
type flags struct {
	Engine   string        `flag:"engine" enum:"vllm,sglang,trtllm" help:"which engine it simulates"`
	Listen   listenFlags   `group:"Ports"`
	Model    modelFlags    `group:"Model"`
	Schedule scheduleFlags `group:"vLLM: scheduling"`
	KV       kvFlags       `group:"vLLM: KV cache and hand-off"`
	Encoding encodingFlags `group:"vLLM: encodings of images"`
	SGLang   sglangFlags   `group:"SGLang, with --engine sglang"`
	Times    timesFlags    `group:"SGLang: times, which it has environment variables for"`
	TRTLLM   trtllmFlags   `group:"TensorRT-LLM, with --engine trtllm"`
	Transfer transferFlags `group:"Transfer"`
	Log      boot.Log      `group:"Logging"`
}

type listenFlags struct {
	Host      string        `flag:"host" help:"address that all ports listen on; there is no authentication"`
	Port      int           `flag:"port" help:"data port; 0 picks a free one"`
	AdminPort int           `flag:"admin-port" help:"port of /sim/faults and /sim/state; 0 picks a free one"`
	Channel   string        `flag:"side-channel-address" arg:"HOST:PORT" help:"address of the metadata that other engines need to read KV; named in hand-offs. Default: a free port of --host"`
	KeepAlive time.Duration `flag:"keep-alive" help:"how long an idle client connection stays open"`
	ScaleOut  bool          `flag:"enable-scale-out" help:"serve /inference/v1/generate"`
}

type modelFlags struct {
	Model       string  `flag:"model" help:"built-in model: sizes and speeds"`
	ModelFile   string  `flag:"model-file" arg:"FILE" help:"model file (YAML or JSON) instead of --model"`
	ServedName  string  `flag:"served-model-name" arg:"NAME" help:"name of the model in requests. Default: its own name"`
	MaxModelLen int     `flag:"max-model-len" arg:"TOKENS" help:"longest prompt plus answer; 0: the model's"`
	TimeScale   float64 `flag:"time-scale" arg:"FACTOR" help:"stretches every modelled time; 1 is the model's speed, 0 does not wait"`
}

type scheduleFlags struct {
	MaxBatchedTokens int `flag:"max-num-batched-tokens" arg:"TOKENS" help:"tokens per step"`
	MaxSequences     int `flag:"max-num-seqs" help:"sequences that run concurrently"`
	MaxQueued        int `flag:"max-num-queued-reqs" help:"number of waiting and running requests from which new ones get 503; 0: no limit"`
}

type kvFlags struct {
	Role        string        `flag:"role" enum:"prefill,decode,both" help:"role that its log messages have; like a real engine, it serves both legs in any role, but for --moriio, whose engines have one"`
	Blocks      int           `flag:"blocks" help:"blocks in the pool, one of them never used; 0: 512, or what the longest request needs"`
	HostBlocks  int           `flag:"host-blocks" help:"blocks in the memory of the host, to which cached blocks are copied, as with vLLM's OffloadingConnector; 0: none are"`
	BlockSize   int           `flag:"block-size" arg:"TOKENS" help:"tokens per block; the same on all engines of a pair"`
	Lease       time.Duration `flag:"kv-lease" help:"how long KV stays pinned after prefill without a heartbeat or a pull; not scaled"`
	Handshake   time.Duration `flag:"handshake-time" help:"duration of the first hand-off from each prefill engine; 0: the model's, scaled"`
	LoadFailure string        `flag:"kv-load-failure-policy" enum:"fail,recompute" help:"what decode does if KV cannot be read"`
	Events      string        `flag:"kv-events-address" arg:"HOST:PORT" help:"PUB socket for what enters and leaves the prefix cache, as vLLM publishes it. Default: none"`
	Replay      string        `flag:"kv-events-replay-address" arg:"HOST:PORT" help:"ROUTER socket that sends the last 10,000 messages of --kv-events-address again. Default: none"`
	Topic       string        `flag:"kv-events-topic" arg:"TEXT" help:"topic of the messages of --kv-events-address"`
	Back        bool          `flag:"bidirectional" help:"prefill reads from decode what that has of a prompt, if its leg says so, as with vLLM's bidirectional_kv_xfer"`
	Push        bool          `flag:"push" help:"prefill writes KV into blocks that decode has named to it, as with vLLM's NixlPushConnector; the same on all engines of a pair"`
	MoRIIO      string        `flag:"moriio" arg:"MODE" help:"hand KV over as vLLM's MoRIIOConnector does: write (prefill writes) or read (decode reads); the same on all engines of a pair, of which each has a --role of its own. Empty: not"`
	Notify      string        `flag:"moriio-notify-address" arg:"HOST:PORT" help:"notify port of --moriio. Default: a free port on --host"`
	NoCached    bool          `flag:"no-prefill-cached-tokens" help:"behave like an older engine, whose hand-offs lack remote_prefill_cached_tokens"`
}

type encodingFlags struct {
	Role  string `flag:"ec-role" arg:"ROLE" help:"ec_producer: an encoder, which encodes and generates nothing; ec_consumer: reads encodings. Empty: encodes for itself"`
	Store string `flag:"ec-store" arg:"DIR" help:"folder of the encodings that --ec-role writes or reads"`
}

func defaults() flags {
	return flags{
		Engine:   vllm,
		Listen:   listenFlags{Host: "127.0.0.1", Port: 8000, KeepAlive: 5 * time.Second},
		Model:    modelFlags{Model: "tiny", TimeScale: 1},
		Schedule: scheduleFlags{MaxBatchedTokens: 2048, MaxSequences: 256},
		KV:       kvFlags{Role: "both", BlockSize: 32, Lease: 30 * time.Second, LoadFailure: string(sim.FailLoad)},
		SGLang:   sglangDefaults(),
		Times:    timesDefaults(),
		TRTLLM:   trtllmDefaults(),
		Transfer: transferFlags{Transport: overTCP},
	}
}

// The values of --engine.
const (
	vllm     = "vllm"
	sglangID = "sglang"
	trtllmID = "trtllm"
)

// Validate implements boot.Validator.
func (f *flags) Validate(p *boot.Problems) {
	p.RequirePort("port", f.Listen.Port)
	p.RequirePort("admin-port", f.Listen.AdminPort)
	p.Require(f.KV.MoRIIO == "" || f.KV.Role != "both", "role", "must be prefill or decode with --moriio: engines of MoRIIOConnector have one")
	if f.KV.Lease <= 0 { // the engine would use its default for 0
		p.Add("kv-lease", "%v is too short: want more than 0", f.KV.Lease)
	}
	if f.Listen.Channel != "" {
		p.RequireAddress("side-channel-address", f.Listen.Channel)
	}
	p.Require(f.Transfer.Library == "" || f.Transfer.Transport == overNIXL,
		"nixl-library", "has no effect with --transport %s: leave it out", f.Transfer.Transport)
	p.Require(f.SGLang.Ranks == 1 || f.Engine == sglangID, "dp-size", "has no effect with --engine %s: leave it out", f.Engine)
	p.Require(f.KV.HostBlocks == 0 || f.Engine == vllm, "host-blocks", "has no effect with --engine %s: leave it out", f.Engine)
	if f.KV.Events != "" {
		p.RequireAddress("kv-events-address", f.KV.Events)
		p.Require(f.Engine == vllm, "kv-events-address", "has no effect with --engine %s: leave it out", f.Engine)
	}
	if f.KV.Replay != "" {
		p.RequireAddress("kv-events-replay-address", f.KV.Replay)
		p.Require(f.KV.Events != "", "kv-events-replay-address", "has no effect without --kv-events-address")
	}
	if _, err := f.Model.load(); err != nil {
		p.Add(f.Model.flag(), "%w", err)
		return
	}
	switch f.Engine {
	case sglangID:
		f.sglangConfig().Problems(p.Add)
		return
	case trtllmID:
		p.Require(f.TRTLLM.Transfer > 0, "kv-transfer-timeout", "%v is too short: want more than 0", f.TRTLLM.Transfer)
		f.trtllmConfig().Problems(p.Add)
		return
	}
	f.config().Problems(p.Add)
}

func run(ctx context.Context, std boot.IO, args []string) error {
	f := defaults()
	if _, err := program.Load(std, &f, args); err != nil {
		return err
	}
	data, err := boot.Listen(ctx, "port", net.JoinHostPort(f.Listen.Host, strconv.Itoa(f.Listen.Port)))
	if err != nil {
		return err
	}
	admin, err := boot.Listen(ctx, "admin-port", net.JoinHostPort(f.Listen.Host, strconv.Itoa(f.Listen.AdminPort)))
	if err != nil {
		return errors.Join(err, data.Close())
	}
	switch f.Engine {
	case sglangID:
		return f.runSGLang(ctx, std, data, admin)
	case trtllmID:
		return f.runTRTLLM(ctx, std, data, admin)
	}
	cfg := f.config()
	cfg.Logger = f.Log.New(std).With("role", f.KV.Role)
	engine, err := server.Serve(cfg, data, admin)
	switch {
	case errors.Is(err, sim.ErrEvents):
		return startError(err, "kv-events-address or --kv-events-replay-address")
	case err != nil:
		return startError(err, "side-channel-address")
	}
	defer engine.Close()
	stop := context.AfterFunc(ctx, engine.Close)
	defer stop()
	return serve(std, engine, boot.Addresses{"http": data.Addr(), "admin": admin.Addr(), "sidechannel": engine.SideChannelAddr()})
}

// serve says that an engine is ready, and waits for its end.
func serve(std boot.IO, engine interface{ Wait() error }, at boot.Addresses) error {
	if err := boot.Ready(std.Stdout, "sim", at); err != nil {
		return err
	}
	if err := engine.Wait(); err != nil {
		return fmt.Errorf("running the engine: %w", err)
	}
	return nil
}

// startError makes an Exit with CodeMissing if a port is in use, which a flag chooses.
func startError(err error, flag string) error {
	var network *net.OpError
	if errors.As(err, &network) {
		return boot.Missingf("%w (choose another address with --%s)", err, flag)
	}
	return err
}

// config returns the engine's configuration, after the model was loaded.
func (f *flags) config() sim.Config {
	model, _ := f.Model.load()
	sideChannel := f.Listen.Channel
	if sideChannel == "" {
		sideChannel = net.JoinHostPort(f.Listen.Host, "0")
	}
	return sim.Config{
		Model:           model,
		ServedModelName: f.Model.ServedName,
		ScaleOut:        f.Listen.ScaleOut,
		MaxModelLen:     f.Model.MaxModelLen,
		TimeScale:       f.Model.TimeScale,
		Schedule: sim.ScheduleConfig{
			MaxBatchedTokens:  f.Schedule.MaxBatchedTokens,
			MaxSequences:      f.Schedule.MaxSequences,
			MaxQueuedRequests: f.Schedule.MaxQueued,
		},
		KV: sim.KVConfig{
			Blocks: f.KV.Blocks, HostBlocks: f.KV.HostBlocks, BlockSize: f.KV.BlockSize, Lease: f.KV.Lease, HandshakeTime: f.KV.Handshake,
			LoadFailure: sim.LoadFailurePolicy(f.KV.LoadFailure),
			MoRIIO:      sim.MoRIIOConfig{Mode: sim.MoRIIOMode(f.KV.MoRIIO), Producer: f.KV.Role == "prefill", Notify: f.KV.Notify},
			Push:        f.KV.Push, Bidirectional: f.KV.Back, OmitPrefillCachedTokens: f.KV.NoCached,
		},
		Encoding:  sim.EncodingConfig{Role: sim.EncodingRole(f.Encoding.Role), Store: f.Encoding.Store},
		KeepAlive: f.Listen.KeepAlive,
		Transfer:  sim.TransferConfig{SideChannel: sideChannel, Open: f.Transfer.open()},
		Events:    sim.EventsConfig{Publish: f.KV.Events, Replay: f.KV.Replay, Topic: f.KV.Topic},
	}
}

// flag returns the name of the flag that chose the model.
func (m *modelFlags) flag() string {
	if m.ModelFile != "" {
		return "model-file"
	}
	return "model"
}

func (m *modelFlags) load() (model.Model, error) {
	if m.ModelFile == "" {
		return model.Named(m.Model)
	}
	data, err := os.ReadFile(m.ModelFile)
	if err != nil {
		return model.Model{}, err
	}
	return model.Parse(data)
}
