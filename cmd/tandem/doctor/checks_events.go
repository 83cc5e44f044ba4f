package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
)

// checkKVEvents looks at pickers that go by what engines tell about their KV caches.
func checkKVEvents(ctx context.Context, f *fleet) finding {
	pickers := f.readable(func(p *picker) bool {
		return p.hasOperations() && p.pageErr == nil && len(series(p.page, "tandem_prefix_sources")) > 0
	})
	if len(pickers) == 0 {
		return finding{}
	}
	return each(ctx, pickers, f.how.Timeout, func(_ context.Context, p *picker) finding { return heard(p.page) })
}

// series returns the series of a metric.
func series(page promtext.Page, name string) (all promtext.Page) {
	for _, s := range page {
		if s.Name == name {
			all = append(all, s)
		}
	}
	return all
}

// heard says how a picker hears engines, by its metrics page.
func heard(page promtext.Page) finding {
	with := func(name, label, value string) (sum float64) {
		for _, s := range series(page, name) {
			if s.Labels[label] == value {
				sum += s.Value
			}
		}
		return sum
	}
	unknownAt, _ := page.Sum("tandem_prefix_engines_unknown")
	lost, _ := page.Sum("tandem_prefix_events_lost_total")
	connected, waiting := with("tandem_prefix_sources", "state", "connected"), with("tandem_prefix_sources", "state", "waiting")
	var wrong []string
	for _, s := range series(page, "tandem_prefix_mismatch_total") {
		if s.Value > 0 {
			wrong = append(wrong, s.Labels["kind"])
		}
	}
	slices.Sort(wrong)
	switch {
	case unknownAt > 0:
		return finding{verdict: fail, seen: fmt.Sprintf("it is not known where %.0f engines publish KV events", unknownAt),
			do: "start the engine with --kv-events-config, or name its ports in kvEventsConfig.podDiscoveryConfig"}
	case waiting > 0:
		return finding{verdict: fail, seen: fmt.Sprintf("not connected to %.0f of %.0f engines (or ranks) that publish KV events", waiting, waiting+connected),
			do: "let the picker reach the ports of --kv-events-config (NetworkPolicy), and have the engine bind tcp://*:PORT"}
	case len(wrong) > 0:
		return finding{verdict: warn, seen: "does not fit what engines do: " + strings.Join(wrong, ", ")}
	case with("tandem_prefix_prompts_total", "ids", "known") == 0 && with("tandem_prefix_prompts_total", "ids", "unknown") > 0:
		return finding{verdict: warn, seen: "no request had token ids, so nothing is known of their prompts", do: "list token-producer with a tokenizer in the picker's configuration"}
	case lost > 0:
		return finding{verdict: warn, seen: fmt.Sprintf("%.0f messages were lost, and what their engines had was forgotten", lost), do: "give engines a replay_endpoint in --kv-events-config"}
	}
	seen := fmt.Sprintf("%.0f engines (or ranks) are heard", connected)
	if earlier, _ := page.Sum("tandem_prefix_events_earlier_total"); earlier > 0 { // of no harm where engines have dropped what they told of then
		seen += fmt.Sprintf("; not known: what they stored in %.0f messages before the picker listened (replay_endpoint, buffer_steps)", earlier)
	}
	return finding{verdict: ok, seen: seen}
}
