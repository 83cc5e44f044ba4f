package dropin

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/recent"
)

// ranks is a fleet whose decode pod has two ranks, with consecutive ports, behind one sidecar.
type ranks struct {
	*harness.Fleet
	sidecar                harness.Program
	firstPort, firstEngine int
}

func startRanks(t *testing.T) *ranks {
	t.Helper()
	const n = 2
	first := harness.FreePorts(t, 2*n)
	r := &ranks{Fleet: harness.NewFleet(t, 1, 0), firstPort: first, firstEngine: first + n}
	var engines []harness.Engine
	for i := range n {
		engines = append(engines, harness.StartSim(t, fmt.Sprintf("decode-%d", i), "--role=decode", fmt.Sprint("--port=", r.firstEngine+i)))
	}
	r.sidecar = harness.StartSidecar(t, engines[0].Addr, fmt.Sprint("--port=", first), fmt.Sprint("--data-parallel-size=", n), "--kv-connector=nixlv2")
	for i, e := range engines {
		r.Decode = append(r.Decode, harness.DecodePod{Engine: e, Sidecar: r.sidecar, Rank: i})
	}
	r.WriteEndpoints(t)
	return r
}

// picked returns the rank that the picker chose for a request.
func (r *ranks) picked(t *testing.T, id string) int {
	t.Helper()
	told := recordOf[recent.Picked](t, r.Pickers[0], id)
	if len(told.Picks) == 0 {
		t.Fatalf("the picker tells no pick of %s", id)
	}
	return portOf(t, told.Picks[0].Endpoints[0]) - r.firstPort
}

// served returns the rank whose engine had the last leg of a request, and the data port that it came to.
func (r *ranks) served(t *testing.T, id string) (rank, port int) {
	t.Helper()
	told := recordOf[recent.Served](t, r.sidecar, id)
	if len(told.Legs) == 0 {
		t.Fatalf("the sidecar tells no leg of %s", id)
	}
	return portOf(t, told.Legs[len(told.Legs)-1].Engine) - r.firstEngine, portOf(t, told.Decode)
}

// recordOf returns what a program's admin port tells of a request, which may be a little later than its answer.
func recordOf[T any](t *testing.T, p harness.Program, id string) (told T) {
	t.Helper()
	(&harness.Fleet{}).Eventually(t, "record of "+id+" at "+p.Name(), func() (string, bool) {
		_, text := harness.FetchPage(t, "http://"+p.Addr("admin")+recent.Path+"/"+id)
		var all []T
		if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 1 {
			return text, false
		}
		told = all[0]
		return "", true
	})
	return told
}

func portOf(t *testing.T, address string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRanks: the rank that the picker chose serves the request, whether the gateway reaches its port or only the first one.
func TestRanks(t *testing.T) {
	const remote = "remote;reason=uncached;attempts=1;candidate=0"
	for _, c := range []struct {
		name   string
		config func(firstPort int) string
		want   string
		first  bool // all requests come to the first port
	}{
		{"each has its port", func(int) string { return read(t, "config.yaml") }, remote, false},
		{"one port, with prefill pods", func(first int) string {
			const handler = "- type: disagg-profile-handler\n  parameters: { deciders: { prefill: prefix-based-pd-decider } }\n"
			old := fmt.Sprintf("- type: pd-profile-handler\n  parameters: { primaryPort: %d, deciderPluginName: prefix-based-pd-decider }\n", first)
			text := strings.Replace(read(t, "config.yaml"), handler, old, 1)
			if !strings.Contains(text, old) {
				t.Fatalf("there is no %q in\n%s", handler, text)
			}
			return text
		}, remote, true},
		{"one port", func(first int) string {
			return strings.Replace(read(t, "ranks.yaml"), "PRIMARY_PORT", strconv.Itoa(first), 1)
		},
			"local;reason=no-prefill", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startRanks(t)
			startPickerWith(t, r.Fleet, c.config(r.firstPort))
			startEnvoy(t, r.Fleet, "false")
			number, requests := 0, map[int]int{}
			r.Eventually(t, "requests by rank", func() (string, bool) {
				for _, stream := range []bool{false, true} {
					q := r.TokensCall(2*harness.Threshold, stream)
					number++
					id := fmt.Sprintf("request-%d", number)
					q.Header = map[string]string{pd.HeaderRequestID: id, pd.HeaderRank: "127.0.0.1:1"} // the picker's counts, not the client's
					got := r.Send(t, q)
					harness.MustMatch(t, got, stream, r.Want(t, q))
					if decided := got.Header.Get(pd.HeaderDecision); decided != c.want {
						t.Errorf("%s, want %s", decided, c.want)
					}
					picked := r.picked(t, id)
					rank, port := r.served(t, id)
					wantPort := r.firstPort
					if !c.first {
						wantPort += picked
					}
					if rank != picked || port != wantPort {
						t.Fatalf("rank %d was picked, rank %d served the request; it came to port %d, want %d", picked, rank, port, wantPort)
					}
					requests[rank]++
				}
				return fmt.Sprint(requests), len(requests) == 2
			})
			for i, pod := range r.Decode {
				if pulled := pod.Engine.Metric(t, harness.PulledTokens); (pulled > 0) != (c.want == remote) {
					t.Errorf("rank %d has pulled %v tokens", i, pulled)
				}
			}
			r.MustRest(t)
		})
	}
}
