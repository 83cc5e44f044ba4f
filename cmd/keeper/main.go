// Command keeper is the process in which NIXL's library works for the sidecar: package transfer/keeper says why it is one of
// its own. The sidecar starts it, over a socket that they share asks it to tell engines something, and starts it anew when
// it has died. Built with the tag nixl it speaks NIXL, with real engines; built without, the simulator's TCP, with simulated ones.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os/signal"
	"strings"
	"syscall"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/transfer/keeper"
)

func main() { boot.Main(run) }

var program = boot.Program{Summary: "keeper tells prefill engines for the sidecar what becomes of their KV, over NIXL. The sidecar starts it (--keeper); by hand, --probe is what it is good for."}

// config is the command line.
type config struct {
	Transport string `flag:"transport" enum:"nixl,tcp" help:"what engines are spoken to over; tcp is for simulated ones"`
	Library   string `flag:"library" arg:"PATH" help:"libnixl_capi.so, or its folder; empty: what TANDEM_NIXL_LIB names, else what the dynamic loader finds, else an installed wheel nixl-cu12 or nixl-cu13"`
	Name      string `flag:"name" help:"what engines know it by; a random part is added"`
	Probe     bool   `flag:"probe" help:"start the transport, print a line of JSON that says what it works with, and exit with 0; or say what is missing, and exit with 4"`
}

func defaults() config { return config{Transport: overNIXL, Name: "tandem-keeper"} }

// maxName leaves room for the random part, in bytes; see transfer.MaxName.
const maxName = 200

// Validate implements boot.Validator.
func (c *config) Validate(p *boot.Problems) {
	p.Require(c.Name != "" && len(c.Name) <= maxName && !strings.ContainsRune(c.Name, 0), "name",
		"%q: want 1 to %d bytes, none of them zero", c.Name, maxName)
	p.Require(c.Library == "" || c.Transport == overNIXL, "library", "has no effect with --transport %s: leave it out", c.Transport)
}

func run(_ context.Context, std boot.IO, args []string) error {
	cfg := defaults()
	if _, err := program.Load(ownEnvironment(std), &cfg, args); err != nil {
		return err
	}
	if cfg.Probe {
		return probe(std, cfg)
	}
	conn, err := keeper.Socket()
	if err != nil {
		return boot.Usagef("this program is started by the sidecar, which tells it what to do over a socket, and here is none (%w): "+
			"give the sidecar its path as --keeper, or see with --probe whether it would work", err)
	}
	defer conn.Close()
	// Signals that end the sidecar often go to all of its processes: Ctrl-C does, and service managers do. But while the
	// sidecar drains, engines still have to be told, so its hanging up is the only sign that ends this one.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return serve(conn, cfg)
}

// ownEnvironment is the environment, which is the sidecar's as well, without the name of the sidecar's file of settings.
func ownEnvironment(std boot.IO) boot.IO {
	all := std.Env
	std.Env = func(name string) (string, bool) {
		if all == nil || name == "TANDEM_CONFIG" {
			return "", false
		}
		return all(name)
	}
	return std
}

// serve works until the sidecar hangs up. The agent is not closed: nobody is told that it ends, and a call that hangs in the
// library would keep it from ending.
func serve(conn net.Conn, cfg config) error {
	a, err := startWithin(startLimit, cfg.start)
	if err == nil {
		return keeper.Serve(conn, a.Notifier, a.about)
	}
	if unheard := keeper.Decline(conn, err); unheard != nil {
		return boot.Missingf("%w (the sidecar could not be told: %w)", err, unheard)
	}
	return boot.Exit{Code: boot.CodeMissing} // the sidecar says why
}

// probed is what --probe prints.
type probed struct {
	Transport string `json:"transport"`
	About     string `json:"about"`
}

func probe(std boot.IO, cfg config) error {
	a, err := startWithin(startLimit, cfg.start)
	if err != nil {
		return boot.Missingf("%w", err)
	}
	line, err := json.Marshal(probed{cfg.Transport, a.about})
	if err == nil {
		_, err = fmt.Fprintf(std.Stdout, "%s\n", line)
	}
	if err != nil {
		return fmt.Errorf("printing what was found: %w", err)
	}
	return nil
}
