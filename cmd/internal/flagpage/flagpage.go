package flagpage

import (
	"bytes"
	"cmp"
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

// Check tries every row of the table under a heading of a page that compares a program's flags with those of the program it
// replaces. A supported flag must pass --check and have the documented default; an ignored one must be logged as such; the
// error of a refused one must name what the page names. Every flag of foreign, a config struct, must have a row. The caller
// provides the files that examples name, in the working folder.
func Check(t *testing.T, page, heading string, foreign any, load Load) {
	rows := rowsOf(t, page, heading)
	for field := range reflect.TypeOf(foreign).Fields() {
		if name := field.Tag.Get("flag"); !slices.ContainsFunc(rows, func(r row) bool { return r.name() == name }) {
			t.Errorf("--%s is known to the program and has no row", name)
		}
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

// row is one row of a table of docs/flags.md.
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

// rowsOf reads the table under a heading.
func rowsOf(t *testing.T, page, heading string) (rows []row) {
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
		if !strings.HasPrefix(line, "| `--") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 5 {
			t.Fatalf("%d cells, want flag, two defaults, verdict and text: %s", len(cells), line)
		}
		for i, cell := range cells {
			cells[i] = strings.TrimSpace(cell)
		}
		rows = append(rows, row{strings.Fields(strings.Trim(cells[0], "`")), cells[1], cells[2], cells[3], cells[4]})
	}
	return rows
}
