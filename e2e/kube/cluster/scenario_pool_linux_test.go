package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// alone are values for a release that is there beside another, on a machine of two processors.
var alone = []string{"prefill.replicas=1", "decode.replicas=1", "epp.replicas=1", "proxy.replicas=1"}

// scenarioPool: a release whose pods an InferencePool names loses it. Requests are refused with a reason, in the shape of
// the API that was called, and what was running goes on; with the pool again, they are served again.
var scenarioPool = scenario{name: "pool deleted", run: func(t *testing.T, r *run) {
	rel := r.release("pooled", namespace, slices.Concat(quick, alone, []string{"epp.discovery=pool"})...)
	rel.install(t, r)
	before := r.holdings(t, rel)
	const kind, name = "inferencepool.inference.networking.k8s.io", "pooled-tandem"
	if written := r.mustKubectl(t, "get", kind, name, "-n", namespace, "-o", "jsonpath={.status.parents}"); written != "" {
		t.Errorf("a component writes the pool's status, which the picker leaves to gateways: %s", written)
	}
	l := r.press(t, rel, refusalsExcused)
	l.await(t, 10)
	if n := l.now(); n.refused > 0 {
		t.Errorf("%d requests are refused while the pool is there", n.refused)
	}

	r.mustKubectl(t, "delete", kind, name, "-n", namespace)
	r.await(t, "requests are refused", 20*time.Second, func(context.Context) (string, bool) {
		got := r.ask(t, rel, call{api: pd.APICompletions, text: "Hello", tokens: 2})
		return fmt.Sprint(got.Status), got.Status != http.StatusOK
	})
	for _, stream := range []bool{false, true} {
		r.mustRefuse(t, rel, stream)
	}
	picker := rel.readyPods(r.ctx, t, "epp")
	if len(picker) != 1 {
		t.Fatalf("the picker is not ready without a pool: %s", podNames(rel.pods(r.ctx, t, "epp")))
	}
	if text, err := r.page(r.ctx, namespace, picker[0].Name, metricsPort, "readyz"); err != nil || !strings.Contains(text,
		name) {
		t.Errorf("/readyz does not say which pool is missing: %v %s", err, text)
	}

	rel.upgrade(t, r)
	l.await(t, 20)
	refused := l.now().refused
	if refused == 0 {
		t.Error("the load has not noticed that the pool was gone")
	}
	r.await(t, "nothing is refused any more", 20*time.Second, func(context.Context) (string, bool) {
		last := refused
		l.await(t, 10)
		refused = l.now().refused
		return fmt.Sprintf("%d were refused meanwhile", refused-last), refused == last
	})
	l.end(t)
	r.lookAt(t, rel, before)
	rel.uninstall(t, r)
	r.saw("without the pool 503 with reason no-endpoint and Retry-After, and a ready picker that names the pool it misses; " +
		"helm upgrade makes the pool again. Its status is not written in standalone mode")
}}

// mustRefuse asks both APIs, and checks how they say that no engine can serve them.
func (r *run) mustRefuse(t *testing.T, rel *release, stream bool) {
	t.Helper()
	for _, api := range []pd.API{pd.APICompletions, pd.APIChat} {
		got := r.ask(t, rel, call{api: api, text: "Hello", tokens: 2, stream: stream})
		var body struct {
			Error struct {
				Message, Type string
				Code          pd.Reason
			}
		}
		err := json.Unmarshal([]byte(got.Body), &body)
		if got.Status != http.StatusServiceUnavailable || got.Header.Get("Retry-After") != "1" || err != nil ||
			body.Error.Code != pd.NoEndpoint || body.Error.Message == "" || body.Error.Type != "service_unavailable_error" {
			t.Errorf("%s, stream %v: status %d, Retry-After %q: %v %s", api.Path(), stream, got.Status,
				got.Header.Get("Retry-After"), err, got.Body)
		}
		if want := (pd.Result{Verdict: pd.Refused, Reason: pd.NoEndpoint}); got.Decision != want {
			t.Errorf("%s, stream %v: decision %q, want %q", api.Path(), stream, plain(got.Decision), plain(want))
		}
		r.row.add(tally{refused: 1})
	}
}
