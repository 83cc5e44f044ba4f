package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/epp/pool"
)

// configOf returns a configuration with endpoints from a file. Its threshold identifies it.
func configOf(endpoints string, threshold int) string {
	return fmt.Sprintf(`apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: %q, watchFile: true}}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: %d}}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}
- {type: decode-filter}
- {type: prefill-filter}
- {type: prefix-cache-scorer}
schedulingProfiles:
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: prefix-cache-scorer}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}]
dataLayer: {discovery: {pluginRef: file-discovery}}
`, endpoints, threshold)
}

// volume is a directory as Kubernetes mounts a ConfigMap: its files are links into a directory that is replaced atomically.
type volume struct {
	dir      string
	versions int
}

func (v *volume) file(name string) string { return filepath.Join(v.dir, name) }

func (v *volume) update(t *testing.T, files map[string]string) {
	t.Helper()
	v.versions++
	version := fmt.Sprintf("..%d", v.versions)
	must(t, os.Mkdir(v.file(version), 0o700))
	for name, text := range files {
		write(t, filepath.Join(v.dir, version, name), text)
		if v.versions == 1 {
			must(t, os.Symlink(filepath.Join("..data", name), v.file(name)))
		}
	}
	must(t, os.Symlink(version, v.file("..data_tmp")))
	must(t, os.Rename(v.file("..data_tmp"), v.file("..data")))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// uses waits until the configuration with the threshold is in use.
func (s *served) uses(t *testing.T, threshold int) {
	t.Helper()
	eventually(t, func() bool {
		_, text := s.ask(t, "GET", "admin", "/debug/config", nil)
		return strings.Contains(text, fmt.Sprintf("nonCachedTokens: %d\n", threshold))
	})
}

// tells waits until /readyz answers 200 with a text.
func (s *served) tells(t *testing.T, text string) {
	t.Helper()
	eventually(t, func() bool {
		status, page := s.ask(t, "GET", "metrics", "/readyz", nil)
		return status == http.StatusOK && strings.Contains(page, text)
	})
}

func (s *served) endpoints(t *testing.T) map[string]endpointState {
	t.Helper()
	_, text := s.ask(t, "GET", "admin", "/debug/endpoints", nil)
	var state struct{ Endpoints []endpointState }
	must(t, json.Unmarshal([]byte(text), &state))
	byName := make(map[string]endpointState)
	for _, e := range state.Endpoints {
		byName[e.Name] = e
	}
	return byName
}

// TestProducersSideBySide: each prefix index has its own series.
func TestProducersSideBySide(t *testing.T) {
	file := filepath.Join(t.TempDir(), "endpoints.yaml")
	write(t, file, endpointsFile)
	text := strings.Replace(configOf(file, 1000), "plugins:\n", "plugins:\n- {type: approx-prefix-cache-producer}\n"+
		"- {type: approx-prefix-cache-producer, name: other, parameters: {blockSizeTokens: 64}}\n", 1)
	s := serveWith(t, nil, "--config-text="+text, "--secure-serving=false")
	_, page := s.ask(t, "GET", "metrics", "/metrics", nil)
	for _, producer := range []string{"approx-prefix-cache-producer", "other"} {
		if series := `tandem_prefix_blocks{producer="` + producer + `"} 0`; !strings.Contains(page, series) {
			t.Errorf("there is no %s", series)
		}
	}
}

// TestReload changes configuration and endpoints. Requests in flight and the index of prefix caches stay.
func TestReload(t *testing.T) {
	maps := &volume{dir: t.TempDir()}
	elsewhere := filepath.Join(t.TempDir(), "endpoints.yaml")
	here := maps.file("endpoints.yaml")
	maps.update(t, map[string]string{"config.yaml": configOf(here, 1000), "endpoints.yaml": endpointsFile})
	s := serveWith(t, nil, "--config-file="+maps.file("config.yaml"), "--secure-serving=false")

	prompt := `{"model":"m","prompt":"` + strings.Repeat("all the same ", 100) + `"}`
	conn, err := client.Dial(client.Options{Addresses: []string{s.addresses["extproc"]}, Plaintext: true})
	must(t, err)
	defer conn.Close()
	stream, err := conn.Open(t.Context(), client.Duplex())
	must(t, err)
	defer stream.Close()
	must(t, stream.RequestHeaders(client.RequestHead{Method: "POST", Path: "/v1/completions", Header: http.Header{}}, false))
	must(t, stream.RequestBody([]byte(prompt), true))
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	kept := func() {
		t.Helper()
		if e := s.endpoints(t)["default/d"]; e.Requests != 1 || e.Tokens == 0 {
			t.Errorf("in flight: %+v", e)
		}
		_, text := s.ask(t, "POST", "admin", "/explain/v1/completions", strings.NewReader(prompt))
		var x epp.Explanation
		must(t, json.Unmarshal([]byte(text), &x))
		if x.Decider.Cached == 0 {
			t.Errorf("nothing is known to be cached: %s", text)
		}
	}
	kept()

	maps.update(t, map[string]string{"config.yaml": configOf(here, 1001), "endpoints.yaml": endpointsFile}) // a swapped link
	s.uses(t, 1001)
	kept()

	maps.update(t, map[string]string{"config.yaml": configOf(here, 1002), "endpoints.yaml": "endpoints: ["}) // broken endpoints are no reason to refuse a configuration
	s.uses(t, 1002)
	kept()

	maps.update(t, map[string]string{"endpoints.yaml": endpointsFile}) // no configuration any more
	s.tells(t, "no such file")
	kept()

	maps.update(t, map[string]string{"config.yaml": configOf(elsewhere, 1003), "endpoints.yaml": endpointsFile}) // endpoints to come
	s.tells(t, elsewhere)
	kept()
	write(t, elsewhere, strings.Replace(endpointsFile, "{name: p,", "{name: q,", 1))
	s.uses(t, 1003)
	eventually(t, func() bool { _, found := s.endpoints(t)["default/q"]; return found })
	kept()

	write(t, elsewhere, "endpoints: []\n") // a reload of an empty pool
	eventually(t, func() bool { return len(s.endpoints(t)) == 0 })
	maps.update(t, map[string]string{"config.yaml": configOf(elsewhere, 1004), "endpoints.yaml": endpointsFile})
	s.uses(t, 1004)
	write(t, elsewhere, endpointsFile)
	eventually(t, func() bool { return len(s.endpoints(t)) == 2 })
	if e := s.endpoints(t)["default/d"]; e.Requests != 1 {
		t.Errorf("in flight, back again: %+v", e)
	}
}

// TestScraping: the configured source reads metrics pages. Without one, no page is read.
func TestScraping(t *testing.T) {
	const head = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: active-request-scorer}, {type: metrics-data-source, parameters: {port: 9100}}]\n"
	with := pool.DefaultSource()
	with.Port = 9100
	for _, c := range []struct {
		name, layer string
		want        pool.Source
	}{
		{"by default", "", with},
		{"without an extractor", "dataLayer: {sources: [{pluginRef: metrics-data-source}]}", with},
		{"none", "dataLayer: {injectDefaults: false}", pool.Source{}},
		{"none to extract from", "dataLayer: {injectDefaults: false, sources: [{pluginRef: metrics-data-source}]}", pool.Source{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			parsed, err := config.Parse([]byte(head+c.layer), plugin.Table)
			must(t, err)
			built, err := parsed.Build(slog.New(slog.DiscardHandler), &epp.Keep{})
			must(t, err)
			defer built.Close()
			cfg := defaults()
			cfg.Metrics.Queued = "mine"
			if source, _, err := cfg.scraping(built); err != nil || source != c.want {
				t.Errorf("got %+v, %v, want %+v", source, err, c.want)
			}
		})
	}
}
