package vllm

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/e2e/realengine"
)

// Role is an engine's side of a hand-off.
type Role string

// The roles, with vLLM's names. A plain engine has no hand-offs.
const (
	Plain   Role = ""
	Prefill Role = "kv_producer"
	Decode  Role = "kv_consumer"
)

// EncoderRole is an engine's side of an exchange of encodings of images.
type EncoderRole string

// The roles, with vLLM's names. An encoder generates nothing.
const (
	Encoder        EncoderRole = "ec_producer"
	EncodingReader EncoderRole = "ec_consumer"
)

// Policy is what a decode engine does with a request whose KV cache cannot be loaded.
type Policy string

// The policies, with vLLM's names. Fail is its default.
const (
	Fail      Policy = "fail"
	Recompute Policy = "recompute"
)

// Connector is how KV caches move.
type Connector string

// The connectors, with vLLM's names.
const (
	NIXL     Connector = "NixlConnector"
	Push     Connector = "NixlPushConnector"
	Files    Connector = "ExampleConnector"
	Mooncake Connector = "MooncakeConnector"
	Multi    Connector = "MultiConnector" // NIXL, then Second
	// Offloading copies blocks to CPU memory, from which peers fetch them.
	Offloading Connector = "OffloadingConnector"
)

// Options are the differences from a usual engine.
type Options struct {
	Name      string // in messages
	Role      Role
	Connector Connector // of an engine that is not plain; "": NIXL
	Second    Connector // of an engine with Multi; "": Files
	// Store is the folder that the engines of a pair share, for files of KV caches or of encodings.
	Store string
	// Model is the folder of the model; "": the tests' model.
	Model string
	// Vision serves a model that sees, with at most four images a request.
	Vision bool
	// Encodings exchanges encodings as files, by ECExampleConnector; "": not.
	Encodings EncoderRole
	// SidePort is where a prefill engine tells decode engines how it is reached: its NIXL side channel, Mooncake's bootstrap
	// server, or the peer-to-peer tier of either engine. 0: a free port.
	SidePort int
	// Tier is where the peer-to-peer tier of Offloading listens; zero: at SidePort of loopback.
	Tier netip.AddrPort
	// Abort is how long Mooncake's legs wait for each other, in whole seconds; 0: 480 s.
	Abort time.Duration
	// Lease is how long a prefill engine keeps a hand-off without heartbeats, in whole seconds; 0: 30 s. Decode engines need
	// the same value, since they renew it six times as often.
	Lease time.Duration
	// Bidirectional has a prefill engine read back from decode engines.
	Bidirectional bool
	Policy        Policy // of a decode engine; "": Fail
	// MaxRunning is how many requests run at once; 0: 128. The others wait.
	MaxRunning int
	Cores      string   // processors that it may use, as taskset takes them; "": all
	Args       []string // further flags of `vllm serve`
}

// Start runs an engine on free ports of loopback and returns when it accepts requests. ctx bounds only the start; Stop ends
// the engine.
func Start(ctx context.Context, o Options) (*realengine.Engine, error) {
	tools, err := realengine.Find("vllm")
	if err != nil {
		return nil, err
	}
	ports, err := realengine.FreePorts(ctx, 2)
	if err != nil {
		return nil, err
	}
	o.SidePort = cmp.Or(o.SidePort, ports[1])
	env, err := o.environment(tools.Site, o.SidePort)
	if err != nil {
		return nil, err
	}
	args, err := o.args()
	if err != nil {
		return nil, err
	}
	tools.Model = cmp.Or(o.Model, tools.Model)
	if o.Vision {
		if tools.Model, err = realengine.FindPart("visionmodel"); err != nil {
			return nil, err
		}
	}
	args = append([]string{"-m", "vllm.entrypoints.cli.main", "serve", tools.Model, "--served-model-name=" + realengine.Model,
		"--host=" + realengine.Loopback, "--port=" + strconv.Itoa(ports[0])}, args...)
	return realengine.Start(ctx, realengine.Command{Name: o.Name, Port: ports[0], Path: tools.Python, Args: args,
		Env: env, Cores: o.Cores})
}

// args returns the flags of `vllm serve` that do not depend on the machine.
func (o Options) args() ([]string, error) {
	args := []string{"--disable-uvicorn-access-log", "--dtype=float32", "--enforce-eager", "--max-model-len=4096",
		"--block-size=32", "--num-gpu-blocks-override=512", // the smallest block size of vLLM's attention on CPUs
		"--enable-prompt-tokens-details"}
	if o.MaxRunning > 0 {
		args = append(args, "--max-num-seqs="+strconv.Itoa(o.MaxRunning))
	}
	if o.Role != Plain {
		transfer, err := o.transferConfig()
		if err != nil {
			return nil, err
		}
		args = append(args, "--kv-transfer-config="+transfer)
		if o.Connector == Files || o.Connector == Multi { // which know one kind of cache only
			args = append(args, "--disable-hybrid-kv-cache-manager")
		}
	}
	if o.Vision {
		args = append(args, `--limit-mm-per-prompt={"image":4,"video":0}`)
	}
	if o.Encodings != "" {
		config, err := json.Marshal(map[string]any{"ec_connector": "ECExampleConnector", "ec_role": o.Encodings,
			"ec_connector_extra_config": map[string]any{"shared_storage_path": o.Store}})
		if err != nil {
			return nil, fmt.Errorf("writing the encoder configuration of %s: %w", o.Name, err)
		}
		args = append(args, "--ec-transfer-config="+string(config))
	}
	return append(args, o.Args...), nil
}

// transferConfig returns vLLM's configuration of hand-offs.
func (o Options) transferConfig() (string, error) {
	config := o.connectorConfig(cmp.Or(o.Connector, NIXL))
	config["kv_load_failure_policy"] = cmp.Or(o.Policy, Fail)
	b, err := json.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("writing the transfer configuration of %s: %w", o.Name, err)
	}
	return string(b), nil
}

// connectorConfig returns the configuration of one connector.
func (o Options) connectorConfig(c Connector) map[string]any {
	extra := map[string]any{}
	config := map[string]any{"kv_connector": c, "kv_role": o.Role, "kv_connector_extra_config": extra}
	switch c {
	case NIXL, Push:
		config["kv_buffer_device"] = "cpu"
		if o.Lease > 0 {
			extra["kv_lease_duration"] = int(o.Lease / time.Second)
		}
		if o.Bidirectional && o.Role == Prefill {
			extra["bidirectional_kv_xfer"] = true
		}
	case Files:
		config["kv_role"] = "kv_both"
		extra["shared_storage_path"] = o.Store
	case Mooncake:
		extra["mooncake_protocol"] = "tcp"
	case Offloading:
		config["kv_role"] = "kv_both"
		extra["spec_name"], extra["cpu_bytes_to_use"] = "TieringOffloadingSpec", 64<<20
		host, port := realengine.Loopback, o.SidePort
		if o.Tier.IsValid() {
			host, port = o.Tier.Addr().String(), int(o.Tier.Port())
		}
		extra["secondary_tiers"] = []any{map[string]any{"type": "p2p", "host": host, "port": port}}
	case Multi:
		config["kv_role"] = "kv_both"
		extra["connectors"] = []any{o.connectorConfig(NIXL), o.connectorConfig(cmp.Or(o.Second, Files))}
	}
	return config
}

// environment restricts an engine to this machine and to few of its resources.
func (o Options) environment(site string, side int) ([]string, error) {
	env := []string{
		"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1",
		"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1", "TOKENIZERS_PARALLELISM=false",
		"TORCH_COMPILE_DISABLE=1", // the first log probabilities would take half a minute
		"VLLM_HOST_IP=" + realengine.Loopback, "VLLM_NIXL_SIDE_CHANNEL_HOST=" + realengine.Loopback,
		"VLLM_NIXL_SIDE_CHANNEL_PORT=" + strconv.Itoa(side),
		"UCX_TLS=tcp", "UCX_NET_DEVICES=lo", // not through shared memory, which pods do not have
	}
	if o.Vision {
		vision, err := realengine.FindPart("torchvision")
		if err != nil {
			return nil, err
		}
		site += ":" + vision
	}
	if o.Connector != Mooncake {
		return append(env, "PYTHONPATH="+site), nil
	}
	mooncake, err := realengine.FindPart("mooncake")
	if err != nil {
		return nil, err
	}
	return append(env, "PYTHONPATH="+site+":"+filepath.Join(mooncake, "site"), "LD_LIBRARY_PATH="+filepath.Join(mooncake, "lib"), "MC_FORCE_TCP=true",
		"VLLM_MOONCAKE_BOOTSTRAP_PORT="+strconv.Itoa(side),
		"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT="+strconv.Itoa(int(cmp.Or(o.Abort, 480*time.Second)/time.Second))), nil
}
