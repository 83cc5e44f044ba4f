package boottest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// Main is the TestMain of a program's package: the test binary plays the programs of its scripts, by name, and the tests
// fail if they leave a goroutine behind.
func Main(m *testing.M, programs map[string]func()) { testscript.Main(leakChecked{m}, programs) }

// leakChecked runs the tests and then looks for leaked goroutines. It replaces goleak's TestMain, because testscript ends
// the process itself.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "leaked goroutines:", err)
		return 1
	}
	return code
}

// Scripts runs the scripts in testdata. It adds one command: exits CODE COMMAND ARGS… runs a command and checks its exit
// code.
func Scripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		// By default the race detector makes every program wait a second before it ends.
		Setup: func(e *testscript.Env) error { e.Setenv("GORACE", "atexit_sleep_ms=0"); return nil },
		Cmds:  map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

func exits(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}
