package pool

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFileAsLLMDWritesIt(t *testing.T) {
	want := []epp.Spec{
		{Namespace: "default", Name: "decode-0", Addr: netip.MustParseAddrPort("10.0.0.7:8000"), Metrics: "10.0.0.7:9100",
			Labels: map[string]string{"llm-d.ai/role": "decode"}},
		{Namespace: "serving", Name: "prefill-0", Addr: netip.MustParseAddrPort("[2001:db8::8]:8200"), Labels: map[string]string{}},
	}
	for _, name := range []string{"endpoints.yaml", "endpoints.json"} {
		t.Run(name, func(t *testing.T) {
			f := File{Path: "testdata/" + name}
			got, err := f.Load()
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, %v, want %+v", got, err, want)
			}
		})
	}
}

func TestFileForms(t *testing.T) {
	cases := []struct {
		name, text string
		want       int // endpoints
	}{
		{"no endpoints", "endpoints: []", 0},
		{"port as text", "endpoints: [{name: a, address: 10.0.0.1, port: \"80\"}]", 1},
		{"port as number", "endpoints: [{name: a, address: 10.0.0.1, port: 80}]", 1},
		{"no labels", "endpoints: [{name: a, address: 10.0.0.1, port: 80, labels: null, namespace: ~}]", 1},
		{"labels that are no text", "endpoints: [{name: a, address: 10.0.0.1, port: 80, labels: {rank: 1, spare: true}}]", 1},
		{"same name in two namespaces", "endpoints: [{name: a, address: 10.0.0.1, port: 80}, {name: a, namespace: b, address: 10.0.0.2, port: 80}]", 2},
		{"same address, other port", "endpoints: [{name: a, address: 10.0.0.1, port: 80}, {name: b, address: 10.0.0.1, port: 81}]", 2},
		{"aliases", "endpoints:\n- &a {name: a, address: 10.0.0.1, port: 80, labels: &l {x: y}}\n- {name: b, address: 10.0.0.2, port: 80, labels: *l}", 2},
		{"metrics by name", "endpoints: [{name: a, address: 10.0.0.1, port: 80, metricsHost: \"exporter:9100\"}]", 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			specs, problems, err := parseFile([]byte(c.text))
			if err != nil || len(problems) > 0 || len(specs) != c.want {
				t.Errorf("got %+v, %q, %v, want %d endpoints", specs, problems, err, c.want)
			}
		})
	}
}

// TestBadFiles reads files that have one mistake each; the first line tells what is said of it.
func TestBadFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			first, _, _ := strings.Cut(string(text), "\n")
			want, ok := strings.CutPrefix(first, "# ")
			if !ok {
				t.Fatal("the first line does not tell what is expected")
			}
			f := File{Path: path}
			_, err = f.Load()
			if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "line ") > strings.Count(want, "line ") {
				t.Errorf("got %v, want only %q", err, want)
			}
			if _, err := f.Discovery(nil); err == nil {
				t.Error("a discovery was made of it")
			}
		})
	}
}

func TestFileTellsAllProblems(t *testing.T) {
	path := filepath.Join(t.TempDir(), "endpoints.yaml")
	text := "endpoints:\n- {name: a, address: x, port: 0, more: 1}\n- {address: 10.0.0.1}\nversion: 1\n" // 3 + 2 + 1 problems
	writeFile(t, path, text)
	f := File{Path: path}
	if _, err := f.Load(); err == nil || strings.Count(err.Error(), "line ") != 6 {
		t.Errorf("got %v, want six problems", err)
	}
	writeFile(t, path, "endpoints:\n"+strings.Repeat("- {}\n", 100))
	if _, err := f.Load(); err == nil || strings.Count(err.Error(), "line ") != maxProblems || !strings.Contains(err.Error(), "and 250 more") {
		t.Errorf("got %v, want the first %d problems", err, maxProblems)
	}
	writeFile(t, path, "endpoints: []\n#"+strings.Repeat("x", MaxFileSize))
	if _, err := f.Load(); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a large file: %v", err)
	}
	f.Path += "-none"
	if _, err := f.Load(); err == nil || !strings.Contains(err.Error(), "reading the endpoints file") {
		t.Errorf("no file: %v", err)
	}
	if got := problemsOf(&File{}); len(got) != 1 || len(problemsOf(&f)) != 0 {
		t.Errorf("a file without a path: %q", got)
	}
}

func TestFileIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, log := filepath.Join(t.TempDir(), "endpoints.yaml"), &logged{}
		entry := func(name string, n int) string {
			return fmt.Sprintf("- {name: %s, address: 10.0.0.%d, port: 8000}\n", name, n)
		}
		writeFile(t, path, "endpoints:\n"+entry("a", 1))
		f := File{Path: path, WatchFile: true}
		d, err := f.Discovery(log.logger())
		if err != nil {
			t.Fatal(err)
		}
		p, _ := withEngines(t, Options{}, d, always(idlePage))
		start(t, p)
		<-p.Synced()
		first := p.Snapshot().Endpoints[0]
		steps := []struct {
			name, text string
			want       string
			log        string // is logged once more
		}{
			{"one more", "endpoints:\n" + entry("a", 1) + entry("b", 2), "a b", ""},
			{"half written", "endpoints:\n" + entry("a", 1) + "- {name: b, addre", "a b", "cannot be used"},
			{"empty", "", "a b", "cannot be used"},
			{"another document", "pods: []", "a b", "cannot be used"},
			{"no entry is valid", "endpoints: [{}]", "a b", "no entry is valid"},
			{"one entry is not valid", "endpoints:\n" + entry("a", 1) + entry("b", 999) + entry("c", 3), "a c", "left out"},
			{"valid again", "endpoints:\n" + entry("a", 1) + entry("b", 2), "a b", ""},
			{"emptied on purpose", "endpoints: []\n", "", ""},
			{"back", "endpoints:\n" + entry("a", 1), "a", ""},
		}
		for i, s := range steps {
			before := log.count(s.log)
			// The clock of the bubble stands still for the file system, so times are set by hand.
			writeFile(t, path, s.text)
			stamp := time.Unix(int64(i+1), 0)
			if err := os.Chtimes(path, stamp, stamp); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			if got := strings.Join(names(p.Snapshot()), " "); got != s.want {
				t.Errorf("%s: endpoints %q, want %q", s.name, got, s.want)
			}
			if trouble := p.Trouble(); (trouble != nil) != (s.log != "") || trouble != nil && !strings.Contains(trouble.Error(), s.log) {
				t.Errorf("%s: trouble %v, want one with %q", s.name, trouble, s.log)
			}
			if s.log != "" && log.count(s.log) != before+1 {
				t.Errorf("%s: want %q logged once", s.name, s.log)
			}
		}
		if p.Snapshot().Endpoints[0] != first {
			t.Error("a is not what it was, though it was away for seconds only")
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if got := names(p.Snapshot()); len(got) != 1 {
			t.Errorf("after the file was removed: %v", got)
		}
	})
}

func TestFileIsReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "endpoints.yaml")
		writeFile(t, path, "endpoints: []")
		f := File{Path: path}
		d, err := f.Discovery(nil)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := withEngines(t, Options{}, d, always(idlePage))
		start(t, p)
		<-p.Synced()
		writeFile(t, path, "endpoints: [{name: a, address: 10.0.0.1, port: 80}]")
		time.Sleep(time.Minute)
		if got := names(p.Snapshot()); len(got) != 0 {
			t.Errorf("a file that is not watched was read again: %v", got)
		}
	})
}

// FuzzFile demands that what is admitted of any file can be an endpoint, that the pool needs to leave out nothing more, and
// that what Load would refuse is never silently dropped.
func FuzzFile(f *testing.F) {
	for _, name := range []string{"endpoints.yaml", "endpoints.json"} {
		text, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("endpoints: [{name: a, address: '::ffff:10.0.0.1', port: 080}, &a [*a], *a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		specs, problems, err := parseFile(text)
		if err != nil && len(specs)+len(problems) > 0 {
			t.Errorf("beside %v: %v, %q", err, specs, problems)
		}
		if admitted, _ := admit(specs); len(admitted) != len(specs) {
			t.Errorf("of %+v only %+v can be endpoints", specs, admitted)
		}
		for _, s := range specs {
			if s.Metrics != "" && checkHostPort(s.Metrics) != nil {
				t.Errorf("%q passed as host:port", s.Metrics)
			}
		}
	})
}
