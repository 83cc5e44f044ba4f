// Command tandem is the user's tool.
package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/demo"
)

func main() { boot.Main(run) }

// command is one thing the tool can do.
type command struct {
	name    string
	summary string
	run     boot.Func
}

// commands is all that the tool can do.
var commands = []command{
	{"demo", demo.Summary, demo.Run},
}

func run(ctx context.Context, std boot.IO, args []string) error {
	if len(args) == 0 {
		return boot.Usagef("a command is missing: want one of %s (%s --help says more)", names(), std.Name)
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
	return boot.Usagef("unknown command %q, did you mean %s? (%s --help lists all)", args[0], nearest(args[0]), std.Name)
}

func names() string {
	all := make([]string, len(commands))
	for i, c := range commands {
		all[i] = c.name
	}
	return strings.Join(all, ", ")
}

// nearest is the command that shares most letters with a name: enough for names of one word.
func nearest(name string) string {
	return slices.MaxFunc(commands, func(a, b command) int { return shared(a.name, name) - shared(b.name, name) }).name
}

// shared counts the letters of a that also occur in b.
func shared(a, b string) (n int) {
	for _, letter := range a {
		if strings.ContainsRune(b, letter) {
			n++
		}
	}
	return n
}

func writeHelp(w io.Writer, name string) error {
	_, err := fmt.Fprintf(w, "%s is the user's tool of Tandem.\n\nUsage: %s COMMAND [flags]\n\nCommands:\n", name, name)
	for _, c := range commands {
		if err == nil {
			_, err = fmt.Fprintf(w, "  %-8s %s\n", c.name, c.summary)
		}
	}
	if err == nil {
		_, err = fmt.Fprintf(w, "\n%s COMMAND --help lists the flags of a command; %s --version prints the version.\n", name, name)
	}
	return err
}
