package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
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

func (p *part) Admit(context.Context, *epp.Request) error {
	p.note("admits")
	return nil
}

func (p *part) Produce(*epp.Round, []epp.Candidate) { p.note("produces") }

func (p *part) Observe(o *epp.Outcome) {
	if o.Decision != nil && o.Decision.First()[0].Address == "127.0.0.1:9" {
		p.note("observes the decision's outcome")
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
	s.pick(t, true)
	write(t, endpoints, one)
	want := []string{"admits", "in flight fell", "leaves joined", "leaves left", "members changed", "observes the decision's outcome", "prepares",
		"produces", "stays joined"}
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
