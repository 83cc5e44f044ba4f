package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// The protocols of vLLM's connectors, as --kv-connector names them, that the checks tell apart.
const (
	protocolPull       = "nixlv2"
	protocolPush       = "nixl-push"
	protocolMooncake   = "mooncake"
	protocolOffloading = "offloading"
	protocolFiles      = "shared-storage"
	protocolMoRIIO     = "moriio"
)

// connector returns the KV connector of an engine of vLLM, by its arguments or by its metrics page, which has a connector's metrics
// from the start, and which protocols it may speak. Mooncake and the connectors that store files have no metrics.
func (t *target) connector() (seen string, speaks []string) {
	named := t.info.Config.Transfer.Connector
	row, known := dialect.FindConnector(named)
	switch {
	case known:
		return named, []string{row.Name}
	case t.page.Has(nixlFamilies):
		return "NIXL", []string{protocolPull, protocolPush}
	case named == "" && t.page.Has("vllm:kv_offload_"):
		return "OffloadingConnector", []string{protocolOffloading}
	}
	return named, nil
}

// protocol returns the hand-off protocol of the decode pods: of their sidecars, else of their engines. It is "" if they do not show it,
// or have several.
func (f *fleet) protocol() string {
	var sidecars, engines []string
	for _, t := range f.of(pd.RoleDecode) {
		if t.pod != nil {
			if row, known := dialect.Find(argument(t.pod, "kv-connector", "connector")); known {
				sidecars = append(sidecars, written(t.pod, row.Name))
			}
		}
		if _, speaks := t.connector(); len(speaks) == 1 {
			engines = append(engines, speaks[0])
		}
	}
	for _, all := range [][]string{sidecars, engines} {
		slices.Sort(all)
		switch all = slices.Compact(all); len(all) {
		case 0:
			continue
		case 1:
			return all[0]
		}
		return ""
	}
	return ""
}

// written returns the protocol of a sidecar whose --kv-connector names one: with --moriio-write-mode, nixlv2 is moriio, as in llm-d.
func written(pod *corev1.Pod, protocol string) string {
	for _, c := range containers(pod) {
		for _, word := range slices.Concat(c.Command, c.Args) {
			name, value, together := strings.Cut(strings.TrimLeft(word, "-"), "=")
			if set, err := strconv.ParseBool(value); name == "moriio-write-mode" && (!together || set && err == nil) && protocol == protocolPull {
				return protocolMoRIIO
			}
		}
	}
	return protocol
}

// checkConnector looks whether each engine has a connector, and one that speaks the protocol of the decode pods.
func checkConnector(ctx context.Context, f *fleet) finding {
	live := f.live()
	if len(live) == 0 {
		return noEngine("answers")
	}
	want := f.protocol()
	return each(ctx, live, f.how.Timeout, func(_ context.Context, t *target) finding {
		seen, speaks := t.connector()
		switch {
		case t.sglang():
			return finding{} // it has a transfer backend
		case !t.role.Has(pd.RolePrefill) && !t.role.Has(pd.RoleDecode):
			return finding{} // an encoder has no KV cache
		case len(speaks) > 0 && want != "" && !slices.Contains(speaks, want):
			return finding{verdict: fail, seen: fmt.Sprintf("its connector is %s, which hands over by %s, and decode pods do by %s", seen, speaks[0], want),
				do: "start sidecars with --kv-connector=" + speaks[0] + ", or the engine with the connector of the others"}
		case len(speaks) > 0:
			return finding{verdict: ok, seen: seen}
		case seen != "":
			return finding{verdict: fail, seen: "its connector is " + seen + ", by which no sidecar hands over"}
		case t.vllm() && (want == protocolMooncake || want == protocolFiles):
			return finding{verdict: unknown, seen: "neither its metrics page nor its arguments show its connector"}
		case t.vllm():
			return finding{verdict: fail, seen: "its metrics page has no metrics of a NIXL connector"}
		}
		return finding{verdict: unknown, seen: "engines of this kind have no metrics of a connector"}
	})
}

// handsOverBy returns the protocol of an engine, that of the decode pods where it does not show its own.
func (f *fleet) handsOverBy(t *target) string {
	if _, speaks := t.connector(); len(speaks) == 1 {
		return speaks[0]
	}
	return f.protocol()
}

// withoutSideChannel reports whether an engine has no NIXL side channel: SGLang's have bootstrap servers, TensorRT-LLM's
// tell each other where they listen, and some connectors have another port, or none.
func (f *fleet) withoutSideChannel(t *target) bool {
	return t.sglang() || t.trtllm() || slices.Contains([]string{protocolMooncake, protocolOffloading, protocolFiles}, f.handsOverBy(t))
}

// peerPorts are the variables that set the ports of connectors, and vLLM's defaults.
var peerPorts = map[string]struct {
	variable string
	port     int
}{
	protocolMooncake:   {"VLLM_MOONCAKE_BOOTSTRAP_PORT", dialect.MooncakePort},
	protocolOffloading: {"VLLM_P2P_SIDE_CHANNEL_PORT", 5710},
}

// checkPeerPort asks Mooncake's bootstrap servers, and connects to the peer-to-peer tiers of OffloadingConnector.
func checkPeerPort(ctx context.Context, f *fleet) finding {
	var prefill []*target
	for _, t := range f.of(pd.RolePrefill) {
		if _, known := peerPorts[f.handsOverBy(t)]; known && !t.sglang() {
			prefill = append(prefill, t)
		}
	}
	if len(prefill) == 0 {
		return finding{}
	}
	return each(ctx, prefill, f.how.Timeout, func(ctx context.Context, t *target) finding {
		protocol := f.handsOverBy(t)
		port, known := peerPort(t, protocol)
		switch {
		case !known:
			return finding{verdict: unknown, seen: "its pod does not show " + peerPorts[protocol].variable + ", and the ports of engines on one machine cannot be guessed"}
		case protocol == protocolMooncake:
			return f.bootstrapOf(ctx, t, port)
		case !f.reach.dials():
			return finding{verdict: unknown, seen: "the API server's proxy passes only HTTP", do: "run the doctor in a pod of the cluster, or with --via direct"}
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(t.addr.Addr().String(), strconv.Itoa(port)))
		if err != nil {
			return finding{verdict: fail, seen: fmt.Sprintf("port %d: %v", port, cause(err))}
		}
		conn.Close()
		return finding{verdict: ok, seen: "port " + strconv.Itoa(port)}
	})
}

// peerPort returns the port of a connector: that of the pod's variable, else vLLM's default. A rank of the peer-to-peer tier has the port
// of its number above it.
func peerPort(t *target, protocol string) (port int, known bool) {
	port = peerPorts[protocol].port
	switch {
	case t.pod == nil && t.addr.Addr().IsLoopback():
		return 0, false
	case t.pod != nil:
		if value, set := variable(t.pod, peerPorts[protocol].variable); set {
			var err error
			if port, err = strconv.Atoi(value); err != nil {
				return 0, false // from a Secret, for instance
			}
		}
	}
	if protocol == protocolOffloading {
		port += t.rank
	}
	return port, port > 0 && port <= 65535
}

// bootstrapOf asks the bootstrap server of a prefill engine for the engines that have registered, by rank.
func (f *fleet) bootstrapOf(ctx context.Context, t *target, port int) finding {
	a, err := asker{client: f.reach.client()}.get(ctx, f.reach.url(t, "http", uint16(port), "")+"/query")
	if err != nil {
		return finding{verdict: fail, seen: fmt.Sprintf("port %d: %v", port, err)}
	}
	var ranks map[string]struct {
		ID string `json:"engine_id"`
	}
	if err := json.Unmarshal(a.body, &ranks); err != nil {
		return finding{verdict: fail, seen: fmt.Sprintf("port %d: another service than Mooncake's bootstrap server answers", port)}
	}
	if ranks["0"].ID == "" {
		return finding{verdict: fail, seen: fmt.Sprintf("port %d: no engine of rank 0 has registered at the bootstrap server", port)}
	}
	return finding{verdict: ok, seen: "port " + strconv.Itoa(port)}
}
