package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// line is one finding in the report. Its JSON form is stable.
type line struct {
	Group   string  `json:"group"`
	Check   string  `json:"check"`
	Verdict verdict `json:"verdict"` // ok, warn, FAIL or unknown
	Seen    string  `json:"seen"`
	Do      string  `json:"advice,omitempty"` // on trouble
	Looks   string  `json:"about"`
}

// report is all findings, in order.
type report []line

func (r *report) add(c check, f finding) {
	l := line{Group: c.group, Check: c.name, Verdict: f.verdict, Seen: f.seen, Looks: c.looks}
	switch {
	case f.do != "":
		l.Do = f.do
	case f.verdict == warn || f.verdict == fail:
		l.Do = c.do
	}
	*r = append(*r, l)
}

// verdict is fail if a check has failed, else warn if one has warned, else ok.
func (r report) verdict() verdict {
	all := ok
	for _, l := range r {
		if l.Verdict != unknown && slices.Index(severity, l.Verdict) > slices.Index(severity, all) {
			all = l.Verdict
		}
	}
	return all
}

func (r report) count(v verdict) (n int) {
	for _, l := range r {
		if l.Verdict == v {
			n++
		}
	}
	return n
}

// write shows the report.
func (r report) write(w io.Writer, asJSON bool, paint func(verdict, string) string) error {
	if asJSON {
		return writeJSON(w, struct {
			Verdict verdict `json:"verdict"`
			Checks  []line  `json:"checks"`
		}{r.verdict(), r})
	}
	var b strings.Builder
	group := ""
	for _, l := range r {
		if l.Group != group {
			group = l.Group
			fmt.Fprintf(&b, "%s\n", group)
		}
		fmt.Fprintf(&b, "  %s  %-13s  %s", paint(l.Verdict, fmt.Sprintf("%-7s", l.Verdict)), l.Check, l.Seen)
		if l.Do != "" {
			fmt.Fprintf(&b, " → %s", l.Do)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "%d ok, %d warn, %d FAIL, %d unknown\n", r.count(ok), r.count(warn), r.count(fail), r.count(unknown))
	_, err := io.WriteString(w, b.String())
	return err
}

// writeJSON writes a value for people and programs.
func writeJSON(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(value)
}

// colours returns a function that colours verdicts if stdout is a terminal and NO_COLOR is not set.
func colours(std boot.IO) func(verdict, string) string {
	plain := func(_ verdict, text string) string { return text }
	if !boot.IsTerminal(std.Stdout) {
		return plain
	}
	if std.Env != nil {
		if value, set := std.Env("NO_COLOR"); set && value != "" {
			return plain
		}
	}
	codes := map[verdict]string{ok: "32", warn: "33", fail: "31;1", unknown: "36"}
	return func(v verdict, text string) string { return "\x1b[" + codes[v] + "m" + text + "\x1b[0m" }
}
