// Command keeper is the NIXL agent process: it runs NIXL's library for the sidecar, in a process of its own for the reasons
// in package transfer/keeper. The sidecar starts it, sends it requests to notify engines over a shared socket, and restarts
// it when it dies. Built with the tag nixl it supports NIXL, for real engines; built without it, the simulator's TCP, for
// simulated ones.
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

var program = boot.Program{Summary: "keeper is the sidecar's NIXL agent process: it notifies prefill engines over NIXL to keep or release KV. The sidecar starts it (--keeper); by hand, only --probe is useful."}

// config is the command line.
type config struct {
	Transport string `flag:"transport" enum:"nixl,tcp" help:"how engines are notified; tcp is for simulated ones"`
	Library   string `flag:"library" arg:"PATH" help:"libnixl_capi.so, or its folder; empty: TANDEM_NIXL_LIB, else the dynamic loader's, else that of an installed wheel nixl-cu12 or nixl-cu13"`
	Name      string `flag:"name" help:"agent name shown to engines; a random part is added"`
	Probe     bool   `flag:"probe" help:"start the transport, print a line of JSON that describes it, and exit with 0; or print what is missing, and exit with 4"`
}

func defaults() config { return config{Transport: overNIXL, Name: "tandem-keeper"} }

// maxName leaves space for the random part, in bytes; see transfer.MaxName.
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
		return boot.Usagef("the sidecar starts this program and controls it over a socket, which is missing (%w): "+
			"pass its path to the sidecar as --keeper, or check with --probe whether it works", err)
	}
	defer conn.Close()
	// Signals that end the sidecar often go to all of its processes: Ctrl-C does, and service managers do. But while the
	// sidecar drains, engines still have to be notified, so only the end of the connection ends this process.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return serve(conn, cfg)
}

// ownEnvironment returns the environment, which is also the sidecar's, without the variable that names the sidecar's config
// file.
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

// serve works until the sidecar closes the connection. It does not close the agent: no engine needs to know, and a call that
// hangs in the library would keep the process from ending.
func serve(conn net.Conn, cfg config) error {
	a, err := startWithin(startLimit, cfg.start)
	if err == nil {
		return keeper.Serve(conn, a.Notifier, a.about)
	}
	if unheard := keeper.Decline(conn, err); unheard != nil {
		return boot.Missingf("%w (reporting it to the sidecar: %w)", err, unheard)
	}
	return boot.Exit{Code: boot.CodeMissing} // the sidecar logs the cause
}

// probed is the output of --probe.
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
		return fmt.Errorf("printing the result: %w", err)
	}
	return nil
}
