package cluster

import (
	"testing"
	"time"
)

// scenarioRoll: every component is replaced under load, pod by pod.
var scenarioRoll = scenario{name: "roll", release: true, run: func(t *testing.T, r *run) {
	for _, component := range []string{"epp", "decode", "prefill", "proxy"} {
		r.rollOne(t, component)
	}
}}

func (r *run) rollOne(t *testing.T, component string) {
	t.Helper()
	l := r.press(t, r.llm, 0)
	l.await(t, 16)
	old := r.llm.pods(r.ctx, t, component)
	began := time.Now()
	object := "deployment/" + r.llm.object(component)
	r.mustKubectl(t, "rollout", "restart", object, "-n", namespace)
	r.mustKubectl(t, "rollout", "status", object, "-n", namespace, "--timeout=120s")
	r.llm.awaitSettled(t, component, time.Minute) // the last of the old ones drains
	took := time.Since(began)
	for _, p := range r.llm.pods(r.ctx, t, component) {
		if contains(old, p) {
			t.Errorf("%s was not replaced", p.Name)
		}
	}
	l.await(t, 16)
	n := l.end(t)
	r.saw("%s replaced in %.0f s: %d requests right, none failed", component, took.Seconds(), n.right)
}
