package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/flow"
)

// send sends a request to the picker. fields are further headers: name, value ….
func (s *served) send(t *testing.T, fields ...string) *client.Stream {
	t.Helper()
	conn, err := client.Dial(client.Options{Addresses: []string{s.addresses["extproc"]}, Plaintext: true})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	stream, err := conn.Open(t.Context(), client.Duplex())
	must(t, err)
	t.Cleanup(stream.Close)
	head := client.RequestHead{Method: "POST", Path: "/v1/completions", Header: http.Header{}}
	for i := 0; i < len(fields); i += 2 {
		head.Header.Set(fields[i], fields[i+1])
	}
	must(t, stream.RequestHeaders(head, false))
	must(t, stream.RequestBody([]byte(`{"model":"m","prompt":"one"}`), true))
	return stream
}

// refusal reads the picker's answer to a request, and returns the reply in place of one if the picker refuses.
func refusal(t *testing.T, stream *client.Stream) *client.Reply {
	t.Helper()
	for !stream.RequestDone() {
		answer, err := stream.Recv()
		must(t, err)
		if answer.Kind == client.Immediate {
			return answer.Reply
		}
	}
	return nil
}

// waiting waits until so many requests wait.
func (s *served) waiting(t *testing.T, want int) {
	t.Helper()
	patience, end := context.WithTimeout(t.Context(), 30*time.Second)
	defer end()
	for {
		var v flow.View
		_, text := s.ask(t, http.MethodGet, "admin", "/debug/queues", nil)
		must(t, json.Unmarshal([]byte(text), &v))
		if v.Requests == want {
			return
		}
		if patience.Err() != nil {
			t.Fatalf("%s, want %d requests", text, want)
		}
	}
}

// oneEndpoint is a pool that one request fills, as fullAfterOne has it.
const oneEndpoint = "endpoints:\n- {name: d, address: 127.0.0.1, port: 9}\n"

// fullAfterOne is a configuration with flow control over a pool that one request fills.
func fullAfterOne(t *testing.T, flowControl string) string {
	t.Helper()
	endpoints := filepath.Join(t.TempDir(), "endpoints.yaml")
	write(t, endpoints, oneEndpoint)
	return overEndpoints(endpoints, flowControl)
}

// overEndpoints is a configuration with flow control over the endpoints of a file, each of which one request fills.
func overEndpoints(endpoints, flowControl string) string {
	return fmt.Sprintf(`apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: file-discovery, parameters: {path: %q, watchFile: true}}
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
- {type: decode-filter}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: decode-filter}]
flowControl: {%s, saturationDetector: {pluginRef: concurrency-detector}}
dataLayer: {discovery: {pluginRef: file-discovery}}
`, endpoints, flowControl)
}

// TestRequestsWait: with flow control, a request of a full pool waits until another one ends, one for which the queue is full is told
// so, and one that waits when flow control is turned off is served.
func TestRequestsWait(t *testing.T) {
	configuration := filepath.Join(t.TempDir(), "config.yaml")
	text := fullAfterOne(t, "maxRequests: 1, defaultRequestTTL: 30s")
	write(t, configuration, text)
	s := serveWith(t, nil, "--config-file="+configuration, "--secure-serving=false")

	first := s.send(t)
	if r := refusal(t, first); r != nil {
		t.Fatalf("the first request is refused: %+v", r)
	}
	second := s.send(t)
	s.waiting(t, 1)
	r := refusal(t, s.send(t))
	if r == nil || r.Status != http.StatusTooManyRequests || r.Header.Get("x-llm-d-request-dropped-reason") != "rejected-saturated" ||
		!strings.HasPrefix(r.Header.Get("x-tandem-queue"), "position=2") || r.Header.Get("retry-after") == "" {
		t.Errorf("the third request gets %+v", r)
	}
	must(t, first.ResponseHeaders(client.ResponseHead{Status: http.StatusOK}, true))
	_, err := first.Recv()
	must(t, err)
	first.Close()
	if r := refusal(t, second); r != nil {
		t.Errorf("the second request is refused: %+v", r)
	}
	if _, text := s.ask(t, http.MethodGet, "metrics", "/metrics", nil); !strings.Contains(text, "\nllm_d_epp_flow_control_pool_saturation") ||
		!strings.Contains(text, "\nllm_d_epp_request_running") {
		t.Errorf("llm-d's metrics are missing:\n%s", text)
	}
	must(t, second.ResponseHeaders(client.ResponseHead{Status: http.StatusOK}, false))
	told := func(f client.Field) bool { return f.Name == "x-tandem-queue" && strings.HasPrefix(f.Value, "waited=") }
	if answer, err := second.Recv(); err != nil || !slices.ContainsFunc(answer.Mutation.Set, told) {
		t.Errorf("the second request is not told that it has waited: %+v, %v", answer, err)
	}
	fourth := s.send(t)
	s.waiting(t, 1)
	write(t, configuration, strings.Replace(text, "featureGates: [flowControl]", "featureGates: []", 1))
	if r := refusal(t, fourth); r != nil {
		t.Errorf("the fourth request is refused: %+v", r)
	}
}

// TestRequestsWaitForAPool: while a pool is scaled to zero its requests wait, and go as soon as it has an endpoint.
func TestRequestsWaitForAPool(t *testing.T) {
	configuration, endpoints := filepath.Join(t.TempDir(), "config.yaml"), filepath.Join(t.TempDir(), "endpoints.yaml")
	write(t, endpoints, "endpoints: []\n")
	write(t, configuration, overEndpoints(endpoints, "defaultRequestTTL: 1ms, noEndpointRequestTTL: 1m"))
	s := serveWith(t, nil, "--config-file="+configuration, "--secure-serving=false")
	waits := s.send(t)
	s.waiting(t, 1)
	write(t, endpoints, oneEndpoint)
	if r := refusal(t, waits); r != nil {
		t.Errorf("the request is refused: %+v", r)
	}
}

// TestRunningRequestsAreEvicted: a running request of negative priority ends for one that waits.
func TestRunningRequestsAreEvicted(t *testing.T) {
	configuration, policy := filepath.Join(t.TempDir(), "config.yaml"), filepath.Join(t.TempDir(), "policy.yaml")
	write(t, configuration, fullAfterOne(t, "enableEviction: true"))
	write(t, policy, "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: batch}\nspec: {poolRef: {name: pool}, priority: -10}\n")
	s := serveWith(t, nil, "--config-file="+configuration, "--policy-file="+policy, "--secure-serving=false")
	batch := s.send(t, "x-llm-d-inference-objective", "batch")
	if r := refusal(t, batch); r != nil {
		t.Fatalf("the first request is refused: %+v", r)
	}
	usual := s.send(t)
	answer, err := batch.Recv()
	if err != nil || answer.Kind != client.Immediate || answer.Reply.Status != http.StatusTooManyRequests ||
		answer.Reply.Header.Get("x-llm-d-request-dropped-reason") != "evicted" {
		t.Errorf("the running request gets %+v, %v", answer, err)
	}
	if r := refusal(t, usual); r != nil {
		t.Errorf("the other request is refused: %+v", r)
	}
}
