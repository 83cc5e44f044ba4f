package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// Summary is what the command does, for help pages.
const Summary = "wait until a terminating pod has no work left (a preStop hook)"

// settings are the flags.
type settings struct {
	Wait    waitFlags    `group:"What to wait for"`
	Pace    paceFlags    `group:"Pace"`
	Install installFlags `group:"Instead of waiting"`
}

type waitFlags struct {
	Engine   string `flag:"engine" arg:"[https://]HOST:PORT" help:"engine: wait until it has no running or waiting request"`
	Handoffs bool   `flag:"handoffs" help:"also wait until decode engines have pulled all hand-offs of the engine: its KV cache usage is 0"`
	Sidecar  string `flag:"sidecar" arg:"HOST:PORT" help:"metrics port of a sidecar: wait until it has no request in flight"`
	Evacuate string `flag:"evacuate" arg:"HOST:PORT" help:"admin port of a sidecar: have its streams go on at other engines, those that can; they are then no work of --sidecar and --engine any more"`
	Envoy    string `flag:"envoy" arg:"HOST:PORT" help:"admin port of an Envoy: make it fail its health checks and ask clients to reconnect, and wait until it has no request"`
}

type paceFlags struct {
	Settle   time.Duration `flag:"settle" help:"time before the first check, in which pickers and proxies learn that the pod is terminating"`
	Interval time.Duration `flag:"interval" help:"time between two checks"`
	Timeout  time.Duration `flag:"timeout" help:"longest time of the whole command; keep it below the pod's grace period"`
}

type installFlags struct {
	Dir string `flag:"install" arg:"DIR" help:"copy this program to DIR/tandem, for containers that share the folder"`
}

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	waits := s.Wait.Engine != "" || s.Wait.Sidecar != "" || s.Wait.Envoy != ""
	p.Require(!waits || s.Install.Dir == "", "install", "cannot be combined with parts to wait for: it is for another container")
	p.Require(waits || s.Install.Dir != "", "engine", "nothing to wait for: set an engine, a sidecar or an Envoy (--engine, --sidecar, --envoy)")
	p.Require(s.Wait.Evacuate == "" || s.Wait.Sidecar != "", "evacuate", "needs the metrics port of the same sidecar, to see when its streams have left (--sidecar)")
	p.Require(!s.Wait.Handoffs || s.Wait.Engine != "", "handoffs", "needs the engine that holds them (--engine)")
	if s.Wait.Engine != "" {
		p.RequireAddress("engine", strings.TrimPrefix(s.Wait.Engine, "https://"))
	}
	if s.Wait.Sidecar != "" {
		p.RequireAddress("sidecar", s.Wait.Sidecar)
	}
	if s.Wait.Evacuate != "" {
		p.RequireAddress("evacuate", s.Wait.Evacuate)
	}
	if s.Wait.Envoy != "" {
		p.RequireAddress("envoy", s.Wait.Envoy)
	}
	p.Require(s.Pace.Settle >= 0, "settle", "must not be negative")
	p.Require(s.Pace.Interval > 0, "interval", "must be positive")
	p.Require(s.Pace.Timeout > s.Pace.Settle, "timeout", "%v must be longer than --settle (%v)", s.Pace.Timeout, s.Pace.Settle)
}

// Run runs the command. The error names the remaining work at the timeout, or at a signal.
func Run(ctx context.Context, std boot.IO, args []string) error {
	s := settings{Pace: paceFlags{Settle: 3 * time.Second, Interval: 500 * time.Millisecond, Timeout: 25 * time.Second}}
	if _, err := (boot.Program{Summary: "drain: " + Summary + "."}).Load(std, &s, args); err != nil {
		return err
	}
	if s.Install.Dir != "" {
		return install(std.Stdout, s.Install.Dir)
	}
	client := newClient()
	defer client.CloseIdleConnections()
	w := &waiter{pace: s.Pace, out: std.Stdout, parts: s.Wait.parts(client)}
	return w.wait(ctx)
}

// newClient returns a client that follows no redirect and uses no proxy: all addresses belong to this pod, or to the leader of its group.
func newClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{TLSClientConfig: ownTLS(), DialContext: (&net.Dialer{Timeout: lookTimeout}).DialContext},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// lookTimeout bounds one check of one part. A busy engine may need a second for its metrics page.
const lookTimeout = 2 * time.Second

// quiescent is the number of checks in a row that must find no work.
const quiescent = 2

// waiter waits for the parts of a pod.
type waiter struct {
	pace  paceFlags
	out   io.Writer
	parts []part
	began time.Time
	said  string
	gone  string // parts that refuse connections, as last printed
}

// wait returns once no work is left, or at the timeout.
func (w *waiter) wait(ctx context.Context) error {
	w.began = time.Now()
	ctx, cancel := context.WithTimeout(ctx, w.pace.Timeout)
	defer cancel()
	for _, p := range w.parts {
		if p.begin != nil {
			if err := p.begin(ctx); err != nil && !gone(err) {
				w.say(fmt.Sprintf("%s cannot be drained: %v", p.name, err))
			}
		}
	}
	if !pause(ctx, w.pace.Settle) {
		return w.over(ctx, "not checked yet")
	}
	left := ""
	for quiet := 0; quiet < quiescent; {
		seen := w.look(ctx)
		if ctx.Err() != nil {
			return w.over(ctx, left) // the last check was cut short
		}
		if left = seen; left == "" {
			quiet++
		} else {
			quiet = 0
			w.say("left: " + left)
		}
		if quiet < quiescent && !pause(ctx, w.pace.Interval) {
			return w.over(ctx, left)
		}
	}
	w.say("drained")
	return nil
}

// look checks every part and describes the remaining work.
func (w *waiter) look(ctx context.Context) string {
	var left, missing []string
	for _, p := range w.parts {
		look, cancel := context.WithTimeout(ctx, lookTimeout)
		what, err := p.left(look)
		cancel()
		switch {
		case gone(err):
			missing = append(missing, p.name)
		case err != nil:
			left = append(left, fmt.Sprintf("%s: unknown: %v", p.name, err))
		case what != "":
			left = append(left, p.name+": "+what)
		}
	}
	if now := strings.Join(missing, ", "); now != w.gone {
		if w.gone = now; now != "" {
			w.say("not listening: " + now) // it has ended, or the address is wrong
		}
	}
	return strings.Join(left, "; ")
}

// say prints a change. Write errors are ignored: a hook without a reader must still work.
func (w *waiter) say(what string) {
	if what != w.said {
		w.said = what
		_, _ = fmt.Fprintf(w.out, "%.1fs %s\n", time.Since(w.began).Seconds(), what)
	}
}

func (w *waiter) over(ctx context.Context, left string) error {
	if left == "" {
		left = "no work was left, but for too short a time to be sure"
	} else {
		left = "left: " + left
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("draining: timeout of %v; %s", w.pace.Timeout, left)
	}
	return fmt.Errorf("draining: ended by a signal; %s", left)
}

// pause waits for d. It returns false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
