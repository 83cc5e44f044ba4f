package realengine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/stack"
)

// Model is the name under which all engines serve their model.
const Model = "tiny"

// Loopback is the only address at which engines listen.
const Loopback = "127.0.0.1"

const (
	// startTimeout only has to be longer than a successful start: one that fails ends the process, which is noticed at once.
	// Four engines at once took a minute and a half on two processors, and 9 min with a load of 30.
	startTimeout = 15 * time.Minute
	// stopTimeout is the time between SIGTERM and SIGKILL. An engine took 3 s.
	stopTimeout = 30 * time.Second
	// keptLines is enough for a Python traceback through an engine.
	keptLines = 300
)

// Command is how an engine is started.
type Command struct {
	Name string // in messages
	Port int    // of its API, which answers GET /health with 200 when it accepts requests
	Path string
	Args []string
	Env  []string
	// Cores are the processors that it may use, as taskset takes them; "": all.
	Cores string
}

// Engine is a running engine. Only Address, Output and Exited may be called concurrently with other methods.
type Engine struct {
	command Command
	client  *http.Client

	mu      sync.Mutex // guards process
	process *stack.Process
}

// Start runs an engine and returns when it accepts requests. ctx bounds only the start; Stop ends the engine.
func Start(ctx context.Context, c Command) (*Engine, error) {
	e := &Engine{command: c, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	if err := e.run(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

// FreePorts returns ports below those that Linux chooses for clients (32768 and up by default): an engine needs half a minute
// until it listens, and uses its ports again after a restart. They are reserved for this process.
func FreePorts(ctx context.Context, n int) ([]int, error) {
	const lowest, count, tries = 15_000, 17_000, 50
	var config net.ListenConfig
	var ports []int
	var err error
	for range tries {
		port := lowest + rand.IntN(count)
		var l net.Listener
		if l, err = config.Listen(ctx, "tcp", net.JoinHostPort(Loopback, strconv.Itoa(port))); err != nil {
			continue
		}
		defer l.Close()
		if err = Reserve(port); err != nil {
			continue
		}
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("finding free ports: %w", err)
}

var reserved struct {
	sync.Mutex
	names []net.Listener // which the garbage collector would close
}

// Reserve has a port be this process's until it ends, for those who ask likewise: several test programs run at a time, and what they start listens some
// seconds after its port was chosen. The error says that it is reserved already. Linux forgets the names of such sockets with the process.
func Reserve(port int) error {
	l, err := net.Listen("unix", "@tandem-port-"+strconv.Itoa(port))
	if err != nil {
		return err
	}
	reserved.Lock()
	defer reserved.Unlock()
	reserved.names = append(reserved.names, l)
	return nil
}

// run starts the processes, and leaves none behind if it fails.
func (e *Engine) run(ctx context.Context) error {
	path, args := e.command.Path, e.command.Args
	if e.command.Cores != "" {
		path, args = "taskset", append([]string{"-c", e.command.Cores, path}, args...)
	}
	p, err := stack.Start(ctx, stack.Program{Name: e.command.Name, Path: path, Args: args, Env: e.command.Env,
		Probe: e.healthy, ReadyTimeout: startTimeout, Grace: stopTimeout, Lines: keptLines})
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.process = p
	return nil
}

func (e *Engine) healthy(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.Address()+"/health", nil)
	if err != nil {
		return err
	}
	answer, err := e.client.Do(request)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// Address returns the host:port of its API, which a restart does not change.
func (e *Engine) Address() string { return net.JoinHostPort(Loopback, strconv.Itoa(e.command.Port)) }

// Output returns its last lines.
func (e *Engine) Output() []string { return e.current().Output() }

// Exited reports whether it has ended, for whatever reason.
func (e *Engine) Exited() bool {
	select {
	case <-e.current().Done():
		return true
	default:
		return false
	}
}

func (e *Engine) current() *stack.Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.process
}

// Restart kills it if it runs, and starts it again at the same address, with an empty cache, and a new id if it has one.
func (e *Engine) Restart(ctx context.Context) error {
	if err := e.Kill(); err != nil {
		return err
	}
	return e.run(ctx)
}
