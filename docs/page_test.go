package docs_test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	testprograms "github.com/tandem-serving/tandem/e2e/programs"
)

// update has the generated parts of pages written anew.
var update = flag.Bool("update", false, "write the generated parts of the pages")

// root is the root of the repository.
const root = ".."

// page is one Markdown file, by its path from the root.
type page struct {
	name  string
	text  string
	codes []code
}

// code is a fenced block of a page.
type code struct {
	language string
	comment  string // the HTML comment in the line above, which says what the block is
	text     string
	line     int // of the opening fence, from 1
}

// pages reads README.md, CONTRIBUTING.md, CHANGELOG.md, SECURITY.md, the chart's README and the pages of docs.
func pages(t *testing.T) []page {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%d pages, %v", len(names), err)
	}
	howTos, err := filepath.Glob(filepath.Join(root, "docs", "howto", "*.md"))
	if err != nil || len(howTos) == 0 {
		t.Fatalf("%d how-tos, %v", len(howTos), err)
	}
	names = append(names, howTos...)
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "charts/tandem/README.md"} {
		names = append(names, filepath.Join(root, name))
	}
	read := make([]page, 0, len(names))
	for _, name := range names {
		read = append(read, readPage(t, name))
	}
	return read
}

func readPage(t *testing.T, file string) page {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	name, err := filepath.Rel(root, file)
	if err != nil {
		t.Fatal(err)
	}
	p := page{name: filepath.ToSlash(name), text: string(text)}
	p.codes = codesOf(p.text)
	return p
}

func pageNamed(t *testing.T, name string) page {
	t.Helper()
	return readPage(t, filepath.Join(root, filepath.FromSlash(name)))
}

// codesOf finds the fenced blocks of a page.
func codesOf(text string) (blocks []code) {
	var open *code
	above := ""
	for i, line := range strings.Split(text, "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case open != nil && isFence:
			blocks, open = append(blocks, *open), nil
		case open != nil:
			open.text += line + "\n"
		case isFence:
			open = &code{language: fence, comment: above, line: i + 1}
		}
		above = strings.TrimSuffix(strings.TrimPrefix(line, "<!-- "), " -->")
		if above == line {
			above = ""
		}
	}
	return blocks
}

// prose returns a page without its fenced blocks and comments.
func (p page) prose() string {
	var b strings.Builder
	inCode := false
	for line := range strings.Lines(p.text) {
		if strings.HasPrefix(line, "```") {
			inCode = !inCode
		} else if !inCode && !strings.HasPrefix(line, "<!--") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// inline finds what stands between backticks in prose.
var inline = regexp.MustCompile("`([^`\n]+)`")

func (p page) inlineCodes() (all []string) {
	for _, found := range inline.FindAllStringSubmatch(p.prose(), -1) {
		all = append(all, found[1])
	}
	return all
}

// section returns the text below a heading of the second level, up to the next one.
func (p page) section(t *testing.T, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(p.text, "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", p.name, heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// tableRows returns the cells of every table row in a text, without heads.
func tableRows(text string) (rows [][]string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if strings.HasPrefix(cells[0], "`") {
			rows = append(rows, cells)
		}
	}
	return rows
}

// codesIn returns what stands between backticks in a text.
func codesIn(text string) (all []string) {
	for _, found := range inline.FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	return all
}

// builtDir is the folder that programs made; "" if no test has needed one.
var builtDir string

// programs builds all programs once, and returns the folder with them.
var programs = sync.OnceValues(func() (dir string, err error) {
	builtDir, err = testprograms.Build(testprograms.All()...)
	return builtDir, err
})

func TestMain(m *testing.M) {
	status := m.Run()
	if builtDir != "" {
		os.RemoveAll(builtDir)
	}
	os.Exit(status)
}

// program returns the path of a built program.
func program(t *testing.T, name string) string {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// run runs a program in a folder and returns what it printed on stdout.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, stderr.Bytes())
	}
	return stdout.String()
}

// replaceBetween puts text between two marks of a page that stand in lines of their own. With -update it writes the page;
// otherwise the page must have the text already.
func replaceBetween(t *testing.T, name, mark, text string) {
	t.Helper()
	p := pageNamed(t, name)
	begin, end := "<!-- begin "+mark+": written by make docs -->\n", "<!-- end "+mark+" -->\n"
	before, rest, begins := strings.Cut(p.text, begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("%s has no lines %q and %q", name, begin, end)
	}
	want := before + begin + text + end + after
	switch {
	case want == p.text:
	case *update:
		if err := os.WriteFile(filepath.Join(root, filepath.FromSlash(name)), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is older than the source in %q: run make docs\n%s", name, mark, firstDifference(p.text, want))
	}
}

// firstDifference shows the first line in which two texts differ.
func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return "line " + strings.Join([]string{a[i], b[i]}, "\n want ")
		}
	}
	return "one is longer"
}

// TestReadmeIsShort: the README is an entrance, and everything else has a page.
func TestReadmeIsShort(t *testing.T) {
	const most = 10 << 10
	if n := len(pageNamed(t, "README.md").text); n > most {
		t.Errorf("README.md has %d bytes, at most %d", n, most)
	}
}

// TestEveryPageIsReachable follows the links of the README: a page that no other page leads to is not found.
func TestEveryPageIsReachable(t *testing.T) {
	all := map[string]page{}
	for _, p := range pages(t) {
		all[p.name] = p
	}
	reached, queue := map[string]bool{"README.md": true}, []string{"README.md"}
	for len(queue) > 0 {
		p := all[queue[0]]
		queue = queue[1:]
		for _, l := range p.links() {
			to := path.Join(path.Dir(p.name), l.path)
			if _, isPage := all[to]; isPage && !reached[to] {
				reached[to], queue = true, append(queue, to)
			}
		}
	}
	for name := range all {
		if !reached[name] {
			t.Errorf("no page that the README leads to links to %s", name)
		}
	}
}

// link is one link inside the repository.
type link struct{ text, path, anchor string }

var linkPattern = regexp.MustCompile(`\[([^\]\n]+)\]\(([^)\s]+)\)`)

// links returns the links of a page that lead to files of the repository or to headings.
func (p page) links() (all []link) {
	for _, found := range linkPattern.FindAllStringSubmatch(inline.ReplaceAllString(p.prose(), "x"), -1) {
		if strings.Contains(found[2], "://") || strings.HasPrefix(found[2], "mailto:") {
			continue
		}
		to, anchor, _ := strings.Cut(found[2], "#")
		all = append(all, link{found[1], to, anchor})
	}
	return all
}

// TestLinks checks that every relative link leads to a file, and every anchor to a heading.
func TestLinks(t *testing.T) {
	templates, err := filepath.Glob(filepath.Join(root, ".github", "*", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := pages(t)
	for _, file := range templates {
		all = append(all, readPage(t, file))
	}
	for _, p := range all {
		for _, l := range p.links() {
			to := p.name
			if l.path != "" {
				to = path.Join(path.Dir(p.name), l.path)
			}
			file := filepath.Join(root, filepath.FromSlash(to))
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which does not exist", p.name, l.path)
				continue
			}
			if l.anchor != "" && !slices.Contains(anchors(readPage(t, file).prose()), l.anchor) {
				t.Errorf("%s links to %s#%s, and there is no such heading", p.name, l.path, l.anchor)
			}
		}
	}
}

var (
	heading   = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
	notInSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the names that GitHub gives to the headings of a page.
func anchors(prose string) (names []string) {
	for _, found := range heading.FindAllStringSubmatch(prose, -1) {
		slug := notInSlug.ReplaceAllString(strings.ToLower(found[1]), "")
		names = append(names, strings.ReplaceAll(slug, " ", "-"))
	}
	return names
}

func TestAnchors(t *testing.T) {
	got := anchors("# One command: `tandem up`\n\ntext\n## What's \"new\" in 1.2?\n### P/D modes\n")
	want := []string{"one-command-tandem-up", "whats-new-in-12", "pd-modes"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
