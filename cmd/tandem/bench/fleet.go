package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/tandem-serving/tandem/stack"
)

// pdConfig is a P/D configuration like those in llm-d's guides, which every compatible picker reads.
const pdConfig = `apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 512}}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}
- {type: approx-prefix-cache-producer, parameters: {blockSizeTokens: 16, maxPrefixBlocksToMatch: 8192}}
- {type: inflight-load-producer}
- {type: decode-filter}
- {type: prefill-filter}
- {type: prefix-cache-scorer}
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: max-score-picker}
schedulingProfiles:
- name: prefill
  plugins:
  - {pluginRef: prefill-filter}
  - {pluginRef: prefix-cache-scorer, weight: 2}
  - {pluginRef: queue-scorer, weight: 1}
  - {pluginRef: max-score-picker}
- name: decode
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: prefix-cache-scorer, weight: 2}
  - {pluginRef: queue-scorer, weight: 1}
  - {pluginRef: kv-cache-utilization-scorer, weight: 1}
  - {pluginRef: max-score-picker}
`

const (
	// fleetSize is the number of endpoints of a picker, unless a series sets another.
	fleetSize = 64
	// pageSize is the size of the metrics page of a vLLM engine under load, in bytes.
	pageSize = 48 * kB
)

// fleet is a set of engines that only serve a metrics page, and the files for a picker that follows them.
type fleet struct {
	lab       *lab
	endpoints string   // file
	config    string   // file
	other     rival    // another picker; "" = none
	flags     []string // further flags of our picker
}

// newFleet returns a fleet of n endpoints, half of each role.
func newFleet(l *lab, n int) (*fleet, error) {
	f := &fleet{lab: l, endpoints: filepath.Join(l.scratch, "endpoints.yaml"), config: filepath.Join(l.scratch, "config.yaml")}
	pages, err := l.pages()
	if err != nil {
		return nil, err
	}
	err = errors.Join(os.WriteFile(f.config, []byte(pdConfig), 0o600), os.WriteFile(f.endpoints, endpoints(n, pages), 0o600))
	if err != nil {
		return nil, fmt.Errorf("writing the picker's files: %w", err)
	}
	return f, nil
}

// endpoints returns the endpoints file. It uses YAML anchors to stay below 1 MiB, the largest file that pickers accept.
func endpoints(n int, pages string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "endpoints:\n"+
		"- {name: prefill, address: 10.255.0.1, port: 8000, metricsHost: &m %q, labels: &p {llm-d.ai/role: prefill}}\n"+
		"- {name: decode, address: 10.255.0.2, port: 8000, metricsHost: *m, labels: &d {llm-d.ai/role: decode}}\n", pages)
	for i := range max(0, n-2) {
		fmt.Fprintf(&b, "- {name: e-%d, address: 10.0.%d.%d, port: 8000, metricsHost: *m, labels: *%c}\n", i, i/250,
			i%250+1, "pd"[i%2])
	}
	return b.Bytes()
}

// picker runs our picker.
func (f *fleet) picker(ctx context.Context) (*subject, error) {
	flags := append([]string{"--config-file=" + f.config, "--endpoints-file=" + f.endpoints, "--secure-serving=false",
		"--log-level=error"}, f.flags...)
	return f.lab.start(ctx, stack.EPP(f.lab.dir, flags...), "extproc", "metrics")
}

func (f *fleet) startOther(ctx context.Context) (*subject, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	return f.other.start(ctx, f.lab, net.JoinHostPort("127.0.0.1", port), "{port}", port, "{config}", f.config, "{endpoints}",
		f.endpoints)
}

// measureIdle measures the cost of a picker that only follows the load of its endpoints. The first span, in which it
// connects to them, does not count.
func measureIdle(ctx context.Context, l *lab, endpoints int, limit float64, o options) (Row, error) {
	f, err := newFleet(l, endpoints)
	if err != nil {
		return Row{}, err
	}
	picker, err := f.picker(ctx)
	if err != nil {
		return Row{}, err
	}
	var shares []float64
	for range o.rounds + 1 {
		before, err := cpuTime(picker.PID())
		if err != nil {
			return Row{}, picker.died(err)
		}
		began := time.Now()
		if !waitUntil(ctx, began.Add(2*o.span)) {
			return Row{}, context.Cause(ctx)
		}
		after, err := cpuTime(picker.PID())
		if err != nil {
			return Row{}, picker.died(err)
		}
		shares = append(shares, (after-before).Seconds()/time.Since(began).Seconds())
	}
	name := fmt.Sprintf("picker, idle, %d endpoints with metrics pages of %s, cores", endpoints, sized(pageSize))
	return absolute(tableAbsolute, name, shares[1:], limit), nil
}

func waitUntil(ctx context.Context, due time.Time) bool {
	wait := time.NewTimer(time.Until(due))
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-ctx.Done():
		return false
	}
}
