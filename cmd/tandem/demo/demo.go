package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// Summary is what the command does, for help pages.
const Summary = "run a whole P/D stack on this machine and prove that it works"

// settings are the flags.
type settings struct {
	BinDir  string        `flag:"bin-dir" arg:"DIR" help:"folder with the programs sim and sidecar. Default: the one that this program lies in"`
	Timeout time.Duration `flag:"timeout" help:"longest time that everything may take"`
	JSON    bool          `flag:"json" help:"print JSON instead of text"`
	Fault   string        `flag:"fault" arg:"FAULT[:ARG]" help:"break the prefill engine first, to see the proof fail: stale, no-handoff, bad-handoff:foreign, status:500, crash and others that the simulator knows"`
}

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	p.Require(s.Timeout > 0, "timeout", "%v is not a positive time", s.Timeout)
}

// Run is the command. The error is an Exit with CodeMissing if there are no programs to start, and the names of the broken
// promises, which means CodeFailed, if the proof fails.
func Run(ctx context.Context, std boot.IO, args []string) error {
	s := settings{Timeout: time.Minute}
	if _, err := (boot.Program{Summary: "demo: " + Summary + "."}).Load(std, &s, args); err != nil {
		return err
	}
	if err := s.findPrograms(); err != nil {
		return err
	}
	r, err := s.perform(ctx)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("running the demo: interrupted, nothing is proven")
	case err != nil:
		return fmt.Errorf("running the demo: %w", err)
	}
	if err := r.write(std.Stdout, s.JSON); err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	return r.err()
}

// findPrograms fills in BinDir and looks whether it has what will be started.
func (s *settings) findPrograms() error {
	if s.BinDir == "" {
		self, err := os.Executable()
		if err != nil {
			return boot.Missingf("finding the folder of this program: %w (name one with --bin-dir)", err)
		}
		s.BinDir = filepath.Dir(self)
	}
	for _, program := range []string{"sim", "sidecar"} {
		if _, err := os.Stat(filepath.Join(s.BinDir, program)); err != nil {
			return boot.Missingf("finding the programs to start: %w (build them with make build, or name their folder with --bin-dir)", err)
		}
	}
	return nil
}

// perform starts a stack, asks it everything, ends it, and judges what was seen.
func (s *settings) perform(ctx context.Context) (report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Timeout, fmt.Errorf("it took longer than %v (see --timeout)", s.Timeout))
	defer cancel()
	st, alive := newStage(ctx)
	var seen evidence
	err := st.start(alive, s.BinDir)
	if err == nil {
		err = st.spoil(alive, s.Fault)
	}
	if err == nil {
		seen, err = st.exercise(alive)
	}
	if err != nil && alive.Err() != nil {
		err = context.Cause(alive) // of all that fails when a program has died, its death is the news
	}
	seen.ended = st.stop()
	if err != nil {
		return report{}, errors.Join(err, seen.ended)
	}
	return judge(seen), nil
}

// err names the broken promises.
func (r *report) err() error {
	var broken []string
	for _, p := range r.Promises {
		if !p.Kept {
			broken = append(broken, p.Name)
		}
	}
	if len(broken) == 0 {
		return nil
	}
	return boot.Exit{Code: boot.CodeFailed, Err: fmt.Errorf("not proven: %s", strings.Join(broken, "; "))}
}
