package up

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/stack"
)

// Summary is what the command does, for help pages.
const Summary = "run a whole P/D stack on this machine until Ctrl-C"

// settings are the flags.
type settings struct {
	Stack   stackFlags   `group:"Stack"`
	Engines engineFlags  `group:"Your own engines"`
	Sims    simFlags     `group:"Simulated engines, unless you use your own"`
	Program programFlags `group:"Programs"`
	Log     logFlags     `group:"Logs"`
}

type stackFlags struct {
	Listen    string `flag:"listen" arg:"IP:PORT" help:"address that clients connect to; port 0 takes any free one"`
	Engine    string `flag:"engine" enum:"vllm,sglang,trtllm" help:"what the engines are, or simulate: it decides how they hand over"`
	Threshold int    `flag:"threshold" arg:"TOKENS" help:"number of prompt tokens not cached on the decode engine from which a prompt is prefilled remotely; 0: none is"`
	Config    string `flag:"picker-config" arg:"FILE" help:"EndpointPickerConfig instead of the default with --threshold"`
	Shadow    string `flag:"shadow-config" arg:"FILE" help:"EndpointPickerConfig that decides about the same requests without effect: tandem shadow shows what it would do"`
	Capture   string `flag:"capture" arg:"FILE" help:"write what the picker is asked and decides, for tandem replay; no prompts are in it"`
	Envoy     bool   `flag:"envoy" help:"require the real Envoy. Default: Envoy if one is found (ENVOY_BIN, .tools/envoy, PATH), else the embedded gateway"`
	Transport string `flag:"transport" enum:"tcp,nixl" help:"how KV moves between simulated engines: Tandem's own TCP, or the real NIXL library; with nixl, sidecars also renew and release hand-offs of your own engines. nixl needs the programs of make nixl"`
	Library   string `flag:"nixl-library" arg:"PATH" help:"libnixl_capi.so, or its folder, for --transport nixl. Default: TANDEM_NIXL_LIB, else .tools/nixl of the checkout, else the library of the loader or a Python environment"`
	OTLP      string `flag:"otlp" arg:"HOST:PORT" help:"OTLP/gRPC collector of spans. Default: from the OTEL_* variables, if set"`
}

type engineFlags struct {
	Prefill []string `flag:"prefill-engine" arg:"HOST:PORT[,…]" help:"prefill engines that run already"`
	Decode  []string `flag:"decode-engine" arg:"HOST:PORT[,…]" help:"decode engines that run already; a sidecar is started for each"`
	Plain   []string `flag:"plain-engine" arg:"HOST:PORT[,…]" help:"plain engines of SGLang that run already, which compute whole requests: those that stay local"`
	KeyFile string   `flag:"engine-api-key-file" arg:"FILE" help:"file with the API key of these engines (vLLM: --api-key), to ask them for their model. Clients send the key themselves"`
}

type simFlags struct {
	Prefill   int    `flag:"prefill" help:"prefill engines; 0: every prompt is prefilled by its decode engine"`
	Decode    int    `flag:"decode" help:"decode engines"`
	Plain     int    `flag:"plain" help:"plain engines of SGLang, which compute whole requests: those that stay local"`
	ModelFile string `flag:"model-file" arg:"FILE" help:"model of the simulator, sizes and speeds (YAML or JSON). Default: a tiny one"`
}

type programFlags struct {
	BinDir string `flag:"bin-dir" arg:"DIR" help:"folder with the programs epp, keeper, sidecar, sim and tandem, and nixl/. Default: the folder of this program"`
}

type logFlags struct {
	Dir   string        `flag:"log-dir" arg:"DIR" help:"folder for the output of all programs, one file each. Default: a new folder for temporary files, which is removed at the end unless the stack has failed"`
	Level boot.LogLevel `flag:"log-level" arg:"LEVEL" help:"least severe message that the programs log: debug, info, warn, error"`
}

// defaultThreshold shows both decisions with prompts that fit into a terminal. For real engines, see the picker's default
// configuration.
const defaultThreshold = 256

// maxSimulated is the largest number of simulated engines of each kind: each is a process.
const maxSimulated = 64

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	_, err := netip.ParseAddrPort(s.Stack.Listen)
	p.Require(err == nil, "listen", "%q is not IP:PORT", s.Stack.Listen)
	p.Require(s.Stack.Threshold >= 0, "threshold", "must not be negative")
	if s.Stack.OTLP != "" {
		p.RequireAddress("otlp", s.Stack.OTLP)
	}
	p.Require(s.Stack.Library == "" || s.Stack.Transport == stack.TransportNIXL,
		"nixl-library", "has no effect with --transport %s: leave it out", s.Stack.Transport)
	p.Require(s.Stack.Engine == stack.EngineVLLM || s.Stack.Transport != stack.TransportNIXL,
		"transport", "nixl is for vLLM's protocol: leave it out with --engine %s", s.Stack.Engine)
	for _, own := range []struct {
		flag    string
		engines []string
	}{{"prefill-engine", s.Engines.Prefill}, {"decode-engine", s.Engines.Decode}, {"plain-engine", s.Engines.Plain}} {
		for _, engine := range own.engines {
			p.RequireAddress(own.flag, engine)
		}
	}
	_, err = s.Engines.key()
	p.Require(err == nil, "engine-api-key-file", "%w", err)
	p.Require(s.Engines.KeyFile == "" || s.Engines.any(), "engine-api-key-file", "is for your own engines: simulated ones need no key")
	p.Require(len(s.Engines.Prefill) == 0 || len(s.Engines.Decode) > 0, "decode-engine", "prefill engines need at least one decode engine")
	p.Require(len(s.Engines.Plain) == 0 || s.Stack.Engine == stack.EngineSGLang, "plain-engine", onlySGLang)
	p.Require(s.Sims.Prefill >= 0 && s.Sims.Prefill <= maxSimulated, "prefill", "want 0 to %d", maxSimulated)
	p.Require(s.Sims.Decode >= 1 && s.Sims.Decode <= maxSimulated, "decode", "want 1 to %d", maxSimulated)
	p.Require(s.Sims.Plain >= 0 && s.Sims.Plain <= maxSimulated, "plain", "want 0 to %d", maxSimulated)
	p.Require(s.Sims.Plain == 0 || s.Stack.Engine == stack.EngineSGLang, "plain", onlySGLang)
	if s.Sims.ModelFile != "" {
		err := checkModel(s.Sims.ModelFile)
		p.Require(err == nil, "model-file", "%w", err)
	}
}

// onlySGLang says why a flag is refused.
const onlySGLang = "is for --engine sglang: engines of vLLM compute whole requests anyway"

// any reports whether the engines run already.
func (e *engineFlags) any() bool { return len(e.Prefill)+len(e.Decode)+len(e.Plain) > 0 }

// key returns the API key of the user's engines, or "" for none.
func (e *engineFlags) key() (string, error) {
	if e.KeyFile == "" {
		return "", nil
	}
	data, err := os.ReadFile(e.KeyFile)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(data))
	if key == "" {
		return "", fmt.Errorf("%s is empty", e.KeyFile)
	}
	return key, nil
}

func checkModel(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	_, err = model.Parse(data)
	return err
}

// keeps reports whether sidecars notify prefill engines themselves. Engines that the user started can be notified only over
// NIXL. SGLang's and TensorRT-LLM's take no notices.
func (s *settings) keeps() bool {
	if s.Stack.Engine != stack.EngineVLLM {
		return false
	}
	return !s.Engines.any() || s.Stack.Transport == stack.TransportNIXL
}

func (s *settings) options() (stack.PDOptions, error) {
	o := stack.PDOptions{
		Dir: s.Program.BinDir, Listen: s.Stack.Listen, Threshold: s.Stack.Threshold, Config: s.Stack.Config, Shadow: s.Stack.Shadow, OTLP: s.Stack.OTLP, Capture: s.Stack.Capture,
		Engine: s.Stack.Engine, Transport: s.Stack.Transport, Library: s.Stack.Library, Keeper: s.keeps(),
		PrefillEngines: s.Engines.Prefill, DecodeEngines: s.Engines.Decode, PlainEngines: s.Engines.Plain, Prefill: s.Sims.Prefill, Decode: s.Sims.Decode, Plain: s.Sims.Plain,
	}
	if s.Stack.Envoy {
		o.Proxy = stack.ProxyEnvoy
	}
	if s.Sims.ModelFile != "" {
		o.SimFlags = []string{"--model-file=" + s.Sims.ModelFile}
	}
	level, err := s.Log.Level.MarshalText()
	if err != nil {
		return o, err
	}
	o.LogLevel = string(level)
	o.EngineKey, err = s.Engines.key()
	return o, err
}

// Run runs the command. The error is an Exit with CodeMissing if a part of the stack is missing.
func Run(ctx context.Context, std boot.IO, args []string) error {
	s := settings{Stack: stackFlags{Listen: "127.0.0.1:8080", Engine: stack.EngineVLLM, Threshold: defaultThreshold, Transport: stack.TransportTCP}, Sims: simFlags{Prefill: 2, Decode: 2}}
	if _, err := (boot.Program{Summary: "up: " + Summary + "."}).Load(std, &s, args); err != nil {
		return err
	}
	if s.Program.BinDir == "" {
		self, err := os.Executable()
		if err != nil {
			return boot.Missingf("finding the folder of this program: %w (set one with --bin-dir)", err)
		}
		s.Program.BinDir = filepath.Dir(self)
	}
	logs, err := s.Log.open()
	if err != nil {
		return err
	}
	group, alive := stack.NewGroup(ctx)
	err = s.run(ctx, alive, group, std, logs.dir)
	if ctx.Err() != nil {
		err = nil // a signal ended it
	}
	return logs.close(errors.Join(err, group.Stop()))
}

// run starts the stack and waits until a program has ended by itself, or ctx has ended.
func (s *settings) run(ctx, alive context.Context, group *stack.Group, std boot.IO, logs string) error {
	o, err := s.options()
	if err != nil {
		return boot.Configf("engine-api-key-file: %w", err)
	}
	o.LogDir = logs
	o.Restarted = func(event string) { fmt.Fprintln(std.Stderr, event) }
	pd, err := stack.StartPD(alive, group, o)
	if err != nil {
		return startError(err)
	}
	if err := announce(std.Stdout, pd); err != nil {
		return err
	}
	if err := s.describe(std.Stderr, pd, logs); err != nil {
		return fmt.Errorf("printing the addresses: %w", err)
	}
	<-alive.Done()
	if ctx.Err() != nil {
		_, err := fmt.Fprintln(std.Stderr, "\nending")
		return err
	}
	return fmt.Errorf("running the stack: %w", context.Cause(alive))
}

// startError makes an Exit with CodeMissing if a part is missing, rather than a program has failed.
func startError(err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return boot.Missingf("%w (choose another with --listen, or 0 as port for any free one)", err)
	case errors.Is(err, stack.ErrUnauthorized):
		return boot.Missingf("%w (name a file with the engines' API key by --engine-api-key-file)", err)
	case isExit(err):
		return err
	}
	return boot.Missingf("%w", err)
}

func isExit(err error) bool {
	_, ok := errors.AsType[*stack.ExitError](err)
	return ok
}
