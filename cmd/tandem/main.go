// Command tandem is the tool for users of Tandem.
package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/batch"
	"github.com/tandem-serving/tandem/cmd/tandem/bench"
	"github.com/tandem-serving/tandem/cmd/tandem/check"
	"github.com/tandem-serving/tandem/cmd/tandem/demo"
	"github.com/tandem-serving/tandem/cmd/tandem/doctor"
	"github.com/tandem-serving/tandem/cmd/tandem/drain"
	"github.com/tandem-serving/tandem/cmd/tandem/envoyconfig"
	"github.com/tandem-serving/tandem/cmd/tandem/explain"
	"github.com/tandem-serving/tandem/cmd/tandem/gateway"
	"github.com/tandem-serving/tandem/cmd/tandem/load"
	"github.com/tandem-serving/tandem/cmd/tandem/replay"
	"github.com/tandem-serving/tandem/cmd/tandem/shadow"
	"github.com/tandem-serving/tandem/cmd/tandem/up"
	"github.com/tandem-serving/tandem/cmd/tandem/why"
)

func main() { boot.Main(run) }

// command is one subcommand of the tool.
type command struct {
	name    string
	summary string
	run     boot.Func
}

// commands lists all subcommands.
var commands = []command{
	{"up", up.Summary, up.Run},
	{"demo", demo.Summary, demo.Run},
	{"check", check.Summary, check.Run},
	{"explain", explain.Summary, explain.Run},
	{"why", why.Summary, why.Run},
	{"shadow", shadow.Summary, shadow.Run},
	{"doctor", doctor.Summary, doctor.Run},
	{"drain", drain.Summary, drain.Run},
	{"envoy-config", envoyconfig.Summary, envoyconfig.Run},
	{"gateway", gateway.Summary, gateway.Run},
	{"load", load.Summary, load.Run},
	{"replay", replay.Summary, replay.Run},
	{"advise", replay.AdviseSummary, replay.Advise},
	{"batch", batch.Summary, batch.Run},
	{"bench", bench.Summary, bench.Run},
}

func run(ctx context.Context, std boot.IO, args []string) error {
	if len(args) == 0 {
		return boot.Usagef("a command is missing: use one of %s (%s --help describes them)", strings.Join(names(), ", "), std.Name)
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		return writeHelp(std.Stdout, std.Name)
	case "-version", "--version":
		_, err := fmt.Fprintln(std.Stdout, std.Name, boot.ReadVersion())
		return err
	}
	for _, c := range commands {
		if c.name == args[0] {
			std.Name += " " + c.name
			return c.run(ctx, std, args[1:])
		}
	}
	meant := ""
	if near := boot.Nearest(args[0], names()); near != "" {
		meant = fmt.Sprintf(", did you mean %s?", near)
	}
	return boot.Usagef("unknown command %q%s (%s --help lists all)", args[0], meant, std.Name)
}

func names() []string {
	all := make([]string, len(commands))
	for i, c := range commands {
		all[i] = c.name
	}
	return all
}

func writeHelp(w io.Writer, name string) error {
	_, err := fmt.Fprintf(w, "%s is the tool for users of Tandem.\n\nUsage: %s COMMAND [flags]\n\nCommands:\n", name, name)
	for _, c := range commands {
		if err == nil {
			_, err = fmt.Fprintf(w, "  %-12s %s\n", c.name, c.summary)
		}
	}
	if err == nil {
		_, err = fmt.Fprintf(w, "\n%s COMMAND --help lists the flags of a command; %s --version prints the version.\n", name, name)
	}
	return err
}
