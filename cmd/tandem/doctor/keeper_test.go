package doctor

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/stack"
)

// keeperPage returns a metrics page of a sidecar with the metrics that the checks read.
func keeperPage(up, starts int, age time.Duration, more string) string {
	return fmt.Sprintf("tandem_keeper_up %d\ntandem_keeper_starts_total %d\nprocess_start_time_seconds %d\n%s\n",
		up, starts, time.Now().Add(-age).Unix(), more)
}

func page(t *testing.T, text string) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
}

// Without a keeper the checks find nothing; without a page they report unknown.
func TestKeeperPages(t *testing.T) {
	healthy, none := keeperPage(1, 1, time.Hour, ""), "go_goroutines 7\n"
	tests := []struct {
		name           string
		pages          []string
		keeper, leases verdict
		seen           string // part of the finding of either check
	}{
		{"no sidecar has one", []string{none, none}, "", "", ""},
		{"metrics ports unknown", nil, unknown, "", "the sidecars' metrics ports are unknown"},
		{"one of two has one", []string{healthy, none}, warn, ok, "has no keeper, but others have one"},
		{"one cannot be read", []string{none, "gone"}, unknown, "", "the sidecar's metrics port: connection refused"},
		{"one is down, one is well", []string{keeperPage(0, 1, time.Minute, ""), healthy}, fail, ok, "it is not running"},
		{"it died long ago", []string{keeperPage(1, 3, 100*time.Hour, "")}, ok, ok, "up"},
		{"it died at its start", []string{keeperPage(1, 3, time.Minute, "")}, warn, ok, "started 3 times in 1m"},
		{"nothing to do yet", []string{healthy}, ok, ok, "no hand-off was renewed or released yet"},
		{"an engine ended", []string{keeperPage(1, 1, time.Hour, "tandem_lease_connects_total{result=\"ok\"} 2\n"+
			"tandem_lease_heartbeats_total{result=\"ok\"} 90\ntandem_lease_heartbeats_total{result=\"failed\"} 9")},
			ok, ok, "prefill engines receive renewals and releases"},
		{"releases by way of decode", []string{keeperPage(1, 1, time.Hour,
			`tandem_kv_release_total{way="cancel",result="failed"} 9`)}, ok, ok, "no hand-off was renewed or released yet"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := &fleet{how: &lookFlags{Timeout: 10 * time.Second}, direct: newDirect()}
			defer f.direct.http.CloseIdleConnections()
			for _, text := range test.pages {
				at := "127.0.0.1:1"
				if text != "gone" {
					at = page(t, text)
				}
				f.parts.Sidecars = append(f.parts.Sidecars, at)
			}
			f.addSidecars()
			f.look(t.Context())
			keeper, leases := checkKeeper(t.Context(), f), checkLeases(t.Context(), f)
			if keeper.verdict != test.keeper || leases.verdict != test.leases {
				t.Errorf("keeper %+v, leases %+v", keeper, leases)
			}
			if !strings.Contains(keeper.seen+" "+leases.seen, test.seen) {
				t.Errorf("%q is not in what was seen: keeper %+v, leases %+v", test.seen, keeper, leases)
			}
		})
	}
}

// The doctor uses the metric names of a real sidecar and keeper.
func TestRealKeeper(t *testing.T) {
	for program, want := range map[string]verdict{filepath.Join(programs, "keeper"): ok, "/bin/false": fail} {
		t.Run(filepath.Base(program), func(t *testing.T) {
			started, err := stack.Start(t.Context(), stack.Program{Name: "sidecar", Path: filepath.Join(programs, "sidecar"),
				Args: []string{"--host=127.0.0.1", "--port=0", "--metrics-port=0", "--admin-address=127.0.0.1:0",
					"--keeper=" + program, "--keeper-transport=tcp"}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = started.Kill() })
			at, err := started.Address("metrics")
			if err != nil {
				t.Fatal(err)
			}
			f := &fleet{how: &lookFlags{Timeout: 10 * time.Second}, direct: newDirect(), parts: partFlags{Sidecars: []string{at}}}
			defer f.direct.http.CloseIdleConnections()
			f.addSidecars()
			tick, late := time.NewTicker(20*time.Millisecond), time.After(30*time.Second)
			defer tick.Stop()
			for {
				f.look(t.Context())
				keeper := checkKeeper(t.Context(), f)
				if keeper.verdict == want && (want == ok || strings.Contains(keeper.seen, "times")) {
					break
				}
				select {
				case <-tick.C:
				case <-late:
					t.Fatalf("got %+v, want %s", keeper, want)
				}
			}
			for _, name := range []string{"tandem_lease_connects_total", "tandem_lease_heartbeats_total", "process_start_time_seconds"} {
				if _, known := f.sidecars[0].page.Sum(name); !known {
					t.Errorf("the sidecar's page has no %s", name)
				}
			}
			leases := checkLeases(t.Context(), f)
			if want == fail && leases.verdict != none || want == ok && !strings.HasSuffix(leases.seen, ": no hand-off was renewed or released yet") {
				t.Errorf("%+v", leases)
			}
		})
	}
}

// The metrics port of a sidecar is a flag in its pod, next to the port of its rank.
func TestSidecarMetrics(t *testing.T) {
	ours := func(args ...string) corev1.Container {
		return corev1.Container{Args: append(args, "--kv-connector=nixlv2")}
	}
	p := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{ours("--port=8000", "--metrics-port=9095"), ours("--port=8001", "--metrics-port=9097"),
			ours("--port", "8002")},
		Containers: []corev1.Container{{Args: []string{"--port=8200"}}}}}
	for serves, want := range map[uint16]uint16{8000: 9095, 8001: 9097, 8002: defaultSidecarMetrics, 8200: 0, 9: 0} {
		if got, found := sidecarMetrics(p, serves); got != want || found != (want > 0) {
			t.Errorf("the sidecar at %d has its metrics at %d, %t; want %d", serves, got, found, want)
		}
	}
	f := &fleet{reach: newDirect(), targets: []*target{
		{name: "decode-0-rank-1", addr: netip.MustParseAddrPort("10.0.0.1:8001"), pod: p, role: pd.RoleDecode, rank: 1},
		{name: "prefill-0", addr: netip.MustParseAddrPort("10.0.0.2:8000"), pod: p, role: pd.RolePrefill}}}
	f.addSidecars()
	if len(f.sidecars) != 1 || f.sidecars[0].base != "http://10.0.0.1:9097" || f.sidecars[0].name != "decode-0-rank-1" {
		t.Errorf("%+v", f.sidecars)
	}
}

// The side channel of a simulated engine passes the check, as a real engine's does.
func TestSideChannelOfTheSimulator(t *testing.T) {
	engine, err := server.Start(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if got := zmqGreets(ctx, engine.SideChannel); got.verdict != ok {
		t.Errorf("%+v", got)
	}
}

// Each rank has a side channel of its own.
func TestSideChannelOfARank(t *testing.T) {
	p := pod("prefill-0", nil, nil)
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: sidePort, Value: "5700"}, {Name: sideHost, Value: "10.0.0.2"}}
	got := podSideChannel(&target{name: "prefill-0-rank-3", pod: p, rank: 3})
	if got.address != "10.0.0.2:5703" || got.verdict != none {
		t.Errorf("%+v", got)
	}
}
