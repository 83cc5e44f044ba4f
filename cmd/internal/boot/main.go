package boot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/grpc/grpclog"
)

// Exit codes of every Tandem program.
const (
	CodeOK      = 0 // clean end
	CodeFailed  = 1 // failed while running
	CodeUsage   = 2 // the command line cannot be understood
	CodeConfig  = 3 // the configuration is invalid
	CodeMissing = 4 // cannot listen, or a needed part is missing
)

// Exit is an error that chooses the exit code of the program. Any other error
// returned by a run function ends the program with [CodeFailed].
type Exit struct {
	Code int
	Err  error // printed once on stderr; nil prints nothing
}

// Error returns the text of the wrapped error.
func (e Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e Exit) Unwrap() error { return e.Err }

// Usagef returns an error about the command line: exit code 2.
func Usagef(format string, args ...any) error {
	return Exit{CodeUsage, fmt.Errorf(format, args...)}
}

// Configf returns an error about the configuration: exit code 3.
func Configf(format string, args ...any) error {
	return Exit{CodeConfig, fmt.Errorf(format, args...)}
}

// Missingf returns an error about a part that the program needs and cannot get, or an address that it cannot listen on: exit
// code 4.
func Missingf(format string, args ...any) error {
	return Exit{CodeMissing, fmt.Errorf(format, args...)}
}

// IO is the environment of a program: streams, name and variables. Tests provide their own.
type IO struct {
	Name   string // of the program, for messages
	Stdin  io.Reader
	Stdout io.Writer // the ready line and what the user asked for
	Stderr io.Writer // logs and errors
	logs   *logQueue // in front of Stderr; nil: none
	// Env looks up an environment variable. Nil means that none is set.
	Env func(key string) (value string, ok bool)
}

func (s IO) env(key string) string {
	if s.Env == nil {
		return ""
	}
	v, _ := s.Env(key)
	return v
}

// Func is the body of a main. It ends soon after ctx is cancelled, and returns
// nil (or the context's error) if it could end cleanly.
type Func func(ctx context.Context, std IO, args []string) error

// Main runs f as the program and ends the process with its exit code.
func Main(f Func) {
	std := IO{
		Name:   strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"),
		Stdin:  os.Stdin,
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		logs:   &logQueue{out: os.Stderr},
		Env:    os.LookupEnv,
	}
	// What libraries write to stderr themselves must not wait for it either: net/http to Go's log, gRPC to a logger of its own.
	log.SetOutput(std.logs)
	if std.env("GRPC_GO_LOG_SEVERITY_LEVEL") == "" {
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, std.logs)) // errors, as by default
	}
	code := Run(context.Background(), std, os.Args[1:], f)
	std.logs.flush(exitLimit)
	os.Exit(code)
}

// Run runs f and returns the exit code. The first SIGINT or SIGTERM cancels f's context. On a second one Run returns at
// once, with f still running, because the user does not want to wait and the process is about to end.
func Run(ctx context.Context, std IO, args []string, f Func) int {
	// The buffer holds two, so that the second signal is not dropped while the first is handled.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	return run(ctx, std, args, f, signals)
}

func run(ctx context.Context, std IO, args []string, f Func, signals <-chan os.Signal) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx, std, args) }()

	stopping := false
	for {
		select {
		case err := <-done:
			if stopping && errors.Is(err, context.Canceled) {
				err = nil // the signal stopped it, so this is a clean end
			}
			return report(std, err)
		case s := <-signals:
			if stopping {
				return report(std, fmt.Errorf("ending at once: second signal (%v)", s))
			}
			stopping = true
			cancel()
		}
	}
}

// report prints err, if it has a text, and returns its exit code.
func report(std IO, err error) int {
	if err == nil {
		return CodeOK
	}
	exit := Exit{CodeFailed, err}
	if errors.As(err, &exit) && exit.Err == nil {
		return exit.Code
	}
	to := std.Stderr
	if std.logs != nil {
		to = std.logs
	}
	fmt.Fprintf(to, "%s: %v\n", std.Name, err)
	return exit.Code
}
