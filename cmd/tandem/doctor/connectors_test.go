package doctor

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
	"github.com/tandem-serving/tandem/pd"
)

// connected returns an engine of vLLM with a connector, "" for one that its pod does not show, and with metrics pages of further names.
// sidecar is the protocol of the pod's sidecar; "" = it has none.
func connected(role pd.Role, connector, sidecar string, metrics ...string) *target {
	t := &target{name: role.String(), role: role, pod: pod("engine", nil, nil)}
	t.page = promtext.Page{seriesNamed("vllm:num_requests_running")}
	for _, name := range metrics {
		t.page = append(t.page, seriesNamed(name))
	}
	t.info.Config.Transfer.Connector = connector
	if sidecar != "" {
		t.pod.Spec.Containers[0].Args = strings.Fields("--kv-connector=" + sidecar) // with further flags after it
	}
	return t
}

func fleetOf(t *testing.T, targets ...*target) *fleet {
	t.Helper()
	f := &fleet{how: &lookFlags{Timeout: 10 * time.Second}, direct: newDirect(), targets: targets}
	f.reach = f.direct
	t.Cleanup(f.direct.http.CloseIdleConnections)
	return f
}

// TestConnectors: engines of both roles, and the protocol of the sidecars.
func TestConnectors(t *testing.T) {
	const p, d = pd.RolePrefill, pd.RoleDecode
	for _, c := range []struct {
		name            string
		prefill, decode *target
		want            verdict
		seen, do        string
	}{
		{"NIXL that both show", connected(p, "NixlConnector", ""), connected(d, "NixlConnector", "nixlv2"), ok, "NixlConnector", ""},
		{"NIXL by the page alone, of llm-d's name", connected(p, "", "", "vllm:nixl_x"), connected(d, "", "nixl", "vllm:nixl_x"), ok, "NIXL", ""},
		{"NIXL among several", connected(p, "MultiConnector", "", "vllm:nixl_x"), connected(d, "MultiConnector", "nixlv2", "vllm:nixl_x", "vllm:kv_offload_x"), ok, "NIXL", ""},
		{"several without NIXL", connected(p, "MultiConnector", ""), connected(d, "NixlConnector", "nixlv2"), fail, "prefill: its connector is MultiConnector, by which", ""},
		{"push", connected(p, "NixlPushConnector", "", "vllm:nixl_x"), connected(d, "NixlPushConnector", "nixl-push", "vllm:nixl_x"), ok, "NixlPushConnector", ""},
		{"push behind a sidecar that has engines pull", connected(p, "NixlPushConnector", ""), connected(d, "NixlPushConnector", "nixlv2"), fail,
			"which hands over by nixl-push, and decode pods do by nixlv2", "--kv-connector=nixl-push"},
		{"MoRI-IO by llm-d's flags", connected(p, "MoRIIOConnector", ""), connected(d, "MoRIIOConnector", "nixlv2 --moriio-write-mode"), ok, "MoRIIOConnector", ""},
		{"MoRI-IO by llm-d's flags, with a value", connected(p, "MoRIIOConnector", ""), connected(d, "MoRIIOConnector", "nixlv2 --moriio-write-mode=true"), ok, "MoRIIOConnector", ""},
		{"MoRI-IO", connected(p, "MoRIIOConnector", ""), connected(d, "MoRIIOConnector", "moriio"), ok, "MoRIIOConnector", ""},
		{"MoRI-IO behind a sidecar of NIXL", connected(p, "MoRIIOConnector", ""), connected(d, "MoRIIOConnector", "nixlv2 --moriio-write-mode=false"), fail,
			"which hands over by moriio, and decode pods do by nixlv2", "--kv-connector=moriio"},
		{"Mooncake", connected(p, "MooncakeConnector", ""), connected(d, "MooncakeConnector", "mooncake"), ok, "MooncakeConnector", ""},
		{"Mooncake that no page shows", connected(p, "", ""), connected(d, "", "mooncake"), unknown, "neither its metrics page", ""},
		{"prefill with another connector", connected(p, "NixlConnector", ""), connected(d, "MooncakeConnector", ""), fail, "prefill: its connector is NixlConnector", "nixlv2"},
		{"offloading by the page", connected(p, "", "", "vllm:kv_offload_x"), connected(d, "OffloadingConnector", "offloading"), ok, "OffloadingConnector", ""},
		{"files, by an alias", connected(p, "LMCacheConnectorV1", ""), connected(d, "ExampleConnector", "lmcache"), ok, "Connector", ""},
		{"a connector without a protocol", connected(p, "DecodeBenchConnector", ""), connected(d, "NixlConnector", "nixlv2"), fail, "by which no sidecar hands over", ""},
		{"an encoder", connected(pd.RoleEncode, "", ""), connected(d, "NixlConnector", "nixlv2"), ok, "NixlConnector", ""},
		{"none", connected(p, "", ""), connected(d, "NixlConnector", "nixlv2"), fail, "prefill: its metrics page has no metrics of a NIXL connector", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := checkConnector(t.Context(), fleetOf(t, c.prefill, c.decode))
			if got.verdict != c.want || !strings.Contains(got.seen, c.seen) || !strings.Contains(got.do, c.do) {
				t.Errorf("%s: %s (%s)", got.verdict, got.seen, got.do)
			}
		})
	}
}

// TestPeerPorts: the bootstrap server of Mooncake and the tier of OffloadingConnector, at the port that the pod names. Neither engine
// has a side channel.
func TestPeerPorts(t *testing.T) {
	query := func(answer string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/query" {
				fmt.Fprint(w, answer)
			}
		}))
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}
	tier, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tier.Close()
	const ofMooncake, ofTier = "VLLM_MOONCAKE_BOOTSTRAP_PORT", "VLLM_P2P_SIDE_CHANNEL_PORT"
	for _, c := range []struct {
		name, connector, variable, at string
		want                          verdict
		seen                          string
	}{
		{"Mooncake", "MooncakeConnector", ofMooncake, query(`{"0":{"engine_id":"e","worker_addr":{}}}`), ok, "port "},
		{"Mooncake, another rank alone", "MooncakeConnector", ofMooncake, query(`{"7":{"engine_id":"e"}}`), fail, "no engine of rank 0"},
		{"Mooncake, another service", "MooncakeConnector", ofMooncake, query("OK"), fail, "another service"},
		{"Mooncake, none", "MooncakeConnector", ofMooncake, "127.0.0.1:1", fail, "connection refused"},
		{"offloading", "OffloadingConnector", ofTier, tier.Addr().String(), ok, "port "},
		{"offloading, none", "OffloadingConnector", ofTier, "127.0.0.1:1", fail, "connection refused"},
		{"a port that the pod does not show", "OffloadingConnector", ofTier, "127.0.0.1:$", unknown, ofTier},
		{"files, which have no port", "ExampleConnector", ofTier, "127.0.0.1:1", none, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			prefill, decode := connected(pd.RolePrefill, c.connector, ""), connected(pd.RoleDecode, c.connector, "")
			prefill.addr = netip.MustParseAddrPort("127.0.0.1:8000")
			_, port, _ := strings.Cut(c.at, ":")
			prefill.pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: c.variable, Value: port}}
			f := fleetOf(t, prefill, decode)
			if got := checkPeerPort(t.Context(), f); got.verdict != c.want || !strings.Contains(got.seen, c.seen) {
				t.Errorf("%s: %s", got.verdict, got.seen)
			}
			if got := checkSideChannel(t.Context(), f); got.verdict != none {
				t.Errorf("side channel: %s: %s", got.verdict, got.seen)
			}
		})
	}
}
