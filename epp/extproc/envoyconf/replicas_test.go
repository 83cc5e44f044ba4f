package envoyconf_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
)

// replica runs another Baseline at an address, "127.0.0.1:0" for any. It returns the address and a function that kills the replica.
func replica(t *testing.T, baseline client.Baseline, at string) (address string, kill func()) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	baseline.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	ended := false
	kill = func() {
		if !ended {
			ended = true
			g.Stop()
			<-served
		}
	}
	t.Cleanup(kill)
	return l.Addr().String(), kill
}

// Streams with large bodies are not retried, so Envoy must avoid replicas that are gone, also when only one of three is left, and
// must use one that has come back.
func TestEnvoyAvoidsEndedReplicas(t *testing.T) {
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	}))
	defer endpoint.Close()
	baseline := client.Baseline{Endpoints: endpoint.Listener.Addr().String()}
	second, killSecond := replica(t, baseline, "127.0.0.1:0")
	third, killThird := replica(t, baseline, "127.0.0.1:0")
	f := startFront(t, &client.Baseline{Endpoints: baseline.Endpoints}, func(o *envoyconf.Options) {
		o.Pool, o.Static = envoyconf.PoolStatic, static(baseline.Endpoints)
		o.Pickers = append(o.Pickers, second, third)
	})
	body := strings.Repeat("x", 1<<20)
	mustServe := func(what string) {
		t.Helper()
		for range 12 {
			if a := f.post(t, http.Header{}, body); a.status != http.StatusOK || a.body != fmt.Sprint(len(body)) {
				t.Fatalf("%s: answer %+v", what, a)
			}
		}
	}
	mustServe("all live")
	killSecond()
	killThird()
	f.awaitHealthy(t, 1)
	mustServe("one of three lives")
	f.baseline.Stop()
	f.awaitHealthy(t, 0)
	if a := f.post(t, http.Header{}, body); a.status != http.StatusServiceUnavailable {
		t.Errorf("none lives: answer %+v", a)
	}
	replica(t, baseline, third)
	f.awaitHealthy(t, 1)
	mustServe("one is back")
	f.wantClean(t)
}

// awaitHealthy waits until Envoy considers want replicas healthy. Envoy has no event for that.
func (f *front) awaitHealthy(t *testing.T, want int64) {
	t.Helper()
	const gauge = "cluster." + envoyconf.PickerCluster + ".membership_healthy"
	for t.Context().Err() == nil {
		stats, err := f.envoy.Stats(t.Context(), gauge)
		if err != nil {
			t.Fatal(err)
		}
		if stats[gauge] == want {
			return
		}
	}
}
