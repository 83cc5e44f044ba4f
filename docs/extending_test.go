package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestExtending follows docs/extending.md in a copy of the repository: it writes the files, inserts the lines, and runs the
// tests that the page names, except those that this test is itself.
func TestExtending(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	p := pageNamed(t, "docs/extending.md")
	dir := t.TempDir()
	copyModule(t, dir)
	written := 0
	for _, c := range p.codes {
		if c.language != "go" {
			continue
		}
		written++
		if name, isFile := strings.CutPrefix(c.comment, "file: "); isFile {
			writeFile(t, filepath.Join(dir, filepath.FromSlash(name)), c.text)
		} else if name, below, isInsert := strings.Cut(c.comment, ", below: "); isInsert {
			insertBelow(t, filepath.Join(dir, filepath.FromSlash(name)), below, c.text)
		} else {
			t.Errorf("%s, line %d: the line above must be a comment that says where the code goes", p.name, c.line)
		}
	}
	if written == 0 {
		t.Fatal("the page has no code")
	}
	for _, c := range p.commands(t) {
		if c.words[0] != "go" || c.words[1] != "test" || c.words[2] == "./docs" {
			continue
		}
		test := exec.CommandContext(t.Context(), "go", c.words[1:]...)
		test.Dir, test.Env = dir, append(os.Environ(), "GOWORK=off")
		if out, err := test.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", c, err, out)
		}
	}
}

// copyModule copies what the packages of the page are compiled from.
func copyModule(t *testing.T, to string) {
	t.Helper()
	for _, name := range append([]string{"go.mod", "go.sum", "sim"}, shipped...) {
		from := filepath.Join(root, name)
		if info, err := os.Stat(from); err == nil && info.IsDir() {
			err = os.CopyFS(filepath.Join(to, name), os.DirFS(from))
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(to, name), string(text))
	}
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// insertBelow inserts text below the only line of a file that contains below.
func insertBelow(t *testing.T, file, below, text string) {
	t.Helper()
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, after, found := strings.Cut(string(old), below)
	if !found || strings.Contains(after, below) {
		t.Errorf("%s must have %q once", file, below)
		return
	}
	line, rest, _ := strings.Cut(after, "\n")
	writeFile(t, file, before+below+line+"\n"+text+rest)
}
