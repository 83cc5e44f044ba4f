package config_test

import (
	"bytes"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
)

var update = flag.Bool("update", false, "write the goldens of testdata/good anew")

// files lists a folder of testdata.
func files(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
	if err != nil || len(all) == 0 {
		t.Fatalf("testdata/%s has no files (%v)", dir, err)
	}
	return all
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestBadFiles: the comments at the top of each file are the problems that must be found, all of them, word by word.
func TestBadFiles(t *testing.T) {
	for _, file := range files(t, "bad") {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data := read(t, file)
			var want []string
			for line := range strings.Lines(string(data)) {
				text, isComment := strings.CutPrefix(line, "# ")
				if !isComment {
					break
				}
				want = append(want, strings.TrimSuffix(text, "\n"))
			}
			_, err := config.Parse(data, plugin.Table)
			if err == nil {
				t.Fatal("was accepted")
			}
			if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", err, strings.Join(want, "\n"))
			}
		})
	}
}

// TestGoodFiles holds what is made of configurations as users have them: warnings, and the effective configuration, which
// must mean the same as the file.
func TestGoodFiles(t *testing.T) {
	for _, file := range files(t, "good") {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			c := parse(t, read(t, file))
			var got bytes.Buffer
			for _, warning := range c.Warnings {
				got.WriteString("# " + warning + "\n")
			}
			got.Write(c.YAML())
			golden := strings.TrimSuffix(file, ".yaml") + ".effective"
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want := read(t, golden); !bytes.Equal(got.Bytes(), want) {
				t.Errorf("got\n%s\nwant\n%s", got.Bytes(), want)
			}
			checkRoundTrip(t, c)
			checkBuilds(t, c)
		})
	}
}

func parse(t *testing.T, data []byte) *config.Config {
	t.Helper()
	c, err := config.Parse(data, plugin.Table)
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, data)
	}
	return c
}

func checkRoundTrip(t *testing.T, c *config.Config) {
	t.Helper()
	again := parse(t, c.YAML())
	if got, want := uncommented(again.YAML()), uncommented(c.YAML()); got != want {
		t.Errorf("read again, the effective configuration is\n%s\nwant\n%s", got, want)
	}
}

// uncommented leaves out why a plugin was added: in the effective configuration it is there.
func uncommented(data []byte) string {
	var kept strings.Builder
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

func checkBuilds(t *testing.T, c *config.Config) *config.Built {
	t.Helper()
	b, err := c.Build(slog.New(slog.DiscardHandler), &epp.Keep{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, p := range b.Profiles {
		if p.Picker == nil {
			t.Errorf("profile %s has no picker", p.Name)
		}
	}
	if !slices.ContainsFunc(b.Profiles, func(p epp.Profile) bool { return p.Name == b.Stages[0].Profile }) {
		t.Errorf("the decode stage has no profile: %+v", b.Stages)
	}
	return b
}

// TestDefault: without a configuration, P/D works on mixed pools.
func TestDefault(t *testing.T) {
	c := parse(t, config.Default())
	if len(c.Warnings) > 0 {
		t.Errorf("warnings: %q", c.Warnings)
	}
	checkRoundTrip(t, c)
	b := checkBuilds(t, c)
	if len(b.Stages) != 2 || b.Stages[0].Profile != "decode" || b.Stages[1].Profile != "prefill" ||
		b.Stages[1].Decider.Name != "prefix-based-pd-decider" || b.Stages[1].Decider.Decider == nil {
		t.Errorf("stages %+v", b.Stages)
	}
	for _, p := range b.Profiles {
		if !slices.ContainsFunc(p.Filters, func(f epp.NamedFilter) bool { return f.Filter == epp.Filter(b.Detector) }) {
			t.Errorf("profile %s sheds nothing", p.Name)
		}
	}
	if len(b.Matchers) != 1 || len(b.Sources) != 1 || len(b.Sources[0].Extractors) != 1 || b.Discovery != nil {
		t.Errorf("matchers %v, sources %v, discovery %v", b.Matchers, b.Sources, b.Discovery)
	}
}

// TestJSON: JSON is YAML, also with the blanks that other programs use.
func TestJSON(t *testing.T) {
	const header = "{\n\t\"apiVersion\": \"llm-d.ai/v1alpha1\",\n\t\"kind\": \"EndpointPickerConfig\",\n"
	fromYAML := parse(t, []byte("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]"))
	fromJSON := parse(t, []byte(header+"\t\"plugins\": [\n\t\t{\"type\": \"queue-scorer\"}\n\t]\n}\n"))
	if got, want := string(fromJSON.YAML()), string(fromYAML.YAML()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	_, err := config.Parse([]byte(header+"\t\"plugin\": []\n}"), plugin.Table)
	if want := `line 4: plugin: unknown field; did you mean "plugins"?`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// FuzzParse: no file makes Parse panic or hang, and what it accepts it can print, read again, and build.
func FuzzParse(f *testing.F) {
	for _, dir := range []string{"bad", "good"} {
		all, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range all {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Add(config.Default())
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse(data, plugin.Table)
		if err != nil {
			return
		}
		again, err := config.Parse(c.YAML(), plugin.Table)
		if err != nil {
			t.Fatalf("the effective configuration is refused: %v\n%s", err, c.YAML())
		}
		if got, want := uncommented(again.YAML()), uncommented(c.YAML()); got != want {
			t.Fatalf("read again, the effective configuration is\n%s\nwant\n%s", got, want)
		}
		b, err := c.Build(slog.New(slog.DiscardHandler), &epp.Keep{})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
