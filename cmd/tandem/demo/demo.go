package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/stack"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// Summary is what the command does, for help pages.
const Summary = "run a whole P/D stack on this machine and prove that it works"

// settings are the flags.
type settings struct {
	BinDir    string        `flag:"bin-dir" arg:"DIR" help:"folder with the programs epp, keeper, sidecar, sim and tandem, and nixl/. Default: the folder of this program"`
	Engine    string        `flag:"engine" enum:"vllm,sglang,trtllm" help:"what the engines simulate: it decides how they hand over"`
	Proxy     string        `flag:"proxy" enum:"auto,envoy,gateway" help:"the proxy that clients talk to; auto: Envoy if one is found (ENVOY_BIN, .tools/envoy or PATH), else the built-in gateway"`
	Transport string        `flag:"transport" enum:"tcp,nixl" help:"how KV moves between the engines, and how sidecars notify them: Tandem's own TCP, or the real NIXL library (needs programs of make nixl)"`
	Library   string        `flag:"nixl-library" arg:"PATH" help:"libnixl_capi.so, or its folder, for --transport nixl. Default: TANDEM_NIXL_LIB, else .tools/nixl of the checkout, else the library of the loader or a Python environment"`
	Rounds    int           `flag:"rounds" help:"how often each kind of request is sent: the first time alone, then together with others"`
	Pairs     int           `flag:"pairs" help:"how often local prefill is compared with P/D on the same engines, in rounds of some seconds; 0: not at all. Below 6 there is no verdict"`
	Capture   string        `flag:"capture" arg:"FILE" help:"write what the picker is asked and decides, for tandem replay; no prompts are in it"`
	Report    string        `flag:"report" arg:"FILE.html" help:"write the report as a page"`
	JSON      bool          `flag:"json" help:"print the report as JSON instead of text"`
	Timeout   time.Duration `flag:"timeout" help:"longest time of the whole run"`
	Fault     string        `flag:"fault" arg:"FAULT[:ARG]" help:"make the prefill engines fail, to see the checks fail: stale, no-handoff, bad-handoff:foreign, status:500, crash and other faults of the simulator; those of SGLang and TensorRT-LLM have no lease and no hand-off to spoil. Nothing is compared then"`
}

const (
	// maxRounds takes about a quarter of an hour.
	maxRounds = 1000
	// maxPairs takes about ten minutes.
	maxPairs = 100
)

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	p.Require(s.Timeout > 0, "timeout", "%v is not a positive time", s.Timeout)
	p.Require(s.Rounds >= 1 && s.Rounds <= maxRounds, "rounds", "must be from 1 to %d, got %d", maxRounds, s.Rounds)
	p.Require(s.Pairs >= 0 && s.Pairs <= maxPairs, "pairs", "must be from 0 to %d, got %d", maxPairs, s.Pairs)
	p.Require(s.Library == "" || s.Transport == stack.TransportNIXL, "nixl-library", "has no effect with --transport %s: leave it out", s.Transport)
	p.Require(s.engine().keeper || s.Transport == stack.TransportTCP, "transport", "NIXL moves the KV of vLLM's simulated engines only: leave it out with --engine %s", s.Engine)
	kind, _, _ := strings.Cut(s.Fault, ":")
	p.Require(!slices.Contains(s.engine().noFaults, kind), "fault", "engines of %s do not have the fault %s", s.Engine, kind)
	if s.Report != "" { // fail now, not after the run
		_, err := os.Stat(filepath.Dir(s.Report))
		p.Require(err == nil, "report", "the page cannot be written: %w", err)
	}
}

// Run runs the command. The error is an Exit with CodeMissing if a program, the requested proxy or the requested transport
// is missing. If a check fails, the error names it and means CodeFailed.
func Run(ctx context.Context, std boot.IO, args []string) error {
	s := settings{Timeout: 2 * time.Minute, Engine: stack.EngineVLLM, Proxy: "auto", Transport: stack.TransportTCP, Rounds: 8, Pairs: 6}
	if _, err := (boot.Program{Summary: "demo: " + Summary + "."}).Load(std, &s, args); err != nil {
		return err
	}
	if err := s.findPrograms(); err != nil {
		return err
	}
	line := &progress{}
	if !s.JSON && boot.IsTerminal(std.Stdout) {
		line.to = std.Stdout
	}
	data, err := s.perform(ctx, line)
	line.clear()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("running the demo: interrupted, nothing was checked")
	case errors.Is(err, envoy.ErrNone), errors.Is(err, stack.ErrNoNIXL):
		return boot.Missingf("running the demo: %w", err)
	case err != nil:
		return fmt.Errorf("running the demo: %w", err)
	}
	if err := s.write(std.Stdout, data); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return failed(data.Checks)
}

// engine returns the description of the engines.
func (s *settings) engine() *engine { return engines[s.Engine] }

// programs are the programs that the demo starts.
var programs = []string{"sim", "keeper", "sidecar", "epp", "tandem"}

// findPrograms fills in BinDir and checks that it has the programs.
func (s *settings) findPrograms() error {
	if s.BinDir == "" {
		self, err := os.Executable()
		if err != nil {
			return boot.Missingf("finding the folder of this program: %w (set one with --bin-dir)", err)
		}
		s.BinDir = filepath.Dir(self)
	}
	for _, program := range programs {
		if _, err := os.Stat(filepath.Join(s.BinDir, program)); err != nil {
			return boot.Missingf("finding the programs to start: %w (build them with make build, or set their folder with --bin-dir)", err)
		}
	}
	return nil
}

// proxy returns the proxy as stack.PDOptions name it.
func (s *settings) proxy() string {
	if s.Proxy == "auto" {
		return ""
	}
	return s.Proxy
}

// perform starts a stack, sends it the workload and ends it. Then it compares local prefill with P/D, and judges the results.
func (s *settings) perform(ctx context.Context, line *progress) (*report.Data, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Timeout, fmt.Errorf("it took longer than %v (see --timeout)", s.Timeout))
	defer cancel()
	st, alive := newStage(ctx, s.engine())
	var seen evidence
	line.say("starting %s, sidecars, picker and proxy …", s.engine().pool)
	err := st.start(alive, s)
	if err == nil {
		err = st.spoil(alive, s.Fault)
	}
	if err == nil {
		seen, err = st.exercise(alive, workload(s.engine(), s.Rounds), line)
	}
	if err != nil && alive.Err() != nil {
		err = context.Cause(alive) // if a program has died, that is the cause of all other failures
	}
	line.say("ending all programs …")
	seen.ended = st.stop()
	if err != nil {
		return nil, errors.Join(err, seen.ended)
	}
	st.trace(seen.exchanges)
	if s.Pairs > 0 && s.Fault == "" {
		var ended error
		line.say("starting engines for the comparison of local prefill with P/D …")
		if seen.compared, ended, err = compareSides(ctx, s, line); err != nil {
			return nil, fmt.Errorf("comparing local prefill with P/D: %w", errors.Join(err, ended))
		}
		seen.ended = errors.Join(seen.ended, ended)
	}
	return seen.data(), nil
}

// write prints the report in the form that the flags ask for.
func (s *settings) write(stdout io.Writer, data *report.Data) error {
	if s.Report != "" {
		var page bytes.Buffer
		if err := report.HTML(&page, data); err != nil {
			return err
		}
		if err := os.WriteFile(s.Report, page.Bytes(), 0o644); err != nil {
			return err
		}
	}
	if s.JSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(data)
	}
	if err := report.Text(stdout, data); err != nil {
		return err
	}
	if s.Report != "" {
		_, err := fmt.Fprintf(stdout, "\nThe report is in %s\n", s.Report)
		return err
	}
	return nil
}

// failed returns an error that names the checks that failed, or nil if there are none.
func failed(checks []report.Check) error {
	var names []string
	for _, c := range checks {
		if !c.Passed {
			names = append(names, c.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return boot.Exit{Code: boot.CodeFailed, Err: fmt.Errorf("checks failed: %s", strings.Join(names, "; "))}
}
