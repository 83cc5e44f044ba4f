package flagpage

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// Load runs a program's Program.Load on a fresh struct of its defaults.
type Load func(std boot.IO, args []string) error

// foreignGroup is the group of the flags that a program has only because the one it replaces has them.
const foreignGroup = "Known from llm-d"

// surface has the names of all flags and environment variables of llm-d's programs, by heading.
//
//go:embed llm-d.txt
var surface string

// Check tries every row of the tables under a heading of a page that compares a program's flags and environment variables with
// those of the program it replaces. A supported flag must pass --check and have the documented default; an ignored one must be
// logged as such; the error of a refused one must name what the page names. A variable that sets a flag must be the origin of
// its value. Every name of surface under the heading must have a row, and so must every flag of foreignGroup and every foreign
// variable in config, the program's config struct. The caller provides the files that examples name, in the working folder.
func Check(t *testing.T, page, heading string, config any, load Load) {
	rows, variables := rowsOf(t, page, heading)
	for _, name := range namesOf(t, heading) {
		if !slices.ContainsFunc(rows, func(r row) bool { return "--"+r.name() == name }) &&
			!slices.ContainsFunc(variables, func(r variableRow) bool { return r.name == name }) {
			t.Errorf("%s of %s has no row", name, heading)
		}
	}
	known := declarations{variables: map[string]bool{}}
	known.add(reflect.TypeOf(config), false)
	for _, name := range known.flags {
		if !slices.ContainsFunc(rows, func(r row) bool { return r.name() == name }) {
			t.Errorf("--%s is known to the program and has no row", name)
		}
	}
	for name := range known.variables {
		if !slices.ContainsFunc(variables, func(r variableRow) bool { return r.name == name }) {
			t.Errorf("%s in the environment is known to the program and has no row", name)
		}
	}
	for _, r := range variables {
		t.Run(r.name, func(t *testing.T) { r.try(t, known.variables[r.name], load) })
	}
	defaults := defaultsOf(t, load)
	for _, r := range rows {
		t.Run(r.example[0], func(t *testing.T) {
			r.compare(t, defaults)
			r.try(t, r.example, load)
			if r.apart() != nil {
				r.try(t, r.apart(), load)
			}
		})
	}
}

// namesOf returns the flags, with dashes, and variables of surface under a heading.
func namesOf(t *testing.T, heading string) []string {
	t.Helper()
	_, names, found := strings.Cut(surface, "\n["+heading+"]\n")
	if !found {
		t.Fatalf("llm-d.txt has no part [%s]", heading)
	}
	names, _, _ = strings.Cut(names, "\n[")
	return strings.Fields(names)
}

// defaultsOf returns the defaults of all flags, as --check prints them.
func defaultsOf(t *testing.T, load Load) map[string]any {
	t.Helper()
	var printed bytes.Buffer
	var defaults map[string]any
	err := load(boot.IO{Name: "program", Stdout: &printed, Stderr: io.Discard}, []string{"--check"})
	if err = cmp.Or(failure(err), yaml.Unmarshal(printed.Bytes(), &defaults)); err != nil {
		t.Fatal(err)
	}
	return defaults
}

// failure returns err, or nil if err is an Exit with CodeOK.
func failure(err error) error {
	if exit, ok := errors.AsType[boot.Exit](err); ok && exit.Code == boot.CodeOK {
		return nil
	}
	return err
}

// declarations are what a config struct knows of the program that is replaced.
type declarations struct {
	flags     []string
	variables map[string]bool // true: it sets a flag
}

// add reads the tags of a struct and of those inside it.
func (d *declarations) add(config reflect.Type, foreign bool) {
	for field := range config.Fields() {
		name, isFlag := field.Tag.Lookup("flag")
		if isFlag && foreign {
			d.flags = append(d.flags, name)
		}
		if names := field.Tag.Get("env"); names != "" {
			for name := range strings.SplitSeq(names, ",") {
				d.variables[name] = isFlag
			}
		} else if !isFlag && field.Type.Kind() == reflect.Struct {
			d.add(field.Type, foreign || field.Tag.Get("group") == foreignGroup)
		}
	}
}

// row is one row of a table of flags in docs/flags.md.
type row struct {
	example []string // the flag with a value, and the flags it needs
	theirs  string   // default of the program it comes from
	ours    string   // default here
	verdict string   // same, different, ignored or refused
	text    string
}

// name returns the flag's name, without dashes.
func (r row) name() string {
	name, _, _ := strings.Cut(strings.TrimLeft(r.example[0], "-"), "=")
	return name
}

// apart returns the example with each value as an argument of its own, or nil if it begins with a switch, which takes none.
func (r row) apart() (args []string) {
	for i, arg := range r.example {
		name, value, valued := strings.Cut(arg, "=")
		if i == 0 && (!valued || value == "true" || value == "false") {
			return nil
		}
		if args = append(args, name); valued {
			args = append(args, value)
		}
	}
	return args
}

// compare checks the page's defaults against the program's.
func (r row) compare(t *testing.T, defaults map[string]any) {
	value, known := defaults[r.name()]
	if want := fmt.Sprint(value); known && want != "[]" && r.ours != want {
		t.Errorf("the page says that the default is %q, and it is %q", r.ours, want)
	}
	if r.verdict == "same" && known && r.theirs != r.ours {
		t.Errorf("the page says same, but the default is %q here and %q there", r.ours, r.theirs)
	}
}

func (r row) try(t *testing.T, args []string, load Load) {
	var stderr bytes.Buffer
	std := boot.IO{Name: "program", Stdout: io.Discard, Stderr: &stderr}
	switch r.verdict {
	case "same", "different":
		if err := failure(load(std, append(args, "--check"))); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	case "ignored":
		if err := load(std, args); err != nil || !strings.Contains(stderr.String(), "flag="+r.name()) {
			t.Errorf("%q: %v, stderr %q", args, err, &stderr)
		}
	case "refused":
		r.refused(t, args, load(std, args))
	default:
		t.Errorf("%q is not a verdict: want same, different, ignored or refused", r.verdict)
	}
}

// quoted matches code spans of a page.
var quoted = regexp.MustCompile("`([^`]+)`")

// refused checks that the error is a usage or configuration error, and contains every code span of the row's text.
func (r row) refused(t *testing.T, args []string, err error) {
	exit, ok := errors.AsType[boot.Exit](err)
	if !ok || exit.Code != boot.CodeUsage && exit.Code != boot.CodeConfig {
		t.Errorf("%q: %v, want a refusal", args, err)
		return
	}
	if !strings.Contains(err.Error(), r.name()) {
		t.Errorf("%q: refused for another reason: %v", args, err)
	}
	for _, code := range quoted.FindAllStringSubmatch(r.text, -1) {
		if !strings.Contains(err.Error(), code[1]) {
			t.Errorf("%q: %v does not name %s, as the page does", args, err, code[1])
		}
	}
}

// variableRow is one row of a table of environment variables.
type variableRow struct {
	name, value string
	args        []string // flags that the variable needs
	verdict     string   // same, different or ignored
	text        string
}

// try checks the verdict. setsFlag says that the variable must set one.
func (r variableRow) try(t *testing.T, setsFlag bool, load Load) {
	var stdout, stderr bytes.Buffer
	std := boot.IO{Name: "program", Stdout: &stdout, Stderr: &stderr,
		Env: func(key string) (string, bool) {
			if key == r.name {
				return r.value, true
			}
			return "", false
		}}
	if err := load(std, r.args); err != nil {
		t.Fatalf("%s=%s: %v", r.name, r.value, err)
	}
	logged := strings.Contains(stderr.String(), "variable="+r.name+" ")
	switch r.verdict {
	case "same", "different":
		if logged {
			t.Errorf("it is logged to have no effect: %s", &stderr)
		}
		if err := failure(load(std, append(slices.Clone(r.args), "--check"))); err != nil {
			t.Errorf("--check: %v", err)
		}
		if origin := "# " + r.name + "\n"; setsFlag != strings.Contains(stdout.String(), origin) {
			t.Errorf("want %q in the effective configuration: %v; got\n%s", origin, setsFlag, &stdout)
		}
	case "ignored":
		if !logged {
			t.Errorf("it is not logged to have no effect: stderr is %q", &stderr)
		}
		for _, code := range quoted.FindAllStringSubmatch(r.text, -1) {
			if !strings.Contains(stderr.String(), code[1]) {
				t.Errorf("the log %q does not name %s, as the page does", &stderr, code[1])
			}
		}
	default:
		t.Errorf("%q is not a verdict of a variable: want same, different or ignored", r.verdict)
	}
}

// variable matches the first cell of a row about an environment variable.
var variable = regexp.MustCompile("^`([A-Z][A-Z0-9_]*)=([^ `]*)([^`]*)`$")

// rowsOf reads the tables under a heading: of flags, and of environment variables.
func rowsOf(t *testing.T, page, heading string) (rows []row, variables []variableRow) {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(data), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i, cell := range cells {
			cells[i] = strings.TrimSpace(cell)
		}
		if v := variable.FindStringSubmatch(cells[0]); v != nil && len(cells) == 3 {
			variables = append(variables, variableRow{v[1], v[2], strings.Fields(v[3]), cells[1], cells[2]})
			continue
		}
		if len(cells) != 5 {
			t.Fatalf("%d cells, want flag, two defaults, verdict and text, or variable, verdict and text: %s", len(cells), line)
		}
		rows = append(rows, row{strings.Fields(strings.Trim(cells[0], "`")), cells[1], cells[2], cells[3], cells[4]})
	}
	return rows, variables
}
