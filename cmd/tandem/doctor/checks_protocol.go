package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// engine returns which engine answers at an endpoint, "" if it does not show it.
func (t *target) engine() dialect.Engine {
	switch {
	case t.vllm():
		return dialect.VLLM
	case t.sglang():
		return dialect.SGLang
	case t.trtllm():
		return dialect.TRTLLM
	}
	return ""
}

// checkProtocol compares the hand-off protocol of sidecars with the engines behind them, and reads what sidecars have found out about
// the engines that they send legs to.
func checkProtocol(ctx context.Context, f *fleet) finding {
	set := each(ctx, f.of(pd.RoleDecode), f.how.Timeout, func(_ context.Context, t *target) finding { return t.fitsProtocol() })
	found := each(ctx, f.sidecars, f.how.Timeout, func(_ context.Context, s *operated) finding { return s.mismatches() })
	if slices.Index(severity, found.verdict) > slices.Index(severity, set.verdict) {
		return found
	}
	return set
}

// fitsProtocol compares the protocol that the arguments of a pod name with its engine. An SGLang whose sidecar passes /server_info has a
// sidecar of another protocol.
func (t *target) fitsProtocol() finding {
	engine, protocol := t.engine(), ""
	if t.pod != nil {
		protocol = argument(t.pod, "kv-connector", "connector")
	}
	row, known := dialect.Find(protocol)
	switch {
	case known && engine != "" && engine != row.Engine:
		return finding{verdict: fail, seen: fmt.Sprintf("its engine is %s, and its sidecar speaks a protocol of %s", engine, row.Engine),
			do: "start the sidecar with --kv-connector=" + dialect.NamesOf(engine)}
	case engine == dialect.SGLang && t.sg.throughAll:
		return finding{verdict: fail, seen: "its engine is SGLang, and its sidecar speaks another protocol", do: "start the sidecar with --kv-connector=sglang"}
	case known && engine != "", engine == dialect.SGLang:
		return finding{verdict: ok, seen: "fits the engine"}
	}
	return finding{}
}

// mismatches reports which engines the sidecar has found to speak another protocol.
func (s *operated) mismatches() finding {
	const metric = "tandem_protocol_mismatch"
	if !s.page.Has(metric) {
		return finding{}
	}
	var seen []string
	for _, series := range s.page {
		if series.Name == metric && series.Value > 0 {
			seen = append(seen, fmt.Sprintf("%.0f %s", series.Value, series.Labels["role"]))
		}
	}
	if len(seen) == 0 {
		return finding{verdict: ok, seen: "fits the engines"}
	}
	return finding{verdict: fail, seen: "the sidecar has found engines of another protocol: " + strings.Join(seen, ", "),
		do: "give the sidecar the --kv-connector of its engines; its log names the engines and what to set"}
}
