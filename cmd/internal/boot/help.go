package boot

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// helpWidth is where the help page breaks lines, in columns.
const helpWidth = 96

// writeHelp prints the help page.
func (t *table) writeHelp(w io.Writer, name string, p Program) {
	usage := strings.TrimRight(fmt.Sprintf("%s [flags] %s", name, p.Operands), " ")
	fmt.Fprintf(w, "%s\n\nUsage: %s\n", p.Summary, usage)
	for _, group := range t.groups() {
		fmt.Fprintf(w, "\n%s:\n", group)
		for _, o := range t.options {
			if o.group == group && !o.inert() {
				o.writeHelp(w)
			}
		}
	}
	t.writeForeign(w)
	for _, heading := range slices.Sorted(maps.Keys(p.Notes)) {
		fmt.Fprintf(w, "\n%s:\n", heading)
		for _, paragraph := range p.Notes[heading] {
			writeWrapped(w, "  ", paragraph)
		}
	}
	fmt.Fprintln(w)
	if o := t.example(); o != nil && !p.NoSettings {
		writeWrapped(w, "", fmt.Sprintf("Every flag can also be set by an environment variable (--%s by %s) or in the --config file, under its "+
			"name without dashes (%s). A flag wins over the environment, that over the file.", o.name, envName(o.name), o.name))
		fmt.Fprintln(w)
	}
	writeWrapped(w, "", fmt.Sprintf("Exit codes: %d clean, %d failed while running, %d wrong command line, %d invalid configuration, "+
		"%d cannot listen or a part is missing.", CodeOK, CodeFailed, CodeUsage, CodeConfig, CodeMissing))
}

// example returns a flag of the program itself to show how flags can be set; nil if it has none.
func (t *table) example() *option {
	if o := t.byName["log-level"]; o != nil {
		return o
	}
	i := slices.IndexFunc(t.options, func(o *option) bool { return !o.inert() && !o.isSwitch() && o.group != builtinGroup })
	if i < 0 {
		return nil
	}
	return t.options[i]
}

// groups lists the headings in the order of their first flag; the program's
// own come last.
func (t *table) groups() []string {
	var groups []string
	seen := map[string]bool{}
	for _, o := range t.options {
		if !seen[o.group] && !o.inert() {
			seen[o.group] = true
			groups = append(groups, o.group)
		}
	}
	return groups
}

func (o *option) writeHelp(w io.Writer) {
	fmt.Fprintf(w, "  --%s", o.name)
	if o.arg != "" {
		fmt.Fprintf(w, " %s", o.arg)
	}
	fmt.Fprintln(w)
	text := o.help
	if len(o.enum) > 0 {
		text += ": " + strings.Join(o.enum, ", ")
	}
	if o.fallback != "" && o.fallback != "false" {
		text += " (default " + o.fallback + ")"
	}
	if len(o.aliases) > 0 {
		text += "; also --" + strings.Join(o.aliases, ", --")
	}
	if len(o.foreign) > 0 {
		text += "; also " + strings.Join(o.foreign, ", ") + " in the environment"
	}
	writeWrapped(w, "        ", text)
}

// writeForeign lists the known flags and variables of other products that are not supported or have no effect.
func (t *table) writeForeign(w io.Writer) {
	var refused, ignored []*option
	for _, o := range t.options {
		switch {
		case o.refused != "":
			refused = append(refused, o)
		case o.ignored != "":
			ignored = append(ignored, o)
		}
	}
	if len(refused) > 0 {
		fmt.Fprintf(w, "\nNot supported:\n")
	}
	for _, o := range refused {
		writeWrapped(w, "  ", fmt.Sprintf("--%s: %s", strings.Join(o.names(), ", --"), o.refused))
	}
	if len(ignored)+len(t.variables) > 0 {
		fmt.Fprintf(w, "\nAccepted without effect:\n")
	}
	for _, o := range ignored {
		writeWrapped(w, "  ", fmt.Sprintf("--%s: %s", strings.Join(o.names(), ", --"), o.ignored))
	}
	for _, v := range t.variables {
		writeWrapped(w, "  ", fmt.Sprintf("%s in the environment: %s", v.name, v.ignored))
	}
}

// writeWrapped prints text in lines of helpWidth columns.
func writeWrapped(w io.Writer, indent, text string) {
	line := indent
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > helpWidth && line != indent {
			fmt.Fprintln(w, line)
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(w, line)
}
