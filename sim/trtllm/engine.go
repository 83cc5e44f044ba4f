package trtllm

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/metrics"
	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// Engine is one simulated engine. Its methods may be called from several goroutines.
type Engine struct {
	cfg         Config
	core        *core.Engine
	transceiver *transceiver
}

// New starts an engine. It takes requests until Close, or until it dies (see Done).
func New(cfg Config) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("checking the simulator's configuration: %w", err)
	}
	e := &Engine{cfg: cfg}
	t := &transceiver{cfg: &e.cfg, page: newPage(&e.cfg), held: make(map[int64]*core.Sequence), asked: make(map[int64]asker)}
	host, _, _ := net.SplitHostPort(cfg.Endpoint) // Config has been checked
	if t.transport, err = cfg.open(host); err != nil {
		return nil, fmt.Errorf("opening the transfer transport: %w", err)
	}
	if t.memory, err = kv.NewMemory(&cfg.Model, cfg.Blocks+1, cfg.TokensPerBlock, t.transport); err == nil {
		err = t.memory.Register(t.transport)
	}
	if err == nil {
		t.listener, err = net.Listen("tcp", cfg.Endpoint)
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	e.core = core.New(e.cfg.core(), t.transport, t.memory)
	e.transceiver, t.core = t, e.core
	e.core.Start(t, func() {
		if err := t.close(); err != nil {
			cfg.Logger.Error("closing the transfer transport", "error", err)
		}
	}, t.serve)
	return e, nil
}

// noStallTimeout is longer than any caller waits: Times.Transfer ends a transfer that hangs.
const noStallTimeout = 24 * time.Hour

func (c *Config) open(host string) (transfer.Transport, error) {
	var b [16]byte
	rand.Read(b[:]) // never fails
	name := hex.EncodeToString(b[:])
	if c.Open != nil {
		return c.Open(name)
	}
	return transport.NewTCP(transport.TCPConfig{Listen: net.JoinHostPort(host, "0"), Name: name, StallTimeout: noStallTimeout, Logger: c.Logger})
}

// Close ends the engine: requests that run get an error. It waits until everything has ended, and may be called again.
func (e *Engine) Close() { e.core.Close() }

// Done is closed when the engine has died or was closed; Err then says of what.
func (e *Engine) Done() <-chan struct{} { return e.core.Done() }

// Finished is closed when every goroutine of the engine has ended.
func (e *Engine) Finished() <-chan struct{} { return e.core.Finished() }

// Err returns what the engine died of, or nil while it lives and after Close.
func (e *Engine) Err() error { return e.core.Err() }

// Kill makes the engine die of a cause.
func (e *Engine) Kill(cause error) { e.core.Kill(cause) }

// HoldRequest counts a request as held back in State.Held, until the caller calls end.
func (e *Engine) HoldRequest() (end func()) { return e.core.HoldRequest() }

// Config returns the configuration with its defaults.
func (e *Engine) Config() Config { return e.cfg }

// Endpoint returns where generation engines ask for KV, as host:port.
func (e *Engine) Endpoint() string { return e.transceiver.listener.Addr().String() }

// OpaqueState returns the encoded_opaque_state of context answers.
func (e *Engine) OpaqueState() string {
	return base64.StdEncoding.EncodeToString([]byte(e.Endpoint()))
}

// Request asks for one answer to one prompt.
type Request struct {
	Prompt   []int // the engine keeps it, and appends to it
	Sampling core.Sampling
	Salt     string
	Params   *Params // nil: the engine computes all of it
}

// kind returns the type of a request.
func (q *Request) kind() string {
	if q.Params == nil {
		return Both
	}
	return q.Params.RequestType
}

// Submit queues a request. The error is core.ErrDead.
func (e *Engine) Submit(q *Request, choices int) (*core.Generation, error) {
	list := make([]core.Request, choices)
	for i := range list {
		list[i] = core.Request{Prompt: slices.Clone(q.Prompt), Sampling: q.Sampling, Salt: q.Salt, Leg: &leg{request: q}}
		if q.kind() == ContextOnly {
			list[i].Sampling.MaxTokens = 1
		}
		list[i].Sampling.Choice = uint64(i)
	}
	return e.core.Submit(list)
}

// transceiver is TensorRT-LLM's hand-off. It implements core.Protocol; only the engine's loop calls its methods, unless they say
// otherwise.
type transceiver struct {
	cfg       *Config
	core      *core.Engine
	transport transfer.Transport
	memory    *kv.Memory
	listener  net.Listener
	page      *metrics.Page

	held    map[int64]*core.Sequence // context legs that have not handed over, by id
	asked   map[int64]asker          // generation engines that wait for an id
	changed bool                     // some deadline, since the last call of Deadline
	counts  counts
}

// asker is a generation engine that has asked for the KV of an id.
type asker struct {
	peer  transfer.Peer
	until time.Time // when it gives up
}

// counts has what State reports and no metric of the real engine does.
type counts struct {
	foreign, expired, kvBytesRead, kvBytesServed int64
}

// close closes what New has opened.
func (t *transceiver) close() error {
	errs := []error{t.transport.Close()}
	if t.listener != nil {
		if err := t.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if t.memory != nil {
		errs = append(errs, t.memory.Free())
	}
	return errors.Join(errs...)
}

// serve answers generation engines until ctx ends. It runs outside of the loop.
func (t *transceiver) serve(ctx context.Context) {
	if err := zmtp.Serve(ctx, t.listener, t.answer); err != nil {
		t.cfg.Logger.Error("serving generation engines", "error", err)
	}
}
