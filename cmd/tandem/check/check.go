package check

import (
	"context"
	"fmt"
	"io"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
)

// Summary is what the command does, for help pages.
const Summary = "check an EndpointPickerConfig, and print it with all defaults"

// settings has, besides its own, flags that other commands have, and that a user may expect to name the configuration to check.
type settings struct {
	Migrate bool `flag:"migrate" help:"print what of a configuration of llm-d's has another effect here, and its old names, in place of the effective configuration"`

	_ struct{} `flag:"config" refused:"this command has no settings of its own. To check a configuration, name its file: check FILE"`
	_ struct{} `flag:"check" refused:"this command always checks. Name the file of the configuration: check FILE"`
}

// Run runs the command. The operand is a file, "-" for stdin, or nothing for the built-in configuration. The effective
// configuration goes to stdout, warnings go to stderr; with --migrate both the warnings and the differences from llm-d go to
// stdout, and nothing else. If the configuration is invalid, the error is an Exit with CodeConfig, with every problem on a line
// of its own.
func Run(_ context.Context, std boot.IO, args []string) error {
	program := boot.Program{Summary: "check: " + Summary + ".", Operands: "[FILE | -]", NoSettings: true}
	var cfg settings
	files, err := program.Load(std, &cfg, args)
	if err != nil {
		return err
	}
	if len(files) > 1 {
		return boot.Usagef("want one FILE, got %d", len(files))
	}
	name, data, err := read(std, files)
	if err != nil {
		return boot.Configf("reading the configuration: %w", err)
	}
	c, err := config.Parse(data, plugin.Table)
	if err != nil {
		return boot.Configf("checking %s:\n%w", name, err)
	}
	if cfg.Migrate {
		return writeDifferences(std.Stdout, name, c)
	}
	for _, warning := range c.Warnings {
		fmt.Fprintf(std.Stderr, "%s: warning: %s\n", name, warning)
	}
	if _, err := std.Stdout.Write(c.YAML()); err != nil {
		return fmt.Errorf("printing the configuration: %w", err)
	}
	return nil
}

// read returns the configuration, and a name for it.
func read(std boot.IO, files []string) (name string, data []byte, err error) {
	switch {
	case len(files) == 0:
		return "the built-in configuration", config.Default(), nil
	case files[0] == "-":
		data, err = io.ReadAll(io.LimitReader(std.Stdin, config.MaxSize+1))
		return "stdin", data, err
	}
	data, err = epp.ReadFile(files[0], config.MaxSize)
	return files[0], data, err
}
