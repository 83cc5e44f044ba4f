package sim

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/transfer"
)

// LoadFailurePolicy says what a decode engine does when KV cannot be read.
type LoadFailurePolicy string

// The policies have the names of the engine's kv_load_failure_policy.
const (
	FailLoad      LoadFailurePolicy = "fail"      // the request ends with an error
	RecomputeLoad LoadFailurePolicy = "recompute" // the engine prefills the prompt itself
)

// Config describes one engine. The zero value of every field means the default named beside it.
type Config struct {
	// Model gives sizes and speeds; default: the built-in model "tiny".
	Model model.Model
	// ServedModelName is what requests call the model; default: Model.Name.
	ServedModelName string
	// ScaleOut serves /inference/v1/generate, as vLLM does with --enable-scale-out.
	ScaleOut bool
	// MaxModelLen caps the model's length, in tokens; default: Model.MaxModelLen.
	MaxModelLen int
	// TimeScale multiplies every modelled duration: at 1 the engine has the model's own speed, at 0 it does not wait at all.
	TimeScale float64
	// Schedule bounds the batches.
	Schedule ScheduleConfig
	// KV describes the block pool and the hand-off.
	KV KVConfig
	// KeepAlive is how long an idle client connection stays open; default 5 s, as uvicorn's.
	KeepAlive time.Duration
	// Transfer is how KV moves between engines.
	Transfer TransferConfig
	// Encoding is how encodings of images are exchanged.
	Encoding EncodingConfig
	// Events is where the engine publishes what it has cached.
	Events EventsConfig
	// Logger gets lifecycle at Info and requests at Debug; default: nothing is logged.
	Logger *slog.Logger
}

// ScheduleConfig bounds what one step of the engine does.
type ScheduleConfig = core.Schedule

// KVConfig describes the block pool and the hand-off.
type KVConfig struct {
	// Blocks is the size of the pool, with the null block; default 512, or what the longest request needs.
	Blocks int
	// HostBlocks is how many blocks the host's memory has space for, to which all cached blocks are copied, as with vLLM's
	// OffloadingConnector; 0: none are.
	HostBlocks int
	// BlockSize is in tokens; default 32.
	BlockSize int
	// Lease is how long blocks wait for a decode engine that sends no heartbeat; default 30 s, and 60 s with MoRIIO. It is real time, whatever the
	// TimeScale, because the programs that coordinate engines use real time as well.
	Lease time.Duration
	// LoadFailure is the engine's kv_load_failure_policy; default FailLoad.
	LoadFailure LoadFailurePolicy
	// HandshakeTimeout is how long the engine tries to reach an unknown peer; default 5 s.
	HandshakeTimeout time.Duration
	// HandshakeTime is how long the first hand-off from each other engine is delayed, whatever the TimeScale; default: the
	// model's handshake_ms, which is scaled.
	HandshakeTime time.Duration
	// Push makes prefill write the KV into blocks that decode has named to it, as vLLM's NixlPushConnector does. Both engines of
	// a pair need it.
	Push bool
	// Bidirectional has prefill read from decode what that has of a prompt, if its leg says so, as vLLM's NixlConnector does with
	// bidirectional_kv_xfer. Blocks of decode legs are not kept for it.
	Bidirectional bool
	// MoRIIO has the KV handed over as with vLLM's MoRIIOConnector.
	MoRIIO MoRIIOConfig
	// OmitPrefillCachedTokens makes an older engine, whose hand-offs lack remote_prefill_cached_tokens.
	OmitPrefillCachedTokens bool
}

// TransferConfig is how KV moves between engines.
type TransferConfig struct {
	// SideChannel is the host:port where other engines ask for this engine's metadata, and which hand-offs name; default
	// 127.0.0.1:0. The engine does not serve it if there is a Fetch, because peers then have another way, unless it is told to.
	SideChannel string
	// ServeSideChannel has it served also if there is a Fetch.
	ServeSideChannel bool
	// EngineID is this engine's name among its peers, and must be the Transport's; default: a fresh UUID.
	EngineID string
	// Transport moves the KV; the engine closes it. If it is a kv.Allocator, it allocates the memory of the KV. Default: what
	// Open returns.
	Transport transfer.Transport
	// Open opens the Transport under the engine's name; default: a transport.TCP on a free port of the side channel's host.
	Open func(name string) (transfer.Transport, error)
	// Fetch gets the metadata of the peer whose side channel is at address; default AskSideChannel.
	Fetch func(ctx context.Context, address string) ([]byte, error)
}

// withDefaults fills in what was left out, and reports everything that is wrong.
func (c Config) withDefaults() (Config, error) {
	if err := core.SetModelDefaults(&c.Model, &c.ServedModelName, &c.Logger); err != nil {
		return c, err
	}
	core.SetDefault(&c.MaxModelLen, c.Model.MaxModelLen)
	core.SetDefault(&c.Schedule.MaxBatchedTokens, 2048)
	core.SetDefault(&c.Schedule.MaxSequences, 256)
	core.SetDefault(&c.KV.BlockSize, 32)
	if c.KV.BlockSize > 0 {
		core.SetDefault(&c.KV.Blocks, max(512, kv.BlocksFor(c.MaxModelLen, c.KV.BlockSize)+1))
	}
	if c.KV.MoRIIO.Mode != "" {
		core.SetDefault(&c.KV.Lease, moriioDefer)
	}
	core.SetDefault(&c.KV.Lease, 30*time.Second)
	core.SetDefault(&c.KV.LoadFailure, FailLoad)
	core.SetDefault(&c.KV.HandshakeTimeout, 5*time.Second)
	core.SetDefault(&c.KeepAlive, 5*time.Second)
	core.SetDefault(&c.Transfer.SideChannel, "127.0.0.1:0")
	core.SetDefault(&c.Transfer.EngineID, newUUID())
	core.SetDefault(&c.Encoding.Address, "127.0.0.1:0")
	core.SetDefault(&c.Encoding.Keep, encodingsKept)
	return c, core.Join(c.problems)
}

// Problems reports everything that New would refuse, by the flag of cmd/sim that sets it.
func (c Config) Problems(report func(flag, format string, args ...any)) {
	c, _ = c.withDefaults()
	c.problems(report)
}

func (c *Config) problems(report core.Report) {
	report.RequireModel(&c.Model, c.TimeScale)
	report.Require(c.MaxModelLen > 1, "max-model-len", "max model len is %d tokens: want at least 2", c.MaxModelLen)
	report.Require(c.KV.BlockSize > 0, "block-size", "block size is %d tokens: want at least 1", c.KV.BlockSize)
	report.Require(c.KV.Lease > 0, "kv-lease", "KV lease is %v: want more than 0", c.KV.Lease)
	report.Require(c.KV.HandshakeTime >= 0, "handshake-time", "handshake time is %v: want 0 or more", c.KV.HandshakeTime)
	report.Require(c.KV.LoadFailure == FailLoad || c.KV.LoadFailure == RecomputeLoad,
		"kv-load-failure-policy", "KV load failure policy is %q: want %q or %q", c.KV.LoadFailure, FailLoad, RecomputeLoad)
	report.RequireMemory("blocks", &c.Model, c.KV.Blocks, c.KV.BlockSize, fmt.Sprintf("%d blocks of %d tokens", c.KV.Blocks, c.KV.BlockSize))
	report.Require(c.KV.HostBlocks >= 0, "host-blocks", "host blocks is %d: want 0 or more", c.KV.HostBlocks)
	report.RequireMemory("host-blocks", &c.Model, c.KV.HostBlocks, c.KV.BlockSize, fmt.Sprintf("%d blocks of %d tokens in the host's memory", c.KV.HostBlocks, c.KV.BlockSize))
	// The real engine refuses this as well: the longest request would wait for ever.
	report.Require((c.KV.Blocks-1)*c.KV.BlockSize >= c.MaxModelLen, "blocks",
		"%d blocks of %d tokens (one of them is never used) cannot hold a request of max model len %d", c.KV.Blocks, c.KV.BlockSize, c.MaxModelLen)
	mode := c.KV.MoRIIO.Mode
	report.Require(mode == "" || mode == MoRIIOWrite || mode == MoRIIORead, "moriio", "MoRI-IO's mode is %q: want %s, %s or none", mode, MoRIIOWrite, MoRIIORead)
	report.Require(mode == "" || !c.KV.Push, "moriio", "an engine has one connector: MoRI-IO's, or the one that pushes")
	role := c.Encoding.Role
	report.Require(role == "" || role == Encoder || role == EncodingReader, "ec-role", "encoder role is %q: want %s, %s or none", role, Encoder, EncodingReader)
	report.Require((role == "") == (c.Encoding.Store == "" && !c.Encoding.Fetch), "ec-store", "an encoder role and a store need each other")
	report.Require(c.Encoding.Store == "" || !c.Encoding.Fetch, "ec-store", "encodings are files, or are fetched from the encoder, not both")
	report.Require(c.Encoding.Keep >= 0, "ec-store", "%d encodings are kept: want 0 or more", c.Encoding.Keep)
	report.Require(c.Schedule.MaxBatchedTokens > 0, "max-num-batched-tokens", "max batched tokens is %d: want at least 1", c.Schedule.MaxBatchedTokens)
	report.Require(c.Schedule.MaxSequences > 0, "max-num-seqs", "max sequences is %d: want at least 1", c.Schedule.MaxSequences)
	report.Require(c.Schedule.MaxQueuedRequests >= 0, "max-num-queued-reqs", "max queued requests is %d: want 0 or more", c.Schedule.MaxQueuedRequests)
}
