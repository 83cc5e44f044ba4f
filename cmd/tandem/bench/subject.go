package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/stack"
)

// subject is a running program under test.
type subject struct {
	*stack.Process
	addr    string // address to measure
	metrics string // host:port of its metrics page; "" if it has none
}

// usage is the CPU time and allocations of a process since its start.
type usage struct {
	cpu    time.Duration // user and system
	allocs float64       // allocated; -1 if unknown
}

// start reads the usage of the subject so far. Reading its metrics page costs CPU time too: that is kept out of the CPU
// time, but the allocations of the second reading, at the end, count.
func (s *subject) start(ctx context.Context) (u usage, err error) {
	u.allocs = -1
	if s.metrics != "" {
		once, err := allocs(ctx, s.metrics)
		if err != nil {
			return u, err
		}
		twice, err := allocs(ctx, s.metrics)
		if err != nil {
			return u, err
		}
		u.allocs = twice + (twice - once)
	}
	u.cpu, err = cpuTime(s.PID())
	return u, err
}

// since returns the usage since then.
func (s *subject) since(ctx context.Context, then usage) (u usage, err error) {
	if u.cpu, err = cpuTime(s.PID()); err != nil {
		return u, err
	}
	u.cpu -= then.cpu
	u.allocs = -1
	if s.metrics != "" {
		u.allocs, err = allocs(ctx, s.metrics)
		u.allocs = max(u.allocs-then.allocs, 0) // Go counts allocations with some delay
	}
	return u, err
}

// died adds the last output of the program to an error, and whether the program has ended.
func (s *subject) died(err error) error {
	const notice = time.Second // time in which the end of a program is noticed after its connections have broken
	wait := time.NewTimer(notice)
	defer wait.Stop()
	select {
	case <-s.Done():
		return errors.Join(err, s.Wait())
	case <-wait.C:
		return fmt.Errorf("measuring %s: %w%s", s.Name(), err, quoted(s.Output()))
	}
}

// quoted returns the last lines that a program has written, to be shown below an error.
func quoted(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return "; its last output:\n" + strings.Join(lines[max(0, len(lines)-3):], "\n")
}

// memory returns a process's resident size now and at its peak, in bytes.
func memory(pid int) (now, peak int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("reading the memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = kib << 10
		case "VmHWM":
			peak = kib << 10
		}
	}
	return now, peak, nil
}

// allocs reads how many objects a Go program has allocated, from its metrics page; -1 if the page does not have it.
func allocs(ctx context.Context, addr string) (float64, error) {
	text, err := get(ctx, "http://"+addr+"/metrics")
	if err != nil {
		return -1, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "go_memstats_mallocs_total "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return -1, fmt.Errorf("the metrics page at %s has no go_memstats_mallocs_total", addr)
}

// rival is the command line of another program to measure, in which words such as {port} are replaced. It is split at spaces
// and run without a shell, which would be measured instead.
type rival string

// start runs the rival with its words replaced, and waits until it accepts connections at addr.
func (r rival) start(ctx context.Context, l *lab, addr string, words ...string) (*subject, error) {
	fields := strings.Fields(strings.NewReplacer(words...).Replace(string(r)))
	p, err := stack.Start(ctx, stack.Program{Name: filepath.Base(fields[0]), Path: fields[0], Args: fields[1:], Cores: l.cores,
		ReadyTimeout: 30 * time.Second, Probe: func(ctx context.Context) error {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err != nil {
				return err
			}
			return c.Close()
		}})
	if err != nil {
		return nil, fmt.Errorf("starting the other program: %w", err)
	}
	l.running = append(l.running, p)
	return &subject{Process: p, addr: addr}, nil
}

// freePort finds a free port for a program that cannot choose one itself.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("finding a free port: %w", err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
