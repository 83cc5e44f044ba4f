package envoy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// startTimeout bounds the start. On a busy machine, starts of 4 s were seen.
	startTimeout = 15 * time.Second
	// stopTimeout is the time between SIGTERM and SIGKILL. Envoy does not wait for its streams, but on a machine that stood still for
	// a while it took more than 15 s.
	stopTimeout = time.Minute
	// pollInterval is the time between two checks of whether Envoy is ready, which has no event.
	pollInterval = 20 * time.Millisecond
	// logLimit bounds how much of Envoy's log is stored, in bytes.
	logLimit = 64 << 10
)

// Envoy is a running Envoy. Its methods may be called by several goroutines.
type Envoy struct {
	dir   string
	admin string
	http  *http.Client
	cmd   *exec.Cmd
	log   tail
	asked atomic.Bool   // Stop was called
	done  chan struct{} // closed when it has ended and err is set
	err   error
	stop  func() error
}

// Log says what an Envoy logs, and where to.
type Log struct {
	Level string    // trace, debug, info, warn, error or critical; "": warn
	Also  io.Writer // gets all output as it comes, beside what the Envoy's methods return; nil: none. Its errors are ignored
}

// Start runs an Envoy and returns once it is ready, with every cluster initialised. ctx bounds the start only; Stop ends the
// Envoy. args are added to the command line, such as "--component-log-level ext_proc:debug".
func Start(ctx context.Context, bootstrap []byte, args ...string) (*Envoy, error) {
	return Log{}.Start(ctx, bootstrap, args...)
}

// Start runs an Envoy that logs like this, as the function Start does.
func (l Log) Start(ctx context.Context, bootstrap []byte, args ...string) (*Envoy, error) {
	path, err := Find()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "envoy")
	if err != nil {
		return nil, fmt.Errorf("starting Envoy: %w", err)
	}
	e := &Envoy{dir: dir, http: &http.Client{Transport: &http.Transport{}}, done: make(chan struct{})}
	e.log.also = l.Also
	e.stop = sync.OnceValue(e.end)
	if err := e.start(ctx, path, bootstrap, append([]string{"-l", cmp.Or(l.Level, "warn")}, args...)); err != nil {
		return nil, errors.Join(fmt.Errorf("starting Envoy: %w%s", err, e.quoteLog()), e.Stop())
	}
	return e, nil
}

func (e *Envoy) start(ctx context.Context, path string, bootstrap []byte, args []string) error {
	file, address := filepath.Join(e.dir, "bootstrap.yaml"), filepath.Join(e.dir, "admin")
	if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
		close(e.done)
		return err
	}
	// Without hot restart, two Envoys share no memory. One worker is enough for tests, and a test machine has few cores.
	args = append([]string{"-c", file, "--admin-address-path", address,
		"--disable-hot-restart", "--concurrency", "1"}, args...)
	started := make(chan error)
	go e.run(exec.Command(path, args...), started)
	if err := <-started; err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("it was not ready within %v", startTimeout))
	defer cancel()
	return e.awaitReady(ctx, address)
}

// run starts the program and waits for its end, on one thread: when the thread that started a child ends, Linux sends the
// parent-death signal.
func (e *Envoy) run(cmd *exec.Cmd, started chan<- error) {
	defer close(e.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.Stdout, cmd.Stderr = &e.log, &e.log
	cmd.SysProcAttr = attributes()
	e.cmd = cmd
	err := cmd.Start()
	started <- err
	if err == nil {
		e.err = cmd.Wait()
	}
}

func (e *Envoy) awaitReady(ctx context.Context, addressFile string) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if address, err := os.ReadFile(addressFile); err == nil && len(address) > 0 {
			e.admin = string(address)
			if _, err := e.get(ctx, "/ready"); err == nil {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-e.done:
			return fmt.Errorf("it ended: %w", e.err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Log returns the last lines that it has written.
func (e *Envoy) Log() string { return e.log.String() }

func (e *Envoy) quoteLog() string {
	if log := strings.TrimSpace(e.Log()); log != "" {
		return "; its last output:\n" + log
	}
	return ", no output"
}

// Name returns the name that messages have.
func (e *Envoy) Name() string { return "envoy" }

// Wait waits until it has ended. The error is nil if Stop ended it; otherwise it says how it ended, with its last lines.
func (e *Envoy) Wait() error {
	<-e.done
	if e.asked.Load() {
		return nil
	}
	return fmt.Errorf("envoy ended: %s%s", Status(e.cmd.ProcessState), e.quoteLog())
}

// PID returns the process id.
func (e *Envoy) PID() int { return e.cmd.Process.Pid }

// Stop ends it and waits until it has ended. The error says that it had to be killed, or how it ended instead. Stop may be
// called again and returns the same error.
func (e *Envoy) Stop() error { return e.stop() }

func (e *Envoy) end() error {
	e.http.CloseIdleConnections()
	defer os.RemoveAll(e.dir)
	select {
	case <-e.done:
		return e.deathError()
	default:
	}
	e.asked.Store(true)
	if err := e.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping Envoy: %w", err)
	}
	grace := time.NewTimer(stopTimeout)
	defer grace.Stop()
	select {
	case <-e.done:
		return e.deathError()
	case <-grace.C:
	}
	_ = e.cmd.Process.Kill() // an error means that it has ended
	<-e.done
	return fmt.Errorf("stopping Envoy: it did not end within %v of SIGTERM and was killed%s", stopTimeout, e.quoteLog())
}

func (e *Envoy) deathError() error {
	if e.err == nil {
		return nil
	}
	return fmt.Errorf("stopping Envoy: it ended: %s%s", Status(e.cmd.ProcessState), e.quoteLog())
}

// Validate checks that Envoy accepts a bootstrap without a warning.
func Validate(ctx context.Context, bootstrap []byte) error {
	path, err := Find()
	if err != nil {
		return err
	}
	// Envoy reads the file twice, so it cannot be a pipe.
	file, err := os.CreateTemp("", "envoy*.yaml")
	if err != nil {
		return fmt.Errorf("validating a bootstrap: %w", err)
	}
	defer os.Remove(file.Name())
	_, err = file.Write(bootstrap)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("validating a bootstrap: %w", err)
	}
	runtime.LockOSThread() // as in run
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, path, "--mode", "validate", "-c", file.Name(), "-l", "warn")
	cmd.SysProcAttr = attributes()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("validating a bootstrap: %w\n%s", err, bytes.TrimSpace(out))
	}
	if bytes.Contains(out, []byte("[warning]")) {
		return fmt.Errorf("validating a bootstrap: Envoy warns\n%s", bytes.TrimSpace(out))
	}
	return nil
}

// tail stores the last bytes that are written to it.
type tail struct {
	also io.Writer // gets them as well; nil: none
	mu   sync.Mutex
	buf  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.also != nil {
		_, _ = t.also.Write(p) // a full disk must not end Envoy
	}
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - logLimit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
