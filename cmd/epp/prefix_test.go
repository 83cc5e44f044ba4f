package main

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp/kvfeed"
)

// TestDebugPrefix: what the picker knows by KV events, in general and of one prompt.
func TestDebugPrefix(t *testing.T) {
	dir := t.TempDir()
	endpoints, configuration := filepath.Join(dir, "endpoints.yaml"), filepath.Join(dir, "config.yaml")
	write(t, endpoints, endpointsFile)
	write(t, configuration, `apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: precise-prefix-cache-producer, name: told, parameters: {kvEventsConfig: {podDiscoveryConfig: {socketPort: 9}}}}
- {type: prefix-cache-scorer}
`)
	s := serveWith(t, nil, "--config-file="+configuration, "--endpoints-file="+endpoints, "--secure-serving=false")
	var page struct{ Producers map[string]kvfeed.State }
	status, text := s.ask(t, http.MethodGet, "admin", "/debug/prefix", nil)
	if err := json.Unmarshal([]byte(text), &page); err != nil || status != http.StatusOK || len(page.Producers["told"].Endpoints) != 2 {
		t.Errorf("status %d, %v: %s", status, err, text)
	}
	for body, want := range map[string]string{
		`{"ids":[1,2,3]}`: `"tokens": 3`,
		`{"ids":[]}`:      "the prompt has no ids",
		`{"prompt":[1]}`:  "unknown field",
		`{"ids":[-1]}`:    "reading the prompt",
		`x`:               "reading the prompt",
	} {
		status, text := s.ask(t, http.MethodPost, "admin", "/debug/prefix", strings.NewReader(body))
		if good := body == `{"ids":[1,2,3]}`; good != (status == http.StatusOK) || !strings.Contains(text, want) {
			t.Errorf("%s: status %d: %s, want %s", body, status, text, want)
		}
	}
	if _, text := s.ask(t, http.MethodGet, "metrics", "/metrics", nil); !strings.Contains(text, `tandem_prefix_sources{producer="told",state="waiting"}`) {
		t.Error("the metrics page has no sources of KV events")
	}
}
