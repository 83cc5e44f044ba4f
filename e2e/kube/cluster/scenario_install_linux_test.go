package cluster

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/pd"
)

// scenarioInstall: a user installs the simulated preset, does what the notes say, and has helm test it.
var scenarioInstall = scenario{name: "install", ci: true, run: func(t *testing.T, r *run) {
	began := time.Now()
	notes := r.llm.install(t, r)
	ready := time.Since(began)
	r.firstAnswers(t)
	r.saw("ready after %.1f s, and no request was refused from then on", ready.Seconds())
	for _, said := range []string{"tandem/sim is served by llm-tandem: 2 prefill, 2 decode pods (sim).",
		"kubectl -n " + namespace + " port-forward service/llm-tandem-proxy", "helm test -n " + namespace + " llm --logs"} {
		if !strings.Contains(notes, said) {
			t.Errorf("the notes do not say %q:\n%s", said, notes)
		}
	}
	r.installedWell(t)
	out, err := r.helm(r.ctx, t, "test", r.llm.name, "-n", namespace, "--logs", "--timeout", helmTimeout)
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, r.llm.state(r.ctx))
	}
	if !strings.Contains(out, "Succeeded") {
		t.Errorf("helm test does not say that it succeeded:\n%s", out)
	}
	r.saw("helm test passed")
}}

// firstAnswers sends what the notes say, at once and to every proxy: connections are shared out between the two by turns.
func (r *run) firstAnswers(t *testing.T) {
	t.Helper()
	for range 8 {
		got := r.ask(t, r.llm, call{api: pd.APIChat, text: "Hello", tokens: 16})
		if got.Status != http.StatusOK || len(got.Tokens) != 16 {
			t.Fatalf("one of the first requests: status %d, %d tokens %s", got.Status, len(got.Tokens), got.Body)
		}
		r.row.add(tally{right: 1})
	}
}

// installedWell holds what Kubernetes shows of a release that is ready.
func (r *run) installedWell(t *testing.T) {
	t.Helper()
	for _, component := range components {
		pods := r.llm.readyPods(r.ctx, t, component)
		if len(pods) != 2 {
			t.Errorf("%d pods of %s are ready, want 2: %s", len(pods), component, podNames(pods))
		}
		on := map[string]bool{}
		for _, p := range pods {
			on[p.Spec.NodeName] = true
			for _, c := range []string{"Initialized", "ContainersReady", "PodScheduled", "PodReadyToStartContainers"} {
				if got := podCondition(p, corev1.PodConditionType(c)); got != "True" {
					t.Errorf("%s of %s is %q", c, p.Name, got)
				}
			}
			r.llm.mustHaveEvents(t, p.Name, "Scheduled", "Pulled", "Created", "Started")
		}
		if len(on) != 2 {
			t.Errorf("the pods of %s are on %d nodes, want 2", component, len(on))
		}
	}
	for service, want := range map[string]int{"proxy": 2, "epp": 2, "epp-replicas": 2} {
		if ready, leaving := r.llm.endpoints(r.ctx, t, r.llm.object(service)); len(ready) != want || len(leaving) != 0 {
			t.Errorf("Service %s has endpoints %v, leaving %v", service, ready, leaving)
		}
	}
	r.saw("2 pods of each component on two nodes, conditions and events as documented, endpoints of all Services")
}
