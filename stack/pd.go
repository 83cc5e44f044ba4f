package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/tandem-serving/tandem/stack/envoy"
)

// The proxies of PDOptions.Proxy.
const (
	ProxyEnvoy   = "envoy"
	ProxyGateway = "gateway"
)

// The engines of PDOptions.Engine.
const (
	EngineVLLM   = "vllm"
	EngineSGLang = "sglang"
	EngineTRTLLM = "trtllm"
)

// engineKind is by what the parts of a stack know the engines.
type engineKind struct {
	connector string // the sidecar's --kv-connector
	label     string // of the endpoints, llm-d.ai/engine-type
	owner     string // of the models, in /v1/models
}

var engineKinds = map[string]engineKind{
	EngineVLLM:   {"nixlv2", "vllm", "vllm"},
	EngineSGLang: {"sglang", "sglang", "sglang"},
	EngineTRTLLM: {"trtllm", "trtllm-serve", "tensorrt_llm"},
}

// PDOptions describe a P/D stack.
type PDOptions struct {
	// Dir is the folder with the programs epp, sidecar, sim, keeper and tandem, and with those that speak NIXL in NIXLDir.
	// Programs that the stack does not use may be missing.
	Dir string
	// Prefill and Decode are how many engines are simulated, unless engines run already. Plain is how many engines of SGLang are
	// simulated too that take part in no hand-off, and compute whole requests.
	Prefill, Decode, Plain int
	// PrefillEngines, DecodeEngines and PlainEngines, host:port, already run and are used as they are. If there are any, none are simulated.
	PrefillEngines, DecodeEngines, PlainEngines []string
	// Engine is EngineVLLM, which is the default, EngineSGLang or EngineTRTLLM: what the engines are, or simulate. Simulated SGLang
	// engines compute prompts in decode only if there is no prefill engine, as real ones. Those of TensorRT-LLM hand off context first.
	Engine string
	// Threshold is how many uncached tokens a prompt needs for remote prefill; 0: no prompt gets it.
	Threshold int
	// Config is a file with an EndpointPickerConfig; "": the picker's default with Threshold.
	Config string
	// Shadow is a file with an EndpointPickerConfig that decides about the same requests without effect; "": none.
	Shadow string
	// Capture is a file for what the picker is asked and decides; "": none.
	Capture string
	// Proxy is ProxyEnvoy, ProxyGateway, or "": Envoy if this machine has one, otherwise the gateway.
	Proxy string
	// Listen is the ip:port of the proxy; "": any free port of loopback.
	Listen string
	// Transport says how KV moves between simulated engines, and how keepers speak to engines: TransportTCP, which is the
	// default, or TransportNIXL, which real engines speak.
	Transport string
	// Library is the path of the NIXL library, or of its folder, for TransportNIXL; "": NIXLLibrary.
	Library string
	// Keeper gives each sidecar a keeper (a NIXL agent process), so that it can hold and release hand-offs itself.
	Keeper bool
	// SimFlags are added to the flags of every simulated engine.
	SimFlags []string
	// OTLP is the host:port of a collector for spans; "": the one that OTEL_* variables name, if any.
	OTLP string
	// EngineKey is the API key of the engines that already run; "": they need none.
	EngineKey string
	// LogDir is an existing folder for the output of each program, in a file with its name (function LogFile); "": none.
	LogDir string
	// LogLevel is the level of the programs' logs, debug, info, warn or error; "": their default.
	LogLevel string
	// Restarted, if not nil, makes every program but Envoy a Service, and is told of its ends and starts.
	Restarted func(event string)
}

// PD is a running P/D stack. All addresses are host:port.
type PD struct {
	Model      string // all engines serve it
	Proxy      string // where clients connect to
	ProxyName  string // "Envoy 1.40.0" or "embedded gateway"
	ProxyAdmin string // Envoy's admin pages; "" for the gateway
	EPP        EPPAddrs
	Prefill    []Pod
	Decode     []Pod
	Plain      []Pod
}

// generating returns the pods that answer clients. Each has a sidecar.
func (p *PD) generating() []*Pod {
	var all []*Pod
	for _, pods := range [][]Pod{p.Decode, p.Plain} {
		for i := range pods {
			all = append(all, &pods[i])
		}
	}
	return all
}

// EPPAddrs are the ports of the endpoint picker.
type EPPAddrs struct{ ExtProc, Health, Metrics, Admin string }

// Pod is one engine and, unless it only prefills, its sidecar.
type Pod struct {
	Name           string // such as prefill-0: in the endpoints file and, if it is simulated, in its group
	Address        string // of the sidecar if there is one, otherwise of the engine
	Engine         string
	EngineAdmin    string // of a simulated engine; otherwise ""
	SideChannel    string // of a simulated engine; otherwise ""
	SidecarMetrics string // "" for prefill, like the next field
	SidecarAdmin   string
}

// StartPD starts a whole stack in a group: engines (or checks those that already run), a sidecar for each decode engine, the
// endpoint picker, and a proxy. ctx is the group's. Everything runs until g.Stop, also what was started before an error. An
// error is one sentence for the person who chose the options.
func StartPD(ctx context.Context, g *Group, o PDOptions) (*PD, error) {
	a := assembly{PDOptions: o, group: g}
	for _, step := range []func(context.Context) error{
		a.check, a.startEngines, a.findModel, a.startSidecars, a.startPicker, a.startProxy, a.awaitKeepers,
	} {
		err := step(ctx)
		if err != nil && ctx.Err() != nil {
			return nil, context.Cause(ctx) // if a program has died, its error is the cause of all others
		}
		if err != nil {
			return nil, err
		}
	}
	return &a.pd, nil
}

// assembly is a stack while StartPD starts it.
type assembly struct {
	PDOptions
	group *Group
	pd    PD
}

// foreign reports whether the engines already run.
func (a *assembly) foreign() bool {
	return len(a.PrefillEngines)+len(a.DecodeEngines)+len(a.PlainEngines) > 0
}

// check sets defaults, and checks what it can before it starts a program.
func (a *assembly) check(ctx context.Context) error {
	decode := a.Decode + a.Plain
	if a.foreign() {
		decode = len(a.DecodeEngines) + len(a.PlainEngines)
	}
	if decode == 0 {
		return errors.New("there is no decode engine: it takes at least one, and prefill engines beside it to prefill remotely")
	}
	switch a.Engine {
	case "":
		a.Engine = EngineVLLM
	case EngineVLLM:
	case EngineSGLang, EngineTRTLLM:
		if a.Keeper || a.Transport == TransportNIXL {
			return fmt.Errorf("NIXL agent processes are for vLLM's protocol: leave them out with the engine %s", a.Engine)
		}
	default:
		return fmt.Errorf("%q is not an engine: want %s, %s or %s", a.Engine, EngineVLLM, EngineSGLang, EngineTRTLLM)
	}
	if a.Plain+len(a.PlainEngines) > 0 && a.Engine != EngineSGLang {
		return errors.New("plain engines are SGLang's: those of vLLM compute whole requests and take part in hand-offs too")
	}
	if err := a.chooseProxy(); err != nil {
		return err
	}
	if err := a.findPrograms(); err != nil {
		return err
	}
	if err := a.checkTransport(ctx); err != nil {
		return err
	}
	return a.checkPort(ctx)
}

func (a *assembly) chooseProxy() error {
	switch a.Proxy {
	case ProxyGateway:
		return nil
	case ProxyEnvoy, "":
	default:
		return fmt.Errorf("%q is not a proxy: want %s or %s", a.Proxy, ProxyEnvoy, ProxyGateway)
	}
	_, err := envoy.Find()
	if a.Proxy == "" && errors.Is(err, envoy.ErrNone) {
		a.Proxy = ProxyGateway
		return nil
	}
	a.Proxy = ProxyEnvoy
	return err
}

func (a *assembly) findPrograms() error {
	programs := []string{"epp", "sidecar"}
	if a.Transport != TransportNIXL { // checkTransport checks those that speak NIXL
		if !a.foreign() {
			programs = append(programs, "sim")
		}
		if a.Keeper {
			programs = append(programs, "keeper")
		}
	}
	if a.Proxy == ProxyGateway {
		programs = append(programs, "tandem")
	}
	for _, program := range programs {
		if _, err := os.Stat(filepath.Join(a.Dir, program)); err != nil {
			return fmt.Errorf("finding the programs of the stack: %w (make build builds them into bin)", err)
		}
	}
	return nil
}

// checkPort checks that the proxy can listen. Two Envoys would share a port without an error, and each would get some of the
// clients.
func (a *assembly) checkPort(ctx context.Context) error {
	if a.Listen == "" {
		a.Listen = "127.0.0.1:0"
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", a.Listen)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", a.Listen, rootCause(err))
	}
	return l.Close()
}

func (a *assembly) startEngines(ctx context.Context) (err error) {
	if a.foreign() {
		return a.findEngines(ctx)
	}
	if a.pd.Prefill, err = a.simulate(ctx, "prefill", a.Prefill); err != nil {
		return err
	}
	if a.pd.Decode, err = a.simulate(ctx, "decode", a.Decode); err != nil {
		return err
	}
	a.pd.Plain, err = a.simulate(ctx, plain, a.Plain)
	return err
}

// plain names what plain engines have instead of a role.
const plain = "plain"

func (a *assembly) simulate(ctx context.Context, role string, n int) ([]Pod, error) {
	pods := make([]Pod, n)
	for i := range pods {
		pod := &pods[i]
		pod.Name = role + "-" + strconv.Itoa(i)
		wanted := map[string]*string{"http": &pod.Engine, "admin": &pod.EngineAdmin}
		flags := []string{"--role=" + role}
		switch a.Engine {
		case EngineSGLang:
			flags = a.sglangFlags(role)
		case EngineTRTLLM:
			flags = append(flags, "--engine="+a.Engine)
		default:
			wanted["sidechannel"] = &pod.SideChannel
		}
		err := a.start(ctx, a.sim(pod.Name, append(flags, a.SimFlags...)...), wanted)
		if err != nil {
			return nil, err
		}
		pod.Address = pod.Engine
	}
	return pods, nil
}

// sglangFlags are those of a simulated SGLang engine. Without a prefill engine, those of decode compute prompts too.
func (a *assembly) sglangFlags(role string) []string {
	mode := role
	if a.Prefill == 0 || role == plain {
		mode = "null"
	}
	// An engine that dies is started again within milliseconds, so that decode does not notice, and forgets where it was only after
	// these time-outs (SGLang's own are 5 minutes).
	return []string{"--engine=sglang", "--disaggregation-mode=" + mode, "--disaggregation-bootstrap-port=0",
		"--disaggregation-waiting-timeout=20s", "--disaggregation-bootstrap-timeout=20s"}
}

// sim returns a simulated engine with the transport of the stack.
func (a *assembly) sim(name string, flags ...string) Program {
	dir := a.Dir
	if a.Transport == TransportNIXL {
		dir = NIXLDir(dir)
	}
	program := Sim(dir, name, append(flags, SimTransport(a.Transport, a.Library)...)...)
	program.Env = a.transportEnv()
	return program
}

// startSidecars starts a sidecar for each engine that answers clients. It may send prefill legs to loopback, where simulated engines are, and
// to the prefill engines of the options.
func (a *assembly) startSidecars(ctx context.Context) error {
	flags := []string{"--tell-pods", "--kv-connector=" + engineKinds[a.Engine].connector} // its clients are on this machine
	for _, pod := range a.pd.Prefill {
		flags = append(flags, "--prefill-allow="+pod.Engine)
	}
	if a.Keeper {
		flags = append(flags, KeeperFlags(a.Dir, a.Transport, a.Library)...)
	}
	for _, pod := range a.pd.generating() {
		program, err := Sidecar(a.Dir, pod.Engine, flags...)
		if err != nil {
			return err
		}
		program.Name, program.Env = pod.sidecar(), slices.Concat(a.telemetry(), a.transportEnv())
		err = a.start(ctx, program, map[string]*string{"http": &pod.Address, "metrics": &pod.SidecarMetrics, "admin": &pod.SidecarAdmin})
		if err != nil {
			return err
		}
	}
	return nil
}

// startPicker starts the picker without TLS: only processes on this machine can read its traffic.
func (a *assembly) startPicker(ctx context.Context) error {
	config, endpoints, err := a.writeFiles()
	if err != nil {
		return err
	}
	flags := []string{"--secure-serving=false", "--config-file=" + config, "--endpoints-file=" + endpoints}
	if a.Shadow != "" {
		flags = append(flags, "--shadow-config="+a.Shadow)
	}
	if a.Capture != "" {
		flags = append(flags, "--capture="+a.Capture)
	}
	program := EPP(a.Dir, flags...)
	program.Env = a.telemetry()
	e := &a.pd.EPP
	return a.start(ctx, program, map[string]*string{"extproc": &e.ExtProc, "health": &e.Health, "metrics": &e.Metrics, "admin": &e.Admin})
}

// telemetry returns the environment that tells a program where to send its spans.
func (a *assembly) telemetry() []string {
	if a.OTLP == "" {
		return nil
	}
	return []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://" + a.OTLP}
}

// start starts a program of the stack, with its log and, if the options say so, as a Service, and sets its addresses by purpose.
func (a *assembly) start(ctx context.Context, program Program, wanted map[string]*string) (err error) {
	if program.Log, err = a.log(program.Name); err != nil {
		return err
	}
	if a.LogLevel != "" {
		program.Args = append(program.Args, "--log-level="+a.LogLevel)
	}
	var p *Process
	if a.Restarted == nil {
		p, err = a.group.Start(ctx, program)
	} else {
		var s *Service
		if s, err = StartService(ctx, program, a.Restarted); err == nil {
			p, err = s.Process(), a.group.Add(s)
		}
	}
	if err != nil {
		return err
	}
	for purpose, to := range wanted {
		if *to, err = p.Address(purpose); err != nil {
			return err
		}
	}
	return nil
}
