package sglang

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/e2e/realengine"
)

// Role is an engine's side of a hand-off.
type Role string

// The roles, with SGLang's names. A plain engine has no hand-offs.
const (
	Plain   Role = "null"
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

const (
	pageSize   = 16 // tokens
	poolTokens = 1024 * pageSize
)

// Options are the differences from a usual engine.
type Options struct {
	Name string // in messages
	Role Role   // "": Plain
	// Patience is how long a leg waits at its engine for the other leg, in whole seconds; 0: 300 s. SGLang has a name for it
	// on each side: bootstrap and waiting time-out.
	Patience time.Duration
	// Heartbeat is the time between two looks of a decode engine at a prefill engine; 0: 5 s. The second in a row that fails
	// makes decode forget the prefill engine.
	Heartbeat time.Duration
	// Ranks is how many data-parallel ranks it has, each of which takes another two processes; 0: 1.
	Ranks int
	Cores string   // processors that it may use, as taskset takes them; "": all
	Args  []string // further flags of SGLang's server
}

// Engine is a running engine.
type Engine struct {
	*realengine.Engine

	// Bootstrap is the port at which decode engines ask a prefill engine for its ranks.
	Bootstrap int
}

// Start runs an engine on free ports of loopback and returns when it accepts requests. ctx bounds only the start; Stop ends
// the engine.
func Start(ctx context.Context, o Options) (*Engine, error) {
	tools, err := realengine.Find("sglang")
	if err != nil {
		return nil, err
	}
	ports, err := realengine.FreePorts(ctx, 2)
	if err != nil {
		return nil, err
	}
	args := append([]string{"-m", "sglang.launch_server", "--model-path=" + tools.Model, "--served-model-name=" + realengine.Model,
		"--host=" + realengine.Loopback, "--port=" + strconv.Itoa(ports[0])}, o.args(ports[1])...)
	e, err := realengine.Start(ctx, realengine.Command{Name: o.Name, Port: ports[0], Path: tools.Python, Args: args,
		Env: o.environment(tools.Site), Cores: o.Cores})
	if err != nil {
		return nil, err
	}
	return &Engine{e, ports[1]}, nil
}

// args returns the flags of SGLang's server that do not depend on the machine.
func (o Options) args(bootstrap int) []string {
	args := []string{"--device=cpu", "--dtype=float32", "--attention-backend=torch_native", "--sampling-backend=pytorch",
		"--context-length=4096", "--page-size=" + strconv.Itoa(pageSize), "--max-total-tokens=" + strconv.Itoa(poolTokens),
		"--max-running-requests=64", "--enable-metrics", "--enable-cache-report", "--log-level-http=warning",
		"--sleep-on-idle"} // schedulers without requests would take all processors
	if o.Ranks > 1 {
		args = append(args, "--dp-size="+strconv.Itoa(o.Ranks))
	}
	switch o.Role {
	case Prefill:
		args = append(args, "--disaggregation-bootstrap-port="+strconv.Itoa(bootstrap))
	case Decode:
		// Where it puts the KV cache of a request that it takes back: by default into memory that only a GPU has.
		args = append(args, "--disaggregation-decode-retraction-backup=cpu_tensor")
	}
	if o.Role == Prefill || o.Role == Decode {
		args = append(args, "--disaggregation-mode="+string(o.Role), "--disaggregation-transfer-backend=nixl")
	}
	return append(args, o.Args...)
}

// environment restricts an engine to this machine and to few of its resources.
func (o Options) environment(site string) []string {
	seconds := func(d, usual time.Duration) string { return strconv.Itoa(int(cmp.Or(d, usual) / time.Second)) }
	env := []string{
		"PYTHONPATH=" + site,
		"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "DO_NOT_TRACK=1", "OMP_NUM_THREADS=1", "TOKENIZERS_PARALLELISM=false",
		"SGLANG_USE_CPU_ENGINE=1", "SGLANG_HOST_IP=" + realengine.Loopback, "SGLANG_LOCAL_IP_NIC=lo",
		"UCX_TLS=tcp", "UCX_NET_DEVICES=lo", // not through shared memory, which pods do not have
		"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=" + seconds(o.Patience, 300*time.Second),
		"SGLANG_DISAGGREGATION_WAITING_TIMEOUT=" + seconds(o.Patience, 300*time.Second),
		"SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL=" + seconds(o.Heartbeat, 5*time.Second),
		"SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1",
		"SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS=0", // else it accepts and does not answer for a minute
	}
	if o.Ranks > 1 { // each rank has its processor, which SGLang asks for
		cores := "0"
		for rank := 1; rank < o.Ranks; rank++ {
			cores += "|" + strconv.Itoa(rank)
		}
		env = append(env, "SGLANG_CPU_OMP_THREADS_BIND="+cores)
	}
	return env
}
