package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// Summary is what the command does, for help pages.
const Summary = "measure the CPU time, latency and memory that sidecar, picker and the whole path cost, next to baselines"

// Kinds of baselines. A baseline is the lower bound of a measurement: the smallest program that could do the work of the measured
// one.
const (
	baselineProxy  = "proxy"
	baselinePicker = "picker"
)

// settings are the flags.
type settings struct {
	BinDir   string        `flag:"bin-dir" arg:"DIR" help:"folder with the programs epp, sidecar and tandem. Default: the folder of this program"`
	Series   string        `flag:"series" arg:"REGEXP" help:"measure only series whose name matches, such as '^sidecar, local' or 'picker.*512'; --list names them"`
	List     bool          `flag:"list" help:"print the names of all series and exit"`
	Rounds   int           `flag:"rounds" arg:"NUMBER" help:"rounds of each series; in each, the programs are loaded one after the other"`
	Span     time.Duration `flag:"span" arg:"DURATION" help:"how long each program is under load in each round"`
	Core     int           `flag:"core" arg:"NUMBER" help:"processor reserved for the programs under test; -1: any"`
	Growth   bool          `flag:"growth" help:"also measure curves: how costs grow with endpoints and open streams. --series selects them too. It takes some minutes more"`
	Sidecar  string        `flag:"against-sidecar" arg:"COMMAND" help:"also measure another sidecar, in turns with Tandem's. The command is split at spaces; {port} and {engine-port} are replaced by its own port and the decode engine's"`
	Picker   string        `flag:"against-epp" arg:"COMMAND" help:"also measure another picker, in turns with Tandem's. The command is split at spaces; {port}, {config} and {endpoints} are replaced by its ext-proc port (plaintext), the EndpointPickerConfig and the endpoints file"`
	Gate     bool          `flag:"gate" help:"exit with 1 if a series exceeded its limit or was not measured, or if a curve grows faster than linearly"`
	JSON     string        `flag:"json" arg:"FILE" help:"write all figures to this file"`
	Report   string        `flag:"report" arg:"FILE" help:"write a page with the tables and the curves to this file"`
	Baseline string        `flag:"baseline" enum:",proxy,picker" help:"run as a baseline and measure nothing, which the benchmark does itself: proxy is a bare reverse proxy, picker an ext-proc server that parses nothing"`
	Target   string        `flag:"baseline-target" arg:"HOST:PORT" help:"server that the baseline forwards to"`
}

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	_, err := regexp.Compile(s.Series)
	p.Require(err == nil, "series", "is not a regular expression: %w", err)
	p.Require(s.Rounds > 0, "rounds", "must be positive, got %d", s.Rounds)
	p.Require(s.Span >= 100*time.Millisecond, "span",
		"must be 100ms or more, got %v: a shorter one measures noise", s.Span)
	cores := processors()
	p.Require(s.Core < 0 || slices.Contains(cores, s.Core), "core", "this process may run on the processors %v", cores)
	p.Require(s.Core < 0 || len(cores) > 1, "core", "there is only one processor: use -1")
	p.Require(s.Baseline == "" || s.Target != "", "baseline-target", "is missing: a baseline needs a server to forward to")
	for flag, command := range map[string]string{"against-sidecar": s.Sidecar, "against-epp": s.Picker} {
		p.Require(command == "" || strings.TrimSpace(command) != "", flag, "is empty")
		p.Require(command == "" || strings.Contains(command, "{port}"), flag,
			"does not contain {port}, which is replaced by the port to listen at")
	}
	for flag, file := range map[string]string{"json": s.JSON, "report": s.Report} {
		if file != "" {
			_, err := os.Stat(filepath.Dir(file))
			p.Require(err == nil, flag, "cannot be written: %w", err)
		}
	}
}

// Run is the command.
func Run(ctx context.Context, std boot.IO, args []string) error {
	s := settings{Rounds: 5, Span: 500 * time.Millisecond, Core: lastCore()}
	if _, err := (boot.Program{Summary: "bench: " + Summary + "."}).Load(std, &s, args); err != nil {
		return err
	}
	if s.Baseline != "" {
		return serveBaseline(ctx, std, s.Baseline, s.Target)
	}
	steps, err := s.steps()
	if err != nil {
		return err
	}
	if s.List {
		for _, step := range steps {
			fmt.Fprintln(std.Stdout, step.name)
		}
		return nil
	}
	if err := checkEnvoy(std.Stderr, steps); err != nil {
		return err
	}
	result, err := s.measure(ctx, std.Stderr, steps)
	if err != nil {
		return err
	}
	if err := s.show(std.Stdout, result); err != nil || !s.Gate {
		return err
	}
	return result.gate()
}

// checkEnvoy says before anything is measured that an Envoy is missing. As with tandem up, that is no error, but an ENVOY_BIN
// without a program is one.
func checkEnvoy(progress io.Writer, steps []step) error {
	if !slices.ContainsFunc(steps, func(s step) bool { return s.envoy }) {
		return nil
	}
	_, err := envoy.Find()
	if errors.Is(err, envoy.ErrNone) {
		fmt.Fprintf(progress, "series through Envoy will not be measured: %v\n", err)
		return nil
	}
	if err != nil {
		return boot.Missingf("%w", err)
	}
	return nil
}

// lastCore returns the processor for the programs under test, or -1 if there is only one.
func lastCore() int {
	if cores := processors(); len(cores) > 1 {
		return cores[len(cores)-1]
	}
	return -1
}

// steps returns the steps that the flags select.
func (s *settings) steps() ([]step, error) {
	dir, err := s.programs()
	if err != nil {
		return nil, err
	}
	p := &plan{dir: dir, all: processors(), sidecar: rival(s.Sidecar), other: rival(s.Picker), options: options{s.Rounds,
		s.Span},
		points: defaultGrowth()}
	if p.apart = p.all; s.Core >= 0 {
		p.apart = []int{s.Core}
	}
	series, growth := matching(p.series(), s.Series), matching(p.growth(), s.Series)
	switch {
	case s.Growth && len(growth) == 0:
		return nil, boot.Usagef("--growth: no curve matches --series %q (--growth --list names them)", s.Series)
	case s.Growth:
		return append(series, growth...), nil
	case len(series) == 0 && len(growth) > 0:
		return nil, boot.Usagef("only curves match %q: they need --growth", s.Series)
	case len(series) == 0:
		return nil, boot.Usagef("no series matches %q (--list names them)", s.Series)
	}
	return series, nil
}

// matching returns the steps whose names match a regular expression.
func matching(all []step, pattern string) []step {
	wanted := regexp.MustCompile(pattern)
	return slices.DeleteFunc(all, func(s step) bool { return !wanted.MatchString(s.name) })
}

// programs returns the folder with the programs to measure.
func (s *settings) programs() (string, error) {
	dir := s.BinDir
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return "", boot.Missingf("finding the folder of this program: %w (set one with --bin-dir)", err)
		}
		dir = filepath.Dir(self)
	}
	for _, name := range []string{"epp", "sidecar", "tandem"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", boot.Missingf("finding the programs to measure: %w (build them with make build, or set their folder with "+
				"--bin-dir)", err)
		}
	}
	return dir, nil
}

// measure runs the steps.
func (s *settings) measure(ctx context.Context, progress io.Writer, steps []step) (*Result, error) {
	result := &Result{Started: time.Now(), Machine: machine(), Rounds: s.Rounds, Span: s.Span}
	if s.Core >= 0 { // load and engines must not take time from the programs under test
		others := slices.DeleteFunc(processors(), func(core int) bool { return core == s.Core })
		if err := hold("self", others); err != nil {
			return nil, fmt.Errorf("%w (--core=-1 uses any processor)", err)
		}
	}
	for i, step := range steps {
		fmt.Fprintf(progress, "%d/%d %s\n", i+1, len(steps), step.name)
		if err := step.run(ctx, result); ctx.Err() != nil {
			return nil, errors.New("interrupted, no results")
		} else if err != nil {
			return nil, fmt.Errorf("measuring %s: %w", step.name, err)
		}
	}
	result.Took = time.Since(result.Started)
	measured := func(r Row) bool { return r.Missing == "" }
	if len(result.Curves) == 0 && !slices.ContainsFunc(result.Rows, measured) {
		return nil, boot.Missingf("nothing was measured: %s", result.Rows[0].Missing)
	}
	return result, nil
}

// machine describes this machine: processors, system and Go version.
func machine() string {
	model := runtime.GOARCH
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	return fmt.Sprintf("%d × %s, %s, %s", len(processors()), model, runtime.GOOS, runtime.Version())
}

// show writes the result to stdout and to the files that flags name.
func (s *settings) show(stdout io.Writer, r *Result) error {
	if err := text(stdout, r); err != nil {
		return err
	}
	if s.JSON != "" {
		b, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(s.JSON, append(b, '\n'), 0o644); err != nil {
			return fmt.Errorf("writing the figures: %w", err)
		}
	}
	if s.Report != "" {
		if err := writePage(s.Report, r); err != nil {
			return fmt.Errorf("writing the page: %w", err)
		}
	}
	return nil
}
