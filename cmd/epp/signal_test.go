package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin"
)

// queuedImages is a made-up signal. This declaration is all there is of it, but for the scorer that uses it.
var queuedImages = epp.Declare(epp.Declaration{Name: "queued_images", Title: "images", Pages: map[string]string{"vllm": "vllm:images{state=queued}"}})

// fewImagesScorer prefers endpoints with few images in their queue.
type fewImagesScorer struct{}

func (*fewImagesScorer) Problems(epp.Report)               {}
func (s *fewImagesScorer) Build(*epp.Builder) (any, error) { return s, nil }

// Score implements epp.Scorer.
func (*fewImagesScorer) Score(_ *epp.Round, c []epp.Candidate, scores []float64) {
	for i := range c {
		if n, known := c[i].Value(queuedImages); known {
			scores[i] = 1 / (1 + n)
		}
	}
}

// TestSignalIsDeclaredOnce: a declared signal is read from metrics pages, and reaches a scorer, explanations and
// /debug/endpoints.
func TestSignalIsDeclaredOnce(t *testing.T) {
	table := plugin.Table
	t.Cleanup(func() { plugin.Table = table })
	plugin.Table = append(slices.Clip(table), epp.Row{Type: "few-images-scorer", New: func() epp.Plugin { return &fewImagesScorer{} }})

	engine := func(images int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "vllm:num_requests_running 0\nvllm:images{state=\"queued\"} %d\nvllm:images{state=\"done\"} 99\n", images)
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://127.0.0.1:")
	}
	dir := t.TempDir()
	endpoints, configuration := filepath.Join(dir, "endpoints.yaml"), filepath.Join(dir, "config.yaml")
	write(t, endpoints, fmt.Sprintf("endpoints:\n- {name: busy, address: 127.0.0.1, port: %q}\n- {name: free, address: 127.0.0.1, port: %q}\n", engine(7), engine(1)))
	write(t, configuration, fmt.Sprintf(`apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: %q}}
- {type: few-images-scorer}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: few-images-scorer}]
dataLayer: {discovery: {pluginRef: file-discovery}}
`, endpoints))
	s := serveWith(t, nil, "--config-file="+configuration, "--secure-serving=false")

	want := map[string]float64{"default/busy": 7, "default/free": 1}
	eventually(t, func() bool {
		var state struct{ Endpoints []endpointState }
		_, text := s.ask(t, "GET", "admin", "/debug/endpoints", nil)
		if err := json.Unmarshal([]byte(text), &state); err != nil || len(state.Endpoints) != 2 {
			t.Fatalf("%s: %v", text, err)
		}
		return !slices.ContainsFunc(state.Endpoints, func(e endpointState) bool {
			got := e.Signals.Of("queued_images")
			return got.Value == nil || *got.Value != want[e.Name]
		})
	})

	var x epp.Explanation
	_, text := s.ask(t, "POST", "admin", "/explain", strings.NewReader(`{"model":"m","messages":[]}`))
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	candidates := x.Trace.Stages[0].Candidates
	for i, c := range []struct {
		endpoint string
		score    float64
	}{{"default/free", 0.5}, {"default/busy", 0.125}} {
		got := candidates[i]
		reading := got.Signals.Of("queued_images")
		if got.Endpoint != c.endpoint || got.Scores[0].Score != c.score || reading.Text("?") != fmt.Sprint(want[c.endpoint]) || reading.Title() != "images" {
			t.Errorf("choice %d: %+v", i+1, got)
		}
	}
}

// TestCustomMetricsTakePart: a value that only the configuration names is read from metrics pages, and decides.
func TestCustomMetricsTakePart(t *testing.T) {
	engine := func(depth int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "my_depth %d\n", depth)
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://127.0.0.1:")
	}
	dir := t.TempDir()
	endpoints, configuration := filepath.Join(dir, "endpoints.yaml"), filepath.Join(dir, "config.yaml")
	write(t, endpoints, fmt.Sprintf("endpoints:\n- {name: deep, address: 127.0.0.1, port: %q}\n- {name: shallow, address: 127.0.0.1, port: %q}\n- {name: full, address: 127.0.0.1, port: %q}\n",
		engine(7), engine(1), engine(100)))
	write(t, configuration, fmt.Sprintf(`apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: %q}}
- {type: core-metrics-extractor, parameters: {defaultEngine: mine, engineConfigs: [{name: mine, customMetrics: [{attributeKey: depth, metricSpec: my_depth}]}]}}
- {type: endpoint-attribute-filter, parameters: {attribute: depth, onMissing: Fail, algorithm: {type: threshold, threshold: {operator: LessThan, value: 50}}}}
- {type: endpoint-attribute-scorer, parameters: {attributeKey: depth, algorithm: {type: linear_lower_is_better}}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: endpoint-attribute-filter}, {pluginRef: endpoint-attribute-scorer}]
dataLayer: {discovery: {pluginRef: file-discovery}}
`, endpoints))
	s := serveWith(t, nil, "--config-file="+configuration, "--secure-serving=false")
	want := "default/shallow=1 default/deep=0 default/full dropped by endpoint-attribute-filter"
	var got string
	eventually(t, func() bool {
		var x epp.Explanation
		_, text := s.ask(t, "POST", "admin", "/explain", strings.NewReader(`{"model":"m","messages":[]}`))
		if err := json.Unmarshal([]byte(text), &x); err != nil || x.Trace == nil || len(x.Trace.Stages) == 0 {
			return false
		}
		var told []string
		for _, c := range x.Trace.Stages[0].Candidates {
			if c.Dropped != "" {
				told = append(told, c.Endpoint+" dropped by "+c.Dropped)
			} else if len(c.Scores) > 0 {
				told = append(told, fmt.Sprintf("%s=%v", c.Endpoint, c.Scores[0].Score))
			}
		}
		got = strings.Join(told, " ")
		return got == want
	})
}

// TestFurtherPagesTakePart: the endpoints' lists of models and GPU pages are read, shown, and decide.
func TestFurtherPagesTakePart(t *testing.T) {
	port := "0"
	serveEngine := func(address, model string, use int) { // all on the same port
		listener, err := net.Listen("tcp", net.JoinHostPort(address, port))
		must(t, err)
		_, port, err = net.SplitHostPort(listener.Addr().String())
		must(t, err)
		mux := http.NewServeMux()
		mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"data":[{"id":%q}]}`, model) })
		mux.HandleFunc("/gpu", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} %d\n", use)
		})
		mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "vllm:num_requests_running 0") })
		engine := &httptest.Server{Listener: listener, Config: &http.Server{Handler: mux}}
		engine.Start()
		t.Cleanup(engine.Close)
	}
	serveEngine("127.0.0.1", "llama", 90)
	serveEngine("127.0.0.2", "qwen", 20)
	file := filepath.Join(t.TempDir(), "endpoints.yaml")
	write(t, file, fmt.Sprintf("endpoints:\n- {name: busy, address: 127.0.0.1, port: %q}\n- {name: free, address: 127.0.0.2, port: %q}\n", port, port))
	s := serveWith(t, nil, "--secure-serving=false", "--config-text="+fmt.Sprintf(`apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: %q}}
- {type: models-data-source}
- {type: models-data-extractor}
- {type: dcgm-data-source, parameters: {path: /gpu, port: %s}}
- {type: dcgm-extractor}
- {type: endpoint-attribute-scorer, parameters: {attributeKey: GPUUtilization, producer: dcgm-extractor, algorithm: {type: linear_lower_is_better}}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: endpoint-attribute-scorer}]
dataLayer:
  discovery: {pluginRef: file-discovery}
  sources:
  - {pluginRef: models-data-source, extractors: [{pluginRef: models-data-extractor}]}
  - {pluginRef: dcgm-data-source, extractors: [{pluginRef: dcgm-extractor}]}
`, file, port))

	want := map[string]string{"default/busy": "llama 0.9", "default/free": "qwen 0.2"}
	eventually(t, func() bool {
		for name, e := range s.endpoints(t) {
			if e.Further == nil || len(e.Models) != 1 || len(e.Attributes) != 1 || fmt.Sprint(e.Models[0].ID, " ", e.Attributes[0].Value) != want[name] {
				return false
			}
		}
		return true
	})
	var x epp.Explanation
	_, text := s.ask(t, "POST", "admin", "/explain", strings.NewReader(`{"model":"m","messages":[]}`))
	must(t, json.Unmarshal([]byte(text), &x))
	if c := x.Trace.Stages[0].Candidates; c[0].Endpoint != "default/free" || c[0].Scores[0].Score != 1 || c[1].Scores[0].Score != 0 {
		t.Errorf("candidates %+v", c)
	}
}
