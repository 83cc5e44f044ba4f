package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one error of a configuration.
type Problem struct {
	Line    int    // in the file, from 1; 0 = no certain line
	Field   string // path such as plugins[2].parameters.nonCachedTokens; "" = the whole file
	Message string
}

// String returns the problem in the form "line 12: plugins[2].type: …".
func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", p.Line)
	}
	if p.Field != "" {
		fmt.Fprintf(&b, "%s: ", p.Field)
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems is the error of a configuration that cannot be used: everything that is wrong with it, in the order of the file,
// and at most one problem for each field, since a second one is usually a consequence of the first.
type Problems []Problem

// Error returns the problems, one per line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// maxProblems limits how many problems of one file are printed.
const maxProblems = 100

// findings collects problems and warnings while a file is read.
type findings struct {
	lines    map[string]int    // line of each field that the file has
	moved    map[string]string // of fields that llm-d once had: what to write instead
	reported map[string]bool
	problems Problems
	warnings Problems
	more     int // problems beyond maxProblems
}

func newFindings() *findings {
	return &findings{lines: map[string]int{}, moved: map[string]string{}, reported: map[string]bool{}}
}

// problem reports an error of a field.
func (f *findings) problem(field, format string, args ...any) {
	switch {
	case f.reported[field]:
		return
	case f.full():
		f.more++
		return
	}
	f.reported[field] = true
	f.problems = append(f.problems, Problem{f.line(field), field, fmt.Sprintf(format, args...)})
}

// full reports whether no more problems are reported.
func (f *findings) full() bool { return len(f.problems) >= maxProblems }

// missing reports a field that is not there, unless another problem is reported beside it, which may be the same field
// mistyped.
func (f *findings) missing(field, format string, args ...any) {
	around := field[:max(0, strings.LastIndexByte(field, '.'))]
	for _, p := range f.problems {
		rest, beside := strings.CutPrefix(p.Field, around+".")
		if p.Field == around || beside && !strings.ContainsAny(rest, ".[") {
			return
		}
	}
	f.problem(field, format, args...)
}

// warn reports something that works differently from what its author may expect.
func (f *findings) warn(field, format string, args ...any) {
	if len(f.warnings) < maxProblems {
		f.warnings = append(f.warnings, Problem{f.line(field), field, fmt.Sprintf(format, args...)})
	}
}

// line returns the line of a field in the file, or of the nearest field around it.
func (f *findings) line(field string) int {
	for field != "" {
		if line, ok := f.lines[field]; ok {
			return line
		}
		field = field[:max(0, strings.LastIndexAny(field, ".["))]
	}
	return 0
}

// inOrder sorts problems by their lines.
func (p Problems) inOrder() Problems {
	slices.SortStableFunc(p, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	return p
}

// err returns the problems in the order of the file, or nil.
func (f *findings) err() error {
	if len(f.problems) == 0 {
		return nil
	}
	f.problems.inOrder()
	if f.more > 0 {
		return append(f.problems, Problem{Message: fmt.Sprintf("and %d more problems", f.more)})
	}
	return f.problems
}

// nearest returns the end of a sentence about an unknown name: up to three candidates with similar names.
func (f *findings) nearest(name string, candidates []string) string {
	const most, longest, enough = 3, 64, 500 // a longer name is no typing error, and more candidates take too long
	if len(name) > longest || f.full() {
		return ""
	}
	candidates = candidates[:min(len(candidates), enough)]
	type near struct {
		name     string
		distance int
	}
	var found []near
	for _, c := range candidates {
		// If the distance is the name's length, none of its letters is left.
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < len(name) && d <= max(2, len(name)/3) ||
			len(name) >= 4 && strings.Contains(c, name) {
			found = append(found, near{c, d})
		}
	}
	if len(found) == 0 {
		return ""
	}
	slices.SortStableFunc(found, func(a, b near) int { return cmp.Compare(a.distance, b.distance) })
	var names []string
	for _, n := range found[:min(most, len(found))] {
		if quoted := quote(n.name); !slices.Contains(names, quoted) {
			names = append(names, quoted)
		}
	}
	return "; did you mean " + strings.Join(names, " or ") + "?"
}

// distance returns the Levenshtein distance of two names, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// quote quotes a text of the file, and shortens a long one.
func quote(text string) string {
	const longest = 80
	if len(text) > longest {
		return fmt.Sprintf("%q…", text[:longest])
	}
	return fmt.Sprintf("%q", text)
}
