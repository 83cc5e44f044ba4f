package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/metrics"
	"github.com/tandem-serving/tandem/transfer"
)

// Engine is one simulated engine of vLLM.
type Engine struct {
	cfg       Config
	core      *core.Engine
	connector *connector
}

// connector is vLLM's hand-off: the leases of prefill legs, and the reads of decode legs. It implements core.Protocol. Only the
// engine's loop calls its methods, unless they say otherwise.
type connector struct {
	cfg       *Config
	log       *slog.Logger
	core      *core.Engine
	transport transfer.Transport
	kv        *kv.Memory
	metrics   *metrics.Page
	peers     *peers
	identity  identity

	sideChannel net.Listener // nil if it is not served
	events      *events      // nil if nothing is published
	fetched     *fetched     // nil if encodings are files, or no others are told of them

	leases *leases
	pushes pushes
	moriio *moriio // nil: the engine has NIXL's connector
	counts counts
}

// identity is what hand-offs and answers say about the engine.
type identity struct {
	engineID    string // new for every start
	host        string // where peers fetch the metadata
	port        int
	fingerprint string
}

// counts has what State reports and no metric of the real engine does.
type counts struct {
	expired, released            int64 // leases
	stale, foreign               int64 // reads
	kvBytesRead, kvBytesReleased int64
}

// New starts an engine. It takes requests until Close, or until it dies of one (see Done).
func New(cfg Config) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("checking the simulator's configuration: %w", err)
	}
	e := &Engine{cfg: cfg}
	c := &connector{
		cfg: &e.cfg, log: cfg.Logger, transport: cfg.Transfer.Transport,
		metrics:  metrics.VLLMPage(cfg.ServedModelName, metrics.Cache{Blocks: cfg.KV.Blocks, BlockSize: cfg.KV.BlockSize}),
		leases:   newLeases(),
		pushes:   pushes{registered: make(map[string]registration), arriving: make(map[string]*load)},
		identity: identity{engineID: cfg.Transfer.EngineID, fingerprint: "vllm-" + Version + "-" + RandomHex(4)},
	}
	if cfg.KV.MoRIIO.Mode != "" {
		c.moriio = newMoRIIO(c)
		c.metrics.Hide("vllm:nixl_")
	}
	if err := c.openTransport(); err != nil {
		return nil, err
	}
	c.peers = &peers{transport: c.transport, fetch: e.cfg.Transfer.Fetch, timeout: cfg.KV.HandshakeTimeout,
		cost: cfg.handshakeTime(), known: make(map[string]*peer)}
	if c.kv, err = kv.NewMemory(&cfg.Model, cfg.KV.Blocks, cfg.KV.BlockSize, c.transport); err == nil {
		err = c.kv.Register(c.transport)
	}
	if err != nil {
		return nil, errors.Join(err, c.closeTransport())
	}
	if c.events, err = openEvents(&cfg); err != nil {
		return nil, errors.Join(err, c.closeTransport())
	}
	if c.fetched, err = openFetched(&e.cfg.Encoding); err != nil {
		return nil, errors.Join(err, c.closeTransport())
	}
	var cached func(*core.Sequence, int, []kv.Hash)
	if c.events != nil {
		cached = c.events.stored
	}
	e.core = core.New(core.Config{
		Model: cfg.Model, MaxModelLen: cfg.MaxModelLen, TimeScale: cfg.TimeScale, Schedule: cfg.Schedule,
		Blocks: cfg.KV.Blocks, BlockSize: cfg.KV.BlockSize, HostBlocks: cfg.KV.HostBlocks, TextOfPrompts: true, Cached: cached, Logger: cfg.Logger,
	}, c.transport, c.kv)
	e.connector, c.core = c, e.core
	work := []func(context.Context){c.heartbeat}
	protocol := core.Protocol(c)
	if c.moriio != nil {
		protocol, work = c.moriio, []func(context.Context){c.moriio.serveNotices}
	}
	if c.sideChannel != nil {
		work = append(work, c.serveSideChannel)
	}
	if c.fetched != nil && c.fetched.listener != nil {
		work = append(work, func(ctx context.Context) {
			if err := c.fetched.serve(ctx); err != nil {
				c.log.Error("serving encodings", "error", err)
			}
		})
	}
	if c.events != nil {
		e.core.Pool().Uncached = c.events.removed
		e.core.Host().Stored, e.core.Host().Dropped = c.events.offloaded, c.events.dropped
		work = append(work, c.events.work(func(err error) { c.log.Error("publishing KV events", "error", err) })...)
	}
	e.core.Start(protocol, func() {
		if err := c.closeTransport(); err != nil {
			c.log.Error("closing the transfer transport", "error", err)
		}
	}, work...)
	return e, nil
}

// NoStallTimeout is the time that a transport of the engine waits for a peer that hangs. It is longer than any caller waits,
// because the real engine has no deadline.
const NoStallTimeout = 24 * time.Hour

// Close ends the engine as a SIGTERM does: running requests get an error, and hand-offs that were not read are lost.
// It waits until everything has ended, and may be called again.
func (e *Engine) Close() { e.core.Close() }

// Done is closed when the engine has died or was closed; Err then says of what.
func (e *Engine) Done() <-chan struct{} { return e.core.Done() }

// Finished is closed when every goroutine of the engine has ended, which is later than Done.
func (e *Engine) Finished() <-chan struct{} { return e.core.Finished() }

// Err returns what the engine died of, or nil while it lives and after Close.
func (e *Engine) Err() error { return e.core.Err() }

// Kill makes the engine die of a cause, and running requests end with ErrDead.
func (e *Engine) Kill(cause error) { e.core.Kill(cause) }

// HoldRequest counts a request as held back in State.Held, until the caller calls end.
func (e *Engine) HoldRequest() (end func()) { return e.core.HoldRequest() }

// Config returns the configuration with its defaults.
func (e *Engine) Config() Config { return e.cfg }

// ID returns the engine id that hand-offs name; it is new for every start.
func (e *Engine) ID() string { return e.connector.identity.engineID }

// NotifyPort returns the port for notices of MoRIIOConnector; 0 without it.
func (e *Engine) NotifyPort() int {
	if e.connector.moriio == nil {
		return 0
	}
	return e.connector.moriio.port
}

// Fingerprint returns the system_fingerprint of answers.
func (e *Engine) Fingerprint() string { return e.connector.identity.fingerprint }
