package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/plugin"
)

// part is a plugin that takes part in requests in every way, and notes which.
type part struct {
	mu    sync.Mutex
	noted map[string]bool
	more  chan struct{} // holds one: something was noted
}

func (p *part) note(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noted[what] = true
	select {
	case p.more <- struct{}{}:
	default:
	}
}

func (p *part) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.noted))
}

func (*part) Problems(epp.Report)               {}
func (p *part) Build(*epp.Builder) (any, error) { return p, nil }

func (*part) Timeout() time.Duration { return time.Minute }

func (p *part) Prepare(context.Context, *epp.Request) (func(*epp.Request), error) {
	return func(*epp.Request) { p.note("prepares") }, nil
}

func (p *part) Admit(context.Context, *epp.Request) (epp.Pass, error) {
	p.note("admits")
	return epp.Pass{}, nil
}

func (p *part) Settled(*epp.Request, epp.Pass) { p.note("settles") }

func (p *part) Screen(_ *epp.Round, c []epp.Candidate) []epp.Candidate {
	p.note("screens")
	return c
}

func (p *part) Produce(*epp.Round, []epp.Candidate) { p.note("produces") }

func (p *part) Observe(o *epp.Outcome) {
	if o.Decision != nil && o.Decision.First()[0].Address == "127.0.0.1:9" {
		p.note("observes the decision's outcome")
	}
}

func (p *part) Picked(r *epp.Round, all []epp.Candidate, d *epp.Decision) {
	if r.Request.Header(":path") != "" && len(all) > 0 && d.First()[0].Name == "stays" {
		p.note("is told of the pick")
	}
}

func (p *part) Stamp(a *epp.Answer, set func(name, value string)) {
	if a.By.Name == "stays" {
		set("x-part", "stamped")
		p.note("stamps")
	}
}

func (p *part) EndpointJoined(e *epp.Endpoint) { p.note(e.Name + " joined") }
func (p *part) EndpointLeft(e *epp.Endpoint)   { p.note(e.Name + " left") }

func (*part) Watches() epp.Changes { return epp.MembersChanged | epp.InFlightFell }

func (p *part) SnapshotChanged(_ *epp.Snapshot, what epp.Changes) {
	if what&epp.MembersChanged != 0 {
		p.note("members changed")
	}
	if what&epp.InFlightFell != 0 {
		p.note("in flight fell")
	}
}

// answered sends a request through the picker and returns the headers of its answer, as the client gets them.
func (s *served) answered(t *testing.T, headers http.Header) http.Header {
	t.Helper()
	conn, err := client.Dial(client.Options{Addresses: []string{s.addresses["extproc"]}, Plaintext: true})
	must(t, err)
	defer conn.Close()
	stream, err := conn.Open(t.Context(), client.Duplex())
	must(t, err)
	defer stream.Close()
	must(t, stream.RequestHeaders(client.RequestHead{Method: "POST", Path: "/v1/completions", Header: headers}, false))
	must(t, stream.RequestBody([]byte(`{"model":"m","prompt":"one"}`), true))
	var answer client.Answer
	for !stream.RequestDone() {
		answer, err = stream.Recv()
		must(t, err)
	}
	must(t, stream.ResponseHeaders(client.ResponseHead{Status: http.StatusOK}, true))
	answer, err = stream.Recv()
	must(t, err)
	head := http.Header{}
	answer.Mutation.Apply(head, nil)
	return head
}

// A plugin that is only named in the configuration takes part in every request, learns how it ended, and follows the pool.
func TestConfiguredPluginsTakePart(t *testing.T) {
	table, p := plugin.Table, &part{noted: make(map[string]bool), more: make(chan struct{}, 1)}
	t.Cleanup(func() { plugin.Table = table })
	plugin.Table = append(slices.Clip(table), epp.Row{Type: "part", New: func() epp.Plugin { return p }})

	dir := t.TempDir()
	endpoints, configuration := filepath.Join(dir, "endpoints.yaml"), filepath.Join(dir, "config.yaml")
	const one = "endpoints:\n- {name: stays, address: 127.0.0.1, port: 9}\n"
	write(t, endpoints, one+"- {name: leaves, address: 127.0.0.2, port: 9, labels: {llm-d.ai/role: prefill}}\n")
	write(t, configuration, fmt.Sprintf(`apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: %q, watchFile: true}}
- {type: part}
- {type: decode-filter}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: decode-filter}]
dataLayer: {discovery: {pluginRef: file-discovery}}
`, endpoints))
	s := serveWith(t, nil, "--config-file="+configuration, "--secure-serving=false")
	if got := s.answered(t, http.Header{}).Get("x-part"); got != "stamped" {
		t.Errorf("the answer has x-part %q, want the stamp", got)
	}
	write(t, endpoints, one)
	want := []string{"admits", "in flight fell", "is told of the pick", "leaves joined", "leaves left", "members changed", "observes the decision's outcome", "prepares",
		"produces", "screens", "settles", "stamps", "stays joined"}
	patience, end := context.WithTimeout(t.Context(), 30*time.Second)
	defer end()
	for !slices.Equal(p.all(), want) {
		select {
		case <-p.more:
		case <-patience.Done():
			t.Fatalf("noted %q, want %q", p.all(), want)
		}
	}
}

// TestSessionsTakePart: the client that sends back the header of its last answer is served by the same endpoint, and one that names
// its session is too.
func TestSessionsTakePart(t *testing.T) {
	dir := t.TempDir()
	endpoints := filepath.Join(dir, "endpoints.yaml")
	// An endpoint whose page cannot be reached loses its sessions.
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "vllm:num_requests_waiting 0") }))
	t.Cleanup(page.Close)
	list := "endpoints:\n"
	for i := range 8 {
		list += fmt.Sprintf("- {name: pod-%d, address: 127.0.0.%d, port: 9, metricsHost: %q, labels: {zone: z%d}}\n", i, i+1,
			strings.TrimPrefix(page.URL, "http://"), i)
	}
	write(t, endpoints, list)
	for _, c := range []struct {
		name, plugins, profile string
		first                  http.Header
		next                   func(answer http.Header) http.Header
		told                   string // the header of answers that names the endpoint
	}{
		{"token", "{type: session-affinity-filter}", "session-affinity-filter", http.Header{},
			func(answer http.Header) http.Header {
				return http.Header{"X-Session-Token": answer.Values("x-session-token")}
			}, "x-session-token"},
		{"session", "{type: session-affinity-scorer, parameters: {strategy: session_id}}\n- {type: header-label-affinity-scorer, " +
			"parameters: {headerName: x-zone, labelKey: zone}}", "session-affinity-scorer", http.Header{"X-Session-Id": {"mine"}},
			func(http.Header) http.Header { return http.Header{"X-Session-Id": {"mine"}} }, "x-zone"},
		{"label", "{type: header-label-affinity-scorer, parameters: {headerName: x-zone, labelKey: zone}}", "header-label-affinity-scorer",
			http.Header{}, func(answer http.Header) http.Header { return http.Header{"X-Zone": answer.Values("x-zone")} }, "x-zone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			configuration := filepath.Join(t.TempDir(), "config.yaml")
			write(t, configuration, fmt.Sprintf(`apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: %q}}
- %s
schedulingProfiles:
- name: default
  plugins: [{pluginRef: %s}]
dataLayer: {discovery: {pluginRef: file-discovery}}
`, endpoints, c.plugins, c.profile))
			s := serveWith(t, nil, "--config-file="+configuration, "--secure-serving=false")
			answer := s.answered(t, c.first)
			first := answer.Get(c.told)
			if first == "" {
				t.Fatalf("the answer has no %s: %v", c.told, answer)
			}
			for range 20 { // by chance, 20 requests would go to one of eight endpoints once in 10^18 times
				if answer = s.answered(t, c.next(answer)); answer.Get(c.told) != first {
					t.Fatalf("the next request went to %s, want %s", answer.Get(c.told), first)
				}
			}
		})
	}
}

// TestProfilesTakePart: the header names the profile that serves a request.
func TestProfilesTakePart(t *testing.T) {
	dir := t.TempDir()
	endpoints, configuration := filepath.Join(dir, "endpoints.yaml"), filepath.Join(dir, "config.yaml")
	write(t, endpoints, "endpoints:\n- {name: d, address: 127.0.0.1, port: 9, labels: {llm-d.ai/role: decode, zone: d}}\n"+
		"- {name: p, address: 127.0.0.2, port: 9, labels: {llm-d.ai/role: prefill, zone: p}}\n")
	write(t, configuration, fmt.Sprintf(`apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: %q}}
- {type: header-profile-handler}
- {type: decode-filter}
- {type: prefill-filter}
- {type: header-label-affinity-scorer, parameters: {headerName: x-zone, labelKey: zone}}
schedulingProfiles:
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: header-label-affinity-scorer}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}]
dataLayer: {discovery: {pluginRef: file-discovery}}
`, endpoints))
	s := serveWith(t, nil, "--config-file="+configuration, "--secure-serving=false")
	for profile, want := range map[string]string{"": "d", "decode": "d", "prefill": "p"} {
		if got := s.answered(t, http.Header{"Epp-Profile": {profile}}).Get("x-zone"); got != want {
			t.Errorf("profile %q is served by %q, want %q", profile, got, want)
		}
	}
}
