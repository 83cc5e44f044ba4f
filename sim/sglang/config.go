package sglang

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/transfer"
)

// Version is the version of SGLang whose recordings this engine is compared with.
const Version = "0.5.23"

// Mode is what an engine does of a request.
type Mode string

// The modes, with SGLang's names.
const (
	Plain   Mode = "null" // the whole request
	Prefill Mode = "prefill"
	Decode  Mode = "decode"
)

// Config describes one engine. The zero value of every field means the default named beside it.
type Config struct {
	// Model gives sizes and speeds; default: the built-in model "tiny".
	Model model.Model
	// ServedModelName is what answers and pages call the model; default: Model.Name. Requests may call it anything.
	ServedModelName string
	// Mode is SGLang's disaggregation mode; default: Plain.
	Mode Mode
	// Bootstrap is the host:port of a prefill engine's bootstrap server; default 127.0.0.1:8998. A decode engine uses its port for
	// legs that name none.
	Bootstrap string
	// Port is the number of the data port, which the bootstrap server and the pages name.
	Port int
	// ContextLength caps the model's length, in tokens; default: Model.MaxModelLen.
	ContextLength int
	// PageSize is in tokens, the same on both engines of a pair; default 16, as recorded.
	PageSize int
	// MaxTotalTokens is the size of the KV pool of each rank; default 16384, or what the longest request needs.
	MaxTotalTokens int
	// MaxRunningRequests is how many sequences run at once on each rank; default 256.
	MaxRunningRequests int
	// ChunkedPrefillSize is how many tokens a step computes at most; default 4096.
	ChunkedPrefillSize int
	// Ranks is how many data-parallel ranks there are, SGLang's dp-size; default 1.
	Ranks int
	// DecodeRadixCache gives a decode engine a prefix cache, as the others have.
	DecodeRadixCache bool
	// HeaderOverrides has headers stand for members of the body, as SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES does. Of these, only the id
	// of a request is read.
	HeaderOverrides bool
	// TimeScale multiplies every modelled duration: at 1 the engine has the model's own speed, at 0 it does not wait at all.
	TimeScale float64
	// Times are real, whatever the TimeScale.
	Times Times
	// Open opens the transport of a rank under a name; default: a transport.TCP on a free port of the bootstrap server's host.
	Open func(name string) (transfer.Transport, error)
	// Network has the engine's connections to other engines; default: the machine's.
	Network Network
	// Logger gets lifecycle at Info and requests at Debug; default: nothing is logged.
	Logger *slog.Logger
}

// Times are the engine's timers. SGLang has environment variables for most of them.
type Times struct {
	// Bootstrap is how long a prefill leg waits for decode; Waiting how long a decode leg waits for KV after it has sent its pages;
	// default 300 s each.
	Bootstrap, Waiting time.Duration
	// Heartbeat is the time between two requests to a known bootstrap server; default 5 s. After HeartbeatFailures in a row,
	// default 2, a prefill engine is lost.
	Heartbeat         time.Duration
	HeartbeatFailures int
	// Release is how long pages of a decode leg that failed wait for prefill to confirm that it does not write to them; default 30 s.
	Release time.Duration
	// Poll is how often the engine looks whether the client of a whole answer has left; default 4 s.
	Poll time.Duration
	// CrashHang is how long the ports of an engine whose scheduler has died are open and nothing answers; default 65 s, of which a
	// decode engine takes 5 s at most.
	CrashHang time.Duration
	// Health is how long /health takes, which runs a request; default 1 s.
	Health time.Duration
	// Drain is how often an engine that got SIGTERM looks whether requests are left; default 5 s.
	Drain time.Duration
	// KeepAlive is how long an idle client connection stays open; default 5 s, as uvicorn's.
	KeepAlive time.Duration
}

// Network opens connections.
type Network interface {
	Listen(address string) (net.Listener, error)
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// tcp is the machine's network.
type tcp struct{ net.Dialer }

// Listen implements Network.
func (*tcp) Listen(address string) (net.Listener, error) { return net.Listen("tcp", address) }

// withDefaults fills in what was left out, and reports everything that is wrong.
func (c Config) withDefaults() (Config, error) {
	if err := core.SetModelDefaults(&c.Model, &c.ServedModelName, &c.Logger); err != nil {
		return c, err
	}
	core.SetDefault(&c.Mode, Plain)
	core.SetDefault(&c.Bootstrap, "127.0.0.1:8998")
	core.SetDefault(&c.ContextLength, c.Model.MaxModelLen)
	core.SetDefault(&c.PageSize, 16)
	if c.PageSize > 0 {
		core.SetDefault(&c.MaxTotalTokens, max(16384, kv.BlocksFor(c.ContextLength, c.PageSize)*c.PageSize))
	}
	core.SetDefault(&c.MaxRunningRequests, 256)
	core.SetDefault(&c.ChunkedPrefillSize, 4096)
	core.SetDefault(&c.Ranks, 1)
	c.Times.setDefaults(c.Mode)
	if c.Network == nil {
		c.Network = &tcp{}
	}
	return c, core.Join(c.problems)
}

// schedulerGone is how long a decode engine is still there after its scheduler has died.
const schedulerGone = 5200 * time.Millisecond

func (t *Times) setDefaults(m Mode) {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&t.Bootstrap, 300 * time.Second}, {&t.Waiting, 300 * time.Second}, {&t.Heartbeat, 5 * time.Second}, {&t.Release, 30 * time.Second},
		{&t.Poll, 4 * time.Second}, {&t.CrashHang, 65 * time.Second}, {&t.Health, time.Second}, {&t.Drain, 5 * time.Second},
		{&t.KeepAlive, 5 * time.Second},
	} {
		core.SetDefault(d.field, d.value)
	}
	core.SetDefault(&t.HeartbeatFailures, 2)
	if m == Decode {
		t.CrashHang = min(t.CrashHang, schedulerGone)
	}
}

// Problems reports everything that New would refuse, by the flag of cmd/sim that sets it.
func (c Config) Problems(report func(flag, format string, args ...any)) {
	c, _ = c.withDefaults()
	c.problems(report)
}

// maxRanks bounds the number of ranks, so that a typing error is refused.
const maxRanks = 64

func (c *Config) problems(report core.Report) {
	report.RequireModel(&c.Model, c.TimeScale)
	report.Require(c.Mode == Plain || c.Mode == Prefill || c.Mode == Decode,
		"disaggregation-mode", "disaggregation mode is %q: want %q, %q or %q", c.Mode, Plain, Prefill, Decode)
	report.Require(c.ContextLength > 1, "context-length", "context length is %d tokens: want at least 2", c.ContextLength)
	report.Require(c.PageSize > 0, "page-size", "page size is %d tokens: want at least 1", c.PageSize)
	report.Require(c.Ranks > 0 && c.Ranks <= maxRanks, "dp-size", "data-parallel size is %d: want 1 to %d", c.Ranks, maxRanks)
	report.Require(c.MaxTotalTokens >= c.ContextLength, "max-total-tokens",
		"a pool of %d tokens cannot hold a request of context length %d", c.MaxTotalTokens, c.ContextLength)
	report.RequireMemory("max-total-tokens", &c.Model, c.MaxTotalTokens, 1, fmt.Sprintf("%d tokens", c.MaxTotalTokens))
	report.Require(c.MaxRunningRequests > 0, "max-running-requests", "max running requests is %d: want at least 1", c.MaxRunningRequests)
	report.Require(c.ChunkedPrefillSize > 0, "chunked-prefill-size", "chunked prefill size is %d: want at least 1", c.ChunkedPrefillSize)
	_, _, err := net.SplitHostPort(c.Bootstrap)
	report.Require(err == nil, "disaggregation-bootstrap-port", "address of the bootstrap server is %q: want host:port", c.Bootstrap)
}

// core returns the configuration of each rank's core.
func (c *Config) core() core.Config {
	return core.Config{
		Model: c.Model, MaxModelLen: c.ContextLength, TimeScale: c.TimeScale,
		Schedule: core.Schedule{MaxBatchedTokens: c.ChunkedPrefillSize, MaxSequences: c.MaxRunningRequests},
		Blocks:   c.pages() + 1, BlockSize: c.PageSize,
		ReservedTokens: reservedDecodeTokens, NoPrefixCache: c.Mode == Decode && !c.DecodeRadixCache,
		Logger: c.Logger,
	}
}

// reservedDecodeTokens is SGLang's num_reserved_decode_tokens: what decode keeps free for each answer that it has begun.
const reservedDecodeTokens = 512

// pages returns how many pages each rank's pool has.
func (c *Config) pages() int { return c.MaxTotalTokens / c.PageSize }
