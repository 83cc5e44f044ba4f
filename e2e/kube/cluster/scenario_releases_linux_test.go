package cluster

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// scenarioTwoReleases: a second release in the namespace of the first. Each serves its own requests by its own pods; when
// the second is taken away, the first does not notice, and nothing of the second is left.
var scenarioTwoReleases = scenario{name: "two releases", release: true, run: func(t *testing.T, r *run) {
	second := r.release("second", namespace, slices.Concat(quick, alone)...)
	second.install(t, r)
	for _, to := range []*release{r.llm, second} {
		other := map[*release]*release{r.llm: second, second: r.llm}[to]
		mine, theirs := r.work(t, to), r.work(t, other)
		const requests = 6
		r.sendTo(t, to, requests)
		if did := r.work(t, to) - mine; did < requests {
			t.Errorf("the engines of %s did %d requests of %d", to.name, did, requests)
		}
		if did := r.work(t, other) - theirs; did != 0 {
			t.Errorf("the engines of %s did %d requests that %s was asked", other.name, did, to.name)
		}
		if n := r.known(t, to); n != len(to.readyPods(r.ctx, t, "prefill"))+len(to.readyPods(r.ctx, t, "decode")) {
			t.Errorf("the picker of %s knows %d endpoints, which are not its release's", to.name, n)
		}
	}
	r.saw("each release's requests are done by its own engines alone, and its pickers know no others")

	before := identities(r.llm.pods(r.ctx, t, ""))
	l := r.press(t, r.llm, 0)
	l.await(t, 10)
	second.uninstall(t, r)
	l.await(t, 20)
	l.end(t)
	if after := identities(r.llm.pods(r.ctx, t, "")); !slices.Equal(after, before) {
		t.Errorf("the pods of llm were %v, and are %v", before, after)
	}
	const kinds = "all,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets"
	left := r.mustKubectl(t, "get", kinds, "-n", namespace,
		"-l", "app.kubernetes.io/instance=second,app.kubernetes.io/component!=test", "-o", "name")
	if left = strings.TrimSpace(left); left != "" {
		t.Errorf("of second is left: %s", left)
	}
	r.saw("second uninstalled under load on llm: nothing of it is left, and no pod of llm was touched")
}}

// sendTo sends requests to a release, every second one long, which all have to be right.
func (r *run) sendTo(t *testing.T, to *release, n int) {
	t.Helper()
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 4))
	for i := range n {
		c := call{api: pd.APICompletions, prompt: drawTokens(random, []int{threshold / 4, 2 * threshold}[i%2]), tokens: 4}
		got := r.ask(t, to, c)
		want, err := r.plain.ask(r.ctx, c)
		if got.Status != http.StatusOK || err != nil || !slices.Equal(got.Tokens, want) {
			t.Fatalf("%s: status %d, tokens %v, an undisturbed engine gives %v %v; %s", to.name, got.Status, got.Tokens, want,
				err, got.Body)
		}
		r.row.add(tally{right: 1, remote: i % 2})
	}
}

// work returns how many requests the release's engines have finished.
func (r *run) work(t *testing.T, rel *release) (done int) {
	t.Helper()
	for _, component := range []string{"prefill", "decode"} {
		for _, pod := range rel.readyPods(r.ctx, t, component) {
			page, err := r.page(r.ctx, pod.Namespace, pod.Name, enginePort, "metrics")
			if err != nil {
				t.Fatal(err)
			}
			done += int(sum(page, "vllm:request_success_total"))
		}
	}
	return done
}

// known returns how many endpoints the release's pickers know, all of them the same number.
func (r *run) known(t *testing.T, rel *release) int {
	t.Helper()
	var all []int
	for _, pod := range rel.readyPods(r.ctx, t, "epp") {
		page, err := r.page(r.ctx, pod.Namespace, pod.Name, metricsPort, "metrics")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, int(sum(page, "tandem_endpoints")-sum(page, "tandem_endpoints", `state="left"`)))
	}
	if slices.Sort(all); len(all) == 0 || all[0] != all[len(all)-1] {
		t.Errorf("the pickers of %s know different numbers of endpoints: %v", rel.name, all)
		return -1
	}
	return all[0]
}
