package trtllm

import (
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/transfer"
)

// Version is the version of TensorRT-LLM whose source this engine follows.
const Version = "1.2.0"

// Config describes one engine. The zero value of every field means the default in its comment.
type Config struct {
	// Model gives sizes and speeds; default: the built-in model "tiny".
	Model model.Model
	// ServedModelName is what /v1/models calls the model; default: Model.Name. Requests may call it anything.
	ServedModelName string
	// Endpoint is the host:port where generation engines ask for KV; default: a free port of 127.0.0.1.
	Endpoint string
	// NoEndpointInfo leaves the endpoint out of /server_info, as the C++ transceiver does: generation first does not work then.
	NoEndpointInfo bool
	// MaxSeqLen caps the model's length, in tokens; default: Model.MaxModelLen.
	MaxSeqLen int
	// TokensPerBlock is the same on both engines of a pair; default 32.
	TokensPerBlock int
	// Blocks is the size of the KV pool; default 512, or what the longest request needs.
	Blocks int
	// MaxBatchSize is how many sequences run at once; default 256.
	MaxBatchSize int
	// MaxNumTokens is how many tokens a step computes at most; default 2048.
	MaxNumTokens int
	// TimeScale multiplies every modelled duration: at 1 the engine has the model's own speed, at 0 it does not wait at all.
	TimeScale float64
	// Times are real, whatever the TimeScale.
	Times Times
	// Open opens the transport under a name; default: a transport.TCP on a free port of the endpoint's host.
	Open func(name string) (transfer.Transport, error)
	// Logger gets lifecycle at Info and requests at Debug; default: nothing is logged.
	Logger *slog.Logger
}

// Times are the engine's timers.
type Times struct {
	// Transfer is kv_transfer_timeout_ms of cache_transceiver_config; default 60 s.
	Transfer time.Duration
	// Poll is how often the engine looks whether a client has left; default 1 s.
	Poll time.Duration
	// KeepAlive is how long an idle client connection stays open; default 2 s. The real one keeps it 5 s, but its own proxy uses none
	// that has been idle for 1 s: a proxy that relies on much more is noticed.
	KeepAlive time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if err := core.SetModelDefaults(&c.Model, &c.ServedModelName, &c.Logger); err != nil {
		return c, err
	}
	core.SetDefault(&c.Endpoint, "127.0.0.1:0")
	core.SetDefault(&c.MaxSeqLen, c.Model.MaxModelLen)
	core.SetDefault(&c.TokensPerBlock, 32)
	if c.TokensPerBlock > 0 {
		core.SetDefault(&c.Blocks, max(512, kv.BlocksFor(c.MaxSeqLen, c.TokensPerBlock)))
	}
	core.SetDefault(&c.MaxBatchSize, 256)
	core.SetDefault(&c.MaxNumTokens, 2048)
	core.SetDefault(&c.Times.Transfer, time.Minute)
	core.SetDefault(&c.Times.Poll, time.Second)
	core.SetDefault(&c.Times.KeepAlive, 2*time.Second)
	return c, core.Join(c.problems)
}

// Problems reports everything that New would refuse, by the flag of cmd/sim that sets it.
func (c Config) Problems(report func(flag, format string, args ...any)) {
	c, _ = c.withDefaults()
	c.problems(report)
}

func (c *Config) problems(report core.Report) {
	report.RequireModel(&c.Model, c.TimeScale)
	report.Require(c.MaxSeqLen > 1, "max-model-len", "max model len is %d tokens: want at least 2", c.MaxSeqLen)
	report.Require(c.TokensPerBlock > 0, "block-size", "block size is %d tokens: want at least 1", c.TokensPerBlock)
	report.Require(c.Blocks*c.TokensPerBlock >= c.MaxSeqLen, "blocks", "%d blocks of %d tokens cannot hold a request of max model len %d", c.Blocks, c.TokensPerBlock, c.MaxSeqLen)
	report.RequireMemory("blocks", &c.Model, c.Blocks, c.TokensPerBlock, fmt.Sprintf("%d blocks of %d tokens", c.Blocks, c.TokensPerBlock))
	report.Require(c.MaxBatchSize > 0, "max-num-seqs", "max sequences is %d: want at least 1", c.MaxBatchSize)
	report.Require(c.MaxNumTokens > 0, "max-num-batched-tokens", "max batched tokens is %d: want at least 1", c.MaxNumTokens)
	_, _, err := net.SplitHostPort(c.Endpoint)
	report.Require(err == nil, "side-channel-address", "address of the endpoint is %q: want host:port", c.Endpoint)
}

func (c *Config) core() core.Config {
	return core.Config{
		Model: c.Model, MaxModelLen: c.MaxSeqLen, TimeScale: c.TimeScale,
		Schedule: core.Schedule{MaxBatchedTokens: c.MaxNumTokens, MaxSequences: c.MaxBatchSize},
		Blocks:   c.Blocks + 1, BlockSize: c.TokensPerBlock, Logger: c.Logger,
	}
}
