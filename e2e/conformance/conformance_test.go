package conformance

import (
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
)

// requests is how many each case sends, as the suite does. That one of six pods gets none happens once in ten million runs.
const requests = 100

const completions = "/v1/completions"

// TestFollowsSelection is GatewayFollowingEPPRouting, the same with data parallelism, and GatewayDestinationEndpointServed: a
// request goes to the endpoints that it names, an ip for all ports of a pod or an ip:port for one, and its answer tells which
// one served.
func TestFollowsSelection(t *testing.T) {
	p := startPods(t, 2, 3, 2, nil) // three pods with two ports each
	ip := func(i int) string { return netip.MustParseAddrPort(p[i]).Addr().String() }
	for _, mode := range []string{"single", "pair"} {
		t.Run(mode, func(t *testing.T) {
			gateway := startGateway(t, startPicker(t, p).Addr("extproc"), "--mode="+mode)
			for _, c := range []struct {
				name      string
				selection string
				want      pods
			}{
				{"one pod", ip(0), p[:2]},
				{"two pods", ip(0) + "," + ip(2), p[:4]},
				{"all pods", ip(0) + ", " + ip(2) + ", " + ip(4), p},
				{"a port of a pod", p[3], p[3:4]},
				{"ports of one pod", p[2] + "," + p[3], p[2:4]},
				{"ports of several pods", p[0] + "," + p[3] + "," + p[4], pods{p[0], p[3], p[4]}},
				{"a pod, and one that the pool does not have", ip(4) + ",127.9.9.9", p[4:]},
			} {
				t.Run(c.name, func(t *testing.T) {
					by := askMany(t, requests, func() answer {
						a := ask(t, gateway, completions, c.selection)
						if a.served != a.from {
							t.Errorf("%s answered, and the picker says %q", a.from, a.served)
						}
						return a
					})
					got, want := slices.Sorted(maps.Keys(by)), slices.Sorted(slices.Values(c.want))
					if !slices.Equal(got, want) {
						t.Errorf("%v answered, want %v", by, want)
					}
				})
			}
			for name, selection := range map[string]string{
				"no header": "", "another pool": "127.9.9.9", "a port that the pod does not have": ip(0) + ":1", "no address": "pod-0",
			} {
				if a := ask(t, gateway, completions, selection); a.status != http.StatusServiceUnavailable || a.from != "" {
					t.Errorf("%s: %+v", name, a)
				}
			}
		})
	}
}

// TestOtherPaths: the suite's requests go to paths that are no API of an engine.
func TestOtherPaths(t *testing.T) {
	p := startPods(t, 2, 2, 1, nil)
	gateway := startGateway(t, startPicker(t, p).Addr("extproc"), "--mode=single")
	for range 20 {
		if a := ask(t, gateway, "/primary-gateway-test", p[1]); a.from != p[1] || a.served != p[1] {
			t.Fatalf("%+v, want %s", a, p[1])
		}
	}
}

// TestWeightedPools is GatewayWeightedAcrossTwoInferencePools: a route with 70 to 30 between two pools, each with a picker of its
// own. Requests name endpoints of both, and each picker takes its own.
func TestWeightedPools(t *testing.T) {
	primary, secondary := startPods(t, 2, 3, 1, nil), startPods(t, 5, 3, 1, nil)
	second := startGateway(t, startPicker(t, secondary).Addr("extproc"))
	gateway := startGateway(t, startPicker(t, primary).Addr("extproc"), "--canary="+second, "--canary-percent=30")
	all := strings.Join(slices.Concat(primary, secondary), ",")
	const n = 200
	by := askMany(t, n, func() answer { return ask(t, gateway, completions, all) })
	share := 0
	for pod, answers := range by {
		switch {
		case slices.Contains(secondary, pod):
			share += answers
		case !slices.Contains(primary, pod):
			t.Errorf("%s answered", pod)
		}
	}
	if share < 28 || share > 92 { // 60 ± 5σ
		t.Errorf("the second pool answered %d of %d requests, want about 60: %v", share, n, by)
	}
}

// TestPickerAway is EppUnAvailableFailOpen: its first phase, in which the gateway follows the picker, what our configuration of
// Envoy does without the picker, and that it follows the next one.
func TestPickerAway(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags []string
		open  bool
	}{
		{"fail closed", nil, false},
		{"fail open", []string{"--fail-open"}, true},
		{"fail open with one filter", []string{"--fail-open", "--mode=single"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startPods(t, 2, 3, 1, nil)
			picker := startPicker(t, p)
			address := picker.Addr("extproc")
			gateway := startGateway(t, address, c.flags...)
			pinned := func() answer { return ask(t, gateway, completions, p[1]) }
			if by := askMany(t, requests, pinned); by[p[1]] != requests {
				t.Fatalf("with the picker %v answered, want only %s", by, p[1])
			}
			picker.MustStop(t)
			if c.open {
				if by := askMany(t, requests, pinned); len(by) != len(p) {
					t.Errorf("without the picker %v answered, want all pods", by)
				}
			} else if a := pinned(); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, `"code":"no-endpoint"`) {
				t.Errorf("without the picker: %+v", a)
			}
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				t.Fatal(err)
			}
			startPicker(t, p, "--grpc-port="+port)
			until(t, "the gateway follows the next picker", func() bool {
				for range 10 {
					if pinned().from != p[1] {
						return false
					}
				}
				return true
			})
		})
	}
}

// TestAppProtocol is InferencePoolAppProtocol: the gateway speaks what the pool says to the pods, and follows the picker.
func TestAppProtocol(t *testing.T) {
	for _, c := range []struct {
		name, want string
		protocol   func(*http.Protocols)
		flags      []string
	}{
		{"http", "HTTP/1.1", nil, nil},
		{"h2c", "HTTP/2.0", func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }, []string{"--pool-http2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startPods(t, 2, 3, 1, c.protocol)
			gateway := startGateway(t, startPicker(t, p).Addr("extproc"), c.flags...)
			for _, pod := range p {
				if a := ask(t, gateway, completions, pod); a.from != pod || a.served != pod || a.protocol != c.want {
					t.Errorf("%+v, want %s by %s", a, pod, c.want)
				}
			}
		})
	}
}

// until polls what no program announces.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx := harness.Within(t)
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("it never happened that %s", what)
		case <-poll.C:
		}
	}
}
