package kubelet

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

func TestExpand(t *testing.T) {
	values := map[string]string{"A": "a", "B": "$(A)", "": "empty"}
	for in, want := range map[string]string{
		"":                "",
		"plain":           "plain",
		"$(A)":            "a",
		"x$(A)y$(A)":      "xaya",
		"$(B)":            "$(A)",
		"$(NONE)":         "$(NONE)",
		"$$(A)":           "$(A)",
		"$$$(A)":          "$a",
		"$$$$(A)":         "$$(A)",
		"$A ${A} $":       "$A ${A} $",
		"$(A":             "$(A",
		"$(":              "$(",
		"$()":             "empty",
		"--at=$(A):5600":  "--at=a:5600",
		"$(NONE)/$(A)":    "$(NONE)/a",
		"cost: 5$":        "cost: 5$",
		"$$":              "$",
		"$(A)$$(A)$(A)$$": "a$(A)a$",
	} {
		got := expand(in, func(name string) (string, bool) { v, ok := values[name]; return v, ok })
		if got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func TestDivide(t *testing.T) {
	for _, c := range []struct{ amount, by, want string }{
		{"1500m", "0", "2"}, {"1500m", "1m", "1500"}, {"2", "1", "2"}, {"64Mi", "1Mi", "64"}, {"64Mi", "1Gi", "1"}, {"512Gi", "1", "549755813888"},
		{"16Ti", "1Ti", "16"}, {"0", "1", "0"},
	} {
		if got := divide(resource.MustParse(c.amount), resource.MustParse(c.by)); got != c.want {
			t.Errorf("%s / %s = %s, want %s", c.amount, c.by, got, c.want)
		}
	}
}

// listing returns path=content of what a volume shows.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var found []string
	top, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range top {
		if strings.HasPrefix(entry.Name(), "..") {
			continue
		}
		real, err := filepath.EvalSymlinks(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(real, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			found = append(found, strings.TrimPrefix(filepath.Join(entry.Name(), strings.TrimPrefix(path, real)), "/")+"="+string(data))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return strings.Join(found, " ")
}

func TestPayload(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		files payload
		want  string
	}{
		{payload{"a": {"1", 0o644}, "in/b": {"2", 0o600}}, "a=1 in/b=2"},
		{payload{"a": {"3", 0o644}, "in/c": {"4", 0o644}, "d": {"5", 0o644}}, "a=3 d=5 in/c=4"},
		{payload{}, ""},
	} {
		if err := c.files.write(dir, -1); err != nil {
			t.Fatal(err)
		}
		if got := listing(t, dir); got != c.want {
			t.Errorf("it shows %q, want %q", got, c.want)
		}
		for name, f := range c.files {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != f.mode {
				t.Errorf("%s has mode %v, want %v (%v)", name, info.Mode(), f.mode, err)
			}
		}
		if hidden, err := filepath.Glob(filepath.Join(dir, "..*")); err != nil || len(hidden) != 2 {
			t.Errorf("besides, there are %q (%v), want ..data and what it leads to", hidden, err)
		}
	}
	for _, name := range []string{"../a", "/a", "..a", ""} {
		if err := (payload{name: {"x", 0o644}}).write(dir, -1); err == nil {
			t.Errorf("a file %q is written", name)
		}
	}
}

func TestLog(t *testing.T) {
	l, err := createLog(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", maxLine+5)
	for _, piece := range []string{"one\ntw", "o\n\n", long + "\n", "end"} {
		if n, err := l.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(l.path)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for line := range bytes.Lines(data) {
		e := parseEntry(bytes.TrimSuffix(line, []byte("\n")))
		if time.Since(e.when) > time.Hour {
			t.Errorf("a line is of %v", e.when)
		}
		text.Write(e.text)
	}
	if want := "one\ntwo\n\n" + long + "\nend"; text.String() != want {
		t.Errorf("it has %q", text.String())
	}
	if size, closed, _ := l.state(); size != int64(len(data)) || !closed {
		t.Errorf("%d of %d bytes, closed: %t", size, len(data), closed)
	}
	if got, err := l.tail(2, 100); err != nil || got != "xxxxx\nend" {
		t.Errorf("its tail is %q (%v)", got, err)
	}
	if got, err := l.tail(2, 3); err != nil || got != "end" {
		t.Errorf("its last three bytes are %q (%v)", got, err)
	}
}

func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		g := newGrace(t.Context(), time.Minute)
		g.shorten(2 * time.Minute) // which it does not
		g.shorten(10 * time.Second)
		<-g.Done()
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it took %v", took)
		}
		g.stop()
	})
}
