package boot

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"regexp"
	"strings"
)

// Program describes a program for its help page.
type Program struct {
	Summary  string // one sentence
	Operands string // what may follow the flags, such as "FILE"; empty: no operands
	// Notes has a section of the help page after the flags, by its heading: one paragraph for each string.
	Notes map[string][]string
	// NoSettings is for a program without settings: it has neither --config nor --check, unless it refuses them itself.
	NoSettings bool
}

// builtinGroup is the heading of the flags that every program has.
const builtinGroup = "Program"

// settingsFlags are the flags that every program with settings has.
type settingsFlags struct {
	Config string `flag:"config" arg:"FILE" help:"read settings from this YAML or JSON file; its keys are the flag names"`
	Check  bool   `flag:"check" help:"print the effective configuration, or all problems of it, and exit with 0 or 3"`
}

// versionFlag is the flag that every program has.
type versionFlag struct {
	Version bool `flag:"version" help:"print the version and exit"`
}

// Load fills cfg, a pointer to a struct that holds the defaults, and returns the operands. The precedence is: flag,
// environment variable TANDEM_<NAME> (an empty one counts as unset), other variables of the flag, config file, default.
//
// A field with the tag flag:"name" declares a flag. More tags are help (the manual), arg (name of the value), alias (other
// spellings, comma separated), env (variables of another product that set the flag, comma separated) and enum (allowed
// texts). A blank field with the tags flag and refused declares a flag of another product that is not supported; the text of
// refused names the replacement. A blank field with flag and ignored is accepted without effect, a bool without a value; one
// with env and ignored is a variable without effect, of which a set one is logged. A struct field is a group of flags, with the
// tag group for the heading.
//
// The error is an [Exit]: with CodeOK and no cause if the user only asked for --help, --version or --check; with CodeUsage
// for a wrong command line; with CodeConfig for invalid values, with one problem per line. Load calls every [Validator] in
// cfg.
func (p Program) Load(std IO, cfg any, args []string) ([]string, error) {
	var own struct {
		Settings settingsFlags `group:"Program"`
	}
	var last struct {
		Version versionFlag `group:"Program"`
	}
	structs := []any{cfg, &own, &last}
	if p.NoSettings {
		structs = []any{cfg, &last}
	}
	t := newTable(structs...)
	operands, err := t.parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		t.writeHelp(std.Stdout, std.Name, p)
		return nil, Exit{Code: CodeOK}
	case err == nil && len(operands) > 0 && p.Operands == "":
		err = fmt.Errorf("unexpected argument %q", operands[0])
	}
	if err != nil {
		return nil, Usagef("%w (--help lists the flags)", err)
	}
	found := &Problems{table: t}
	var file map[*option]fileValue
	if !p.NoSettings {
		t.set(std, found, t.byName["config"], fileValue{})
		file = t.readFile(own.Settings.Config, found)
	}
	t.resolve(std, found, file)
	validate(cfg, found)
	if last.Version.Version {
		fmt.Fprintf(std.Stdout, "%s %s\n", std.Name, ReadVersion())
		return nil, Exit{Code: CodeOK}
	}
	if err := found.err(own.Settings.Check); err != nil {
		return nil, err
	}
	if own.Settings.Check {
		return nil, t.writeEffective(std.Stdout)
	}
	t.writeNotes(std)
	return operands, nil
}

// parse splits the command line into options and operands. Values stay texts until resolve, so that all wrong ones are
// reported together.
func (t *table) parse(args []string) (operands []string, err error) {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	for _, o := range t.options {
		for _, name := range o.names() {
			fs.Var(&rawValue{o}, name, "")
		}
	}
	for {
		if err := fs.Parse(args); err != nil {
			return nil, t.explain(err)
		}
		rest := fs.Args()
		if len(rest) == 0 {
			return operands, t.refusal()
		}
		// The flag package stops at the first operand; GNU programs do not. After "--" both stop.
		if n := len(args) - len(rest); n > 0 && args[n-1] == "--" {
			return append(operands, rest...), t.refusal()
		}
		operands, args = append(operands, rest[0]), rest[1:]
	}
}

// explain rewrites an error of the flag package in our words. It matches texts, because the package has no error types.
func (t *table) explain(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	if name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); ok {
		return fmt.Errorf("unknown flag --%s%s", name, t.didYouMean(name, "--"))
	}
	if name, ok := strings.CutPrefix(err.Error(), "flag needs an argument: -"); ok {
		return fmt.Errorf("flag --%s needs a value", name)
	}
	return err
}

// refusal returns the error about the first refused flag on the command line.
func (t *table) refusal() error {
	for _, o := range t.options {
		if o.refused != "" && len(o.raw) > 0 {
			return fmt.Errorf("flag --%s is not supported: %s", o.name, o.refused)
		}
	}
	return nil
}

// rawValue is a flag.Value that stores the text without parsing it.
type rawValue struct{ *option }

func (r *rawValue) String() string { return "" }

func (r *rawValue) Set(text string) error {
	r.raw = append(r.raw, text)
	return nil
}

// IsBoolFlag lets the flag package accept a switch without a value.
func (r *rawValue) IsBoolFlag() bool { return r.isSwitch() }

// resolve sets every value by precedence. The option config has been set before, because it names the file.
func (t *table) resolve(std IO, found *Problems, file map[*option]fileValue) {
	for _, o := range t.options {
		if !o.inert() && (o.name != "config" || o.group != builtinGroup) {
			t.set(std, found, o, file[o])
		}
	}
}

// set sets the option from the source with the highest precedence that has a value.
func (t *table) set(std IO, found *Problems, o *option, file fileValue) {
	var texts []string
	switch name, env := o.environment(std); {
	case len(o.raw) > 0:
		texts, o.origin = o.raw, "--"+o.name
	case env != "":
		texts, o.origin = []string{env}, name
	case file.origin != "":
		texts, o.origin = file.texts, file.origin
	default:
		return
	}
	if err := o.parseAll(texts); err != nil {
		found.Add(o.name, "%w", err)
		found.usage = found.usage || len(o.raw) > 0
	}
}

// serviceLink matches the value that Kubernetes puts into TANDEM_PORT of every container next to a Service called "tandem".
// No number looks like it, so it is ignored.
var serviceLink = regexp.MustCompile(`^(tcp|udp|sctp)://[^/]+:\d+$`)

// environment returns the variable that sets the option, and its value; "" if there is none. --check and --version are read
// from the command line only: an image may set TANDEM_VERSION for reasons of its own.
func (o *option) environment(std IO) (name, value string) {
	if o.group == builtinGroup && o.name != "config" {
		return "", ""
	}
	for _, name := range append([]string{envName(o.name)}, o.foreign...) {
		value := std.env(name)
		if value != "" && (o.kind.Kind() != reflect.Int || !serviceLink.MatchString(value)) {
			return name, value
		}
	}
	return "", ""
}

// envName returns the environment variable of a flag.
func envName(flagName string) string {
	return "TANDEM_" + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

// writeNotes logs the settings that have no effect.
func (t *table) writeNotes(std IO) {
	for _, o := range t.options {
		if o.ignored != "" && len(o.raw) > 0 {
			t.logger(std).Warn("flag has no effect", "flag", o.name, "reason", o.ignored)
		}
	}
	for _, v := range t.variables {
		if std.env(v.name) != "" {
			t.logger(std).Warn("environment variable has no effect", "variable", v.name, "reason", v.ignored)
		}
	}
}

// logger returns the program's own logger if its config struct has a [Log], else a default one.
func (t *table) logger(std IO) *slog.Logger {
	if t.log == nil {
		return Log{}.New(std)
	}
	return t.log.New(std)
}
