package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

const (
	explainedPods = `endpoints:
- {name: d, address: 10.0.0.1, port: 8000, labels: {llm-d.ai/role: decode}}
- {name: p, address: 10.0.0.2, port: 8000, labels: {llm-d.ai/role: prefill}}
- {name: e, address: 10.0.0.3, port: 8000, labels: {llm-d.ai/role: encode}}
`
	encodePrefillDecode = `apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: encode-filter}
- {type: prefill-filter}
- {type: decode-filter}
- {type: mm-embeddings-cache-scorer}
- {type: max-score-picker}
- {type: always-disagg-pd-decider}
- {type: always-disagg-multimodal-decider}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider, encode: always-disagg-multimodal-decider}}}
schedulingProfiles:
- {name: encode, plugins: [{pluginRef: encode-filter}, {pluginRef: mm-embeddings-cache-scorer}]}
- {name: prefill, plugins: [{pluginRef: prefill-filter}]}
- {name: decode, plugins: [{pluginRef: decode-filter}]}
`
	dataParallel = `apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: decode-filter}
- {type: data-parallel-profile-handler, parameters: {primaryPort: 9000}}
`
	parsesSGLang = `apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: decode-filter}, {type: sglanghttp-parser}]
requestHandler: {parsers: [{pluginRef: sglanghttp-parser}]}
`
)

// TestExplained: which headers a request gets under configurations with stages, ports and parsers of llm-d's.
func TestExplained(t *testing.T) {
	const d, p, e = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
	const text = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	const image = `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,x"}}]}]}`
	for name, c := range map[string]struct {
		config, path, body string
		want               map[string]string // headers; "" = none
		planned            bool
	}{
		"text is not encoded": {encodePrefillDecode, "/v1/chat/completions", text,
			map[string]string{epp.HeaderDestination: d, pd.HeaderPrefill: p, pd.HeaderEncode: ""}, true},
		"an image is": {encodePrefillDecode, "/v1/chat/completions", image,
			map[string]string{epp.HeaderDestination: d, pd.HeaderPrefill: p, pd.HeaderEncode: e}, true},
		"a rank is named, and its pod's sidecar is the destination": {dataParallel, "/v1/chat/completions", text,
			map[string]string{epp.HeaderDestination: "10.0.0.1:9000", pd.HeaderRank: d}, true},
		"SGLang's own call": {parsesSGLang, "/generate", `{"text":"hello"}`,
			map[string]string{epp.HeaderDestination: d}, true},
		"SGLang's own call without its parser is not read": {dataParallel, "/generate", "no JSON",
			map[string]string{epp.HeaderDestination: "10.0.0.1:9000"}, false},
		"chat without a parser for it is not read": {parsesSGLang, "/v1/chat/completions", "no JSON",
			map[string]string{epp.HeaderDestination: d}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			endpoints, configuration := filepath.Join(dir, "endpoints.yaml"), filepath.Join(dir, "config.yaml")
			write(t, endpoints, explainedPods)
			write(t, configuration, c.config)
			s := serveWith(t, nil, "--config-file="+configuration, "--endpoints-file="+endpoints, "--secure-serving=false")
			var x epp.Explanation
			_, answer := s.ask(t, "POST", "admin", "/explain"+c.path, strings.NewReader(c.body))
			if err := json.Unmarshal([]byte(answer), &x); err != nil {
				t.Fatalf("%s: %v", answer, err)
			}
			for header, want := range c.want {
				if got := fmt.Sprint(x.Headers[header]); got != want {
					t.Errorf("%s is %q, want %q, in %s", header, got, want, answer)
				}
			}
			if _, planned := x.Headers[pd.HeaderPlan]; planned != c.planned {
				t.Errorf("a plan: %v, want %v", planned, c.planned)
			}
		})
	}
}
