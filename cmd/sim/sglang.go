package main

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/sglang"
)

type sglangFlags struct {
	Mode        string `flag:"disaggregation-mode" enum:"null,prefill,decode" help:"what it does of a request: all, its prefill, or its decode"`
	Bootstrap   int    `flag:"disaggregation-bootstrap-port" help:"port of a prefill engine's bootstrap server, on --host; 0 picks a free one. A decode engine asks it for legs that name none"`
	PageSize    int    `flag:"page-size" arg:"TOKENS" help:"tokens per page; the same on all engines of a pair"`
	Ranks       int    `flag:"dp-size" help:"data-parallel ranks"`
	Context     int    `flag:"context-length" arg:"TOKENS" help:"longest prompt plus answer; 0: the model's"`
	MaxTotal    int    `flag:"max-total-tokens" arg:"TOKENS" help:"size of the KV pool of each rank; 0: 16384, or what the longest request needs"`
	MaxRunning  int    `flag:"max-running-requests" help:"sequences that run concurrently on each rank"`
	Chunk       int    `flag:"chunked-prefill-size" arg:"TOKENS" help:"tokens per step"`
	DecodeRadix bool   `flag:"disaggregation-decode-enable-radix-cache" help:"a decode engine has a prefix cache"`
}

type timesFlags struct {
	Bootstrap time.Duration `flag:"disaggregation-bootstrap-timeout" help:"how long a prefill leg waits for decode"`
	Waiting   time.Duration `flag:"disaggregation-waiting-timeout" help:"how long a decode leg waits for KV after it has sent its pages"`
	Heartbeat time.Duration `flag:"disaggregation-heartbeat-interval" help:"time between two looks of decode at a prefill engine"`
	Failures  int           `flag:"disaggregation-heartbeat-max-failure" help:"looks in a row that must fail before the prefill engine is lost"`
	Release   time.Duration `flag:"disaggregation-deferred-release-timeout" help:"how long pages of a failed decode leg wait for prefill to confirm that it does not write to them"`
	Poll      time.Duration `flag:"request-state-wait-timeout" help:"how often it looks whether the client of a whole answer has left"`
	CrashHang time.Duration `flag:"crash-hang" help:"how long ports are open and nothing answers after a scheduler has died; 5 s at most for decode engines"`
	Health    time.Duration `flag:"health-time" help:"how long /health takes"`
}

func sglangDefaults() sglangFlags {
	return sglangFlags{Mode: string(sglang.Plain), Bootstrap: 8998, PageSize: 16, Ranks: 1, MaxRunning: 256, Chunk: 4096}
}

func timesDefaults() timesFlags {
	return timesFlags{Bootstrap: 300 * time.Second, Waiting: 300 * time.Second, Heartbeat: 5 * time.Second, Failures: 2, Release: 30 * time.Second,
		Poll: 4 * time.Second, CrashHang: 65 * time.Second, Health: time.Second}
}

// sglangConfig returns the configuration of an SGLang engine, after the model was loaded.
func (f *flags) sglangConfig() sglang.Config {
	model, _ := f.Model.load()
	return sglang.Config{
		Model: model, ServedModelName: f.Model.ServedName, Mode: sglang.Mode(f.SGLang.Mode),
		Bootstrap:     net.JoinHostPort(f.Listen.Host, strconv.Itoa(f.SGLang.Bootstrap)),
		ContextLength: f.SGLang.Context, PageSize: f.SGLang.PageSize, MaxTotalTokens: f.SGLang.MaxTotal, MaxRunningRequests: f.SGLang.MaxRunning,
		ChunkedPrefillSize: f.SGLang.Chunk, Ranks: f.SGLang.Ranks, DecodeRadixCache: f.SGLang.DecodeRadix, TimeScale: f.Model.TimeScale,
		Times: sglang.Times{
			Bootstrap: f.Times.Bootstrap, Waiting: f.Times.Waiting, Heartbeat: f.Times.Heartbeat, HeartbeatFailures: f.Times.Failures,
			Release: f.Times.Release, Poll: f.Times.Poll, CrashHang: f.Times.CrashHang, Health: f.Times.Health, KeepAlive: f.Listen.KeepAlive,
		},
		Open: f.Transfer.open(),
	}
}

// runSGLang runs an SGLang engine until it has ended. SIGTERM has it end when no request is left.
func (f *flags) runSGLang(ctx context.Context, std boot.IO, data, admin net.Listener) error {
	cfg := f.sglangConfig()
	cfg.Logger = f.Log.New(std).With("mode", cfg.Mode)
	engine, err := server.ServeSGLang(cfg, data, admin)
	if err != nil {
		return startError(err, "disaggregation-bootstrap-port")
	}
	defer engine.Close()
	stop := context.AfterFunc(ctx, func() { engine.Drain(context.Background()) })
	defer stop()
	at := boot.Addresses{"http": data.Addr(), "admin": admin.Addr()}
	if cfg.Mode == sglang.Prefill {
		at["bootstrap"] = engine.BootstrapAddr()
	}
	return serve(std, engine, at)
}
