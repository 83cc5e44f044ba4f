package main

import (
	"context"
	"net"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/trtllm"
)

type trtllmFlags struct {
	Transfer time.Duration `flag:"kv-transfer-timeout" help:"kv_transfer_timeout_ms of cache_transceiver_config: how long a context engine keeps KV that no generation engine reads, and a generation engine waits for it"`
	Runtime  string        `flag:"transceiver-runtime" enum:"python,cpp" help:"with cpp, /server_info lacks the endpoint that generation first needs"`
}

func trtllmDefaults() trtllmFlags { return trtllmFlags{Transfer: time.Minute, Runtime: "python"} }

// trtllmConfig returns the configuration of an engine of TensorRT-LLM, after the model was loaded. Its address for generation engines is
// that of the side channel, its sizes are those of vLLM's flags.
func (f *flags) trtllmConfig() trtllm.Config {
	model, _ := f.Model.load()
	endpoint := f.Listen.Channel
	if endpoint == "" {
		endpoint = net.JoinHostPort(f.Listen.Host, "0")
	}
	return trtllm.Config{
		Model: model, ServedModelName: f.Model.ServedName, Endpoint: endpoint, NoEndpointInfo: f.TRTLLM.Runtime == "cpp",
		MaxSeqLen: f.Model.MaxModelLen, TokensPerBlock: f.KV.BlockSize, Blocks: f.KV.Blocks, MaxBatchSize: f.Schedule.MaxSequences,
		MaxNumTokens: f.Schedule.MaxBatchedTokens, TimeScale: f.Model.TimeScale,
		Times: trtllm.Times{Transfer: f.TRTLLM.Transfer, KeepAlive: f.Listen.KeepAlive}, Open: f.Transfer.open(),
	}
}

// runTRTLLM runs an engine of TensorRT-LLM until it has ended.
func (f *flags) runTRTLLM(ctx context.Context, std boot.IO, data, admin net.Listener) error {
	cfg := f.trtllmConfig()
	cfg.Logger = f.Log.New(std).With("role", f.KV.Role)
	engine, err := server.ServeTRTLLM(cfg, data, admin)
	if err != nil {
		return startError(err, "side-channel-address")
	}
	defer engine.Close()
	stop := context.AfterFunc(ctx, engine.Close)
	defer stop()
	return serve(std, engine, boot.Addresses{"http": data.Addr(), "admin": admin.Addr(), "endpoint": engine.EndpointAddr()})
}
