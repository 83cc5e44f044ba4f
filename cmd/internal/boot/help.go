package boot

import (
	"fmt"
	"io"
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
	fmt.Fprintf(w, `
Every flag can also be set by an environment variable (--log-level by %s) or in the
--config file (log-level: debug). A flag wins over the environment, that over the file.

Exit codes: %d clean, %d failed while running, %d wrong command line, %d invalid configuration,
%d cannot listen or a part is missing.
`, envName("log-level"), CodeOK, CodeFailed, CodeUsage, CodeConfig, CodeMissing)
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
	writeWrapped(w, "        ", text)
}

// writeForeign lists the known flags of other products that are not supported or have no effect.
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
	if len(ignored) > 0 {
		fmt.Fprintf(w, "\nAccepted without effect:\n")
	}
	for _, o := range ignored {
		writeWrapped(w, "  ", fmt.Sprintf("--%s: %s", strings.Join(o.names(), ", --"), o.ignored))
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
