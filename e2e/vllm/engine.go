package vllm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/stack"
)

// Role is an engine's side of a hand-off.
type Role string

// The roles, with vLLM's names. A plain engine has no hand-offs.
const (
	Plain   Role = ""
	Prefill Role = "kv_producer"
	Decode  Role = "kv_consumer"
)

// Policy is what a decode engine does with a request whose KV cache cannot be loaded.
type Policy string

// The policies, with vLLM's names. Fail is its default.
const (
	Fail      Policy = "fail"
	Recompute Policy = "recompute"
)

// Model is the name under which all engines serve their model.
const Model = "tiny"

const (
	// startTimeout only has to be longer than a successful start: one that fails ends the process, which is noticed at once.
	// Four engines at once took a minute and a half on two processors, and 9 min with a load of 30.
	startTimeout = 15 * time.Minute
	// stopTimeout is the time between SIGTERM and SIGKILL. An engine took 3 s.
	stopTimeout = 30 * time.Second
	// keptLines is enough for a Python traceback through vLLM.
	keptLines = 300
)

// Options are the differences from a usual engine.
type Options struct {
	Name string // in messages
	Role Role
	// Lease is how long a prefill engine keeps a hand-off without heartbeats, in whole seconds; 0: 30 s. Decode engines need
	// the same value, since they renew it six times as often.
	Lease  time.Duration
	Policy Policy // of a decode engine; "": Fail
	// MaxRunning is how many requests run at once; 0: 128. The others wait.
	MaxRunning int
	Args       []string // further flags of `vllm serve`
}

// Engine is a running engine. Only Address and Output may be called concurrently with other methods.
type Engine struct {
	options Options
	tools   tools
	port    int
	side    int // port on which engines ask each other for their NIXL agents
	client  *http.Client

	mu      sync.Mutex // guards process
	process *stack.Process
}

// Start runs an engine on free ports of loopback and returns when it accepts requests. ctx bounds only the start; Stop ends
// the engine.
func Start(ctx context.Context, o Options) (*Engine, error) {
	found, err := find()
	if err != nil {
		return nil, err
	}
	e := &Engine{options: o, tools: found, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for _, port := range []*int{&e.port, &e.side} {
		if *port, err = freePort(ctx); err != nil {
			return nil, err
		}
	}
	if err := e.run(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

// freePort returns a port below those that Linux chooses for clients (32768 and up by default): an engine needs half a minute
// until it listens, and uses its ports again after a restart.
func freePort(ctx context.Context) (int, error) {
	const lowest, count, tries = 15_000, 17_000, 50
	var config net.ListenConfig
	var err error
	for range tries {
		port := lowest + rand.IntN(count)
		var l net.Listener
		if l, err = config.Listen(ctx, "tcp", net.JoinHostPort(loopback, strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("finding a free port: %w", err)
}

const loopback = "127.0.0.1"

// run starts the processes, and leaves none behind if it fails.
func (e *Engine) run(ctx context.Context) error {
	args, err := e.args()
	if err != nil {
		return err
	}
	p, err := stack.Start(ctx, stack.Program{Name: e.options.Name, Path: e.tools.python, Args: args, Env: e.environment(),
		Probe: e.healthy, ReadyTimeout: startTimeout, Grace: stopTimeout, Lines: keptLines})
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.process = p
	return nil
}

func (e *Engine) args() ([]string, error) {
	args := []string{"-m", "vllm.entrypoints.cli.main", "serve", e.tools.model, "--served-model-name=" + Model,
		"--host=" + loopback, "--port=" + strconv.Itoa(e.port), "--disable-uvicorn-access-log",
		"--dtype=float32", "--enforce-eager", "--max-model-len=4096",
		"--block-size=32", "--num-gpu-blocks-override=512", // the smallest block size of vLLM's attention on CPUs
		"--enable-prompt-tokens-details"}
	if e.options.MaxRunning > 0 {
		args = append(args, "--max-num-seqs="+strconv.Itoa(e.options.MaxRunning))
	}
	if e.options.Role != Plain {
		transfer, err := e.transferConfig()
		if err != nil {
			return nil, err
		}
		args = append(args, "--kv-transfer-config="+transfer)
	}
	return append(args, e.options.Args...), nil
}

// transferConfig returns vLLM's configuration of hand-offs.
func (e *Engine) transferConfig() (string, error) {
	extra := map[string]any{}
	if e.options.Lease > 0 {
		extra["kv_lease_duration"] = int(e.options.Lease / time.Second)
	}
	policy := e.options.Policy
	if policy == "" {
		policy = Fail
	}
	b, err := json.Marshal(map[string]any{"kv_connector": "NixlConnector", "kv_role": e.options.Role, "kv_buffer_device": "cpu",
		"kv_load_failure_policy": policy, "kv_connector_extra_config": extra})
	if err != nil {
		return "", fmt.Errorf("writing the transfer configuration of %s: %w", e.options.Name, err)
	}
	return string(b), nil
}

// environment restricts an engine to this machine and to few of its resources.
func (e *Engine) environment() []string {
	return []string{
		"PYTHONPATH=" + e.tools.site,
		"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1",
		"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1", "TOKENIZERS_PARALLELISM=false",
		"TORCH_COMPILE_DISABLE=1", // the first log probabilities would take half a minute
		"VLLM_HOST_IP=" + loopback, "VLLM_NIXL_SIDE_CHANNEL_HOST=" + loopback, "VLLM_NIXL_SIDE_CHANNEL_PORT=" + strconv.Itoa(e.side),
		"UCX_TLS=tcp", "UCX_NET_DEVICES=lo", // not through shared memory, which pods do not have
	}
}

func (e *Engine) healthy(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.Address()+"/health", nil)
	if err != nil {
		return err
	}
	answer, err := e.client.Do(request)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// Address returns the host:port of its API, which a restart does not change.
func (e *Engine) Address() string { return net.JoinHostPort(loopback, strconv.Itoa(e.port)) }

// Output returns its last lines.
func (e *Engine) Output() []string { return e.current().Output() }

// Exited reports whether it has ended, for whatever reason.
func (e *Engine) Exited() bool {
	select {
	case <-e.current().Done():
		return true
	default:
		return false
	}
}

func (e *Engine) current() *stack.Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.process
}

// Restart kills it if it runs, and starts it again at the same address, with a new engine id and an empty cache.
func (e *Engine) Restart(ctx context.Context) error {
	if err := e.Kill(); err != nil {
		return err
	}
	return e.run(ctx)
}
