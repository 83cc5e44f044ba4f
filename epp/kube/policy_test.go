package kube

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-serving/tandem/epp"
)

var llama = poolID{PoolGroup, "vllm-llama3-8b-instruct"}

func TestPolicyOfUsersObjects(t *testing.T) {
	for _, form := range []string{"new", "alpha"} {
		t.Run(form, func(t *testing.T) {
			var objectives []*InferenceObjective
			for _, document := range documents(t, "objects/objectives-"+form+".yaml") {
				objectives = append(objectives, decode[InferenceObjective](t, document))
			}
			rewrite := decode[InferenceModelRewrite](t, documents(t, "objects/rewrites-"+form+".yaml")[0])
			p, problems := policyOf(llama, objectives, []*InferenceModelRewrite{rewrite})
			if len(problems) > 0 {
				t.Errorf("problems: %q", problems)
			}
			for name, want := range map[string]int{"chat": 10, "batch": -5, "ordinary": 0} {
				if got, known := p.Priority(name); got != want || !known {
					t.Errorf("priority of %s: %d, %t; want %d", name, got, known, want)
				}
			}
			if _, known := p.Priority("other"); known {
				t.Error("an objective is known that does not exist")
			}
			r := rand.New(rand.NewPCG(1, 2))
			drawn := map[string]int{}
			for range 1000 {
				model, by, _ := p.Target("food-reviews", r)
				drawn[model]++
				if by != "food-review" {
					t.Fatalf("rewritten by %q", by)
				}
			}
			if n := drawn["food-review-v1"]; n < 850 || n > 950 || n+drawn["food-review-v2"] != 1000 {
				t.Errorf("drawn %v, want nine of ten v1", drawn)
			}
			if model, _, _ := p.Target("anything", r); model != "llama-base" {
				t.Errorf("any other model becomes %q", model)
			}
		})
	}
}

func TestPoolReferences(t *testing.T) {
	alpha := poolID{AlphaGroup, "p"}
	cases := []struct {
		name string
		ref  PoolRef
		pool poolID
		want bool
	}{
		{"by name", PoolRef{Name: "p"}, poolID{PoolGroup, "p"}, true},
		{"in full", PoolRef{Group: PoolGroup, Kind: "InferencePool", Name: "p"}, poolID{PoolGroup, "p"}, true},
		{"with the group that the CRD fills in", PoolRef{Group: PolicyGroup, Kind: "InferencePool", Name: "p"}, poolID{PoolGroup, "p"}, true},
		{"the older pool", PoolRef{Group: AlphaGroup, Name: "p"}, alpha, true},
		{"another name", PoolRef{Name: "q"}, poolID{PoolGroup, "p"}, false},
		{"another kind", PoolRef{Kind: "Service", Name: "p"}, poolID{PoolGroup, "p"}, false},
		{"the pool of another group", PoolRef{Group: PoolGroup, Name: "p"}, alpha, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := c.ref.means(c.pool); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestInvalidRewritesAreLeftOut(t *testing.T) {
	const head = "metadata: {name: r, namespace: ns}\nspec:\n  poolRef: {name: vllm-llama3-8b-instruct}\n  rules:\n"
	cases := []struct{ name, rules, want string }{
		{"no targets", "  - matches: [{model: {value: m}}]", "spec.rules[0].targets is empty, want at least one"},
		{"weight 0", "  - targets: [{modelRewrite: m, weight: 0}]", "spec.rules[0].targets[0].weight is 0, want 1 to 1000000"},
		{"weight too large", "  - targets: [{modelRewrite: m, weight: 1}, {modelRewrite: n, weight: 1000001}]",
			"spec.rules[0].targets[1].weight is 1000001, want 1 to 1000000"},
		{"weight on some", "  - targets: [{modelRewrite: m, weight: 1}, {modelRewrite: n}]",
			"spec.rules[0].targets[1].weight must be there on all targets or on none"},
		{"no model", "  - targets: [{weight: 1}]", "spec.rules[0].targets[0].modelRewrite is empty, want the name of a model"},
		{"another match", "  - matches: [{model: {type: Prefix, value: m}}]\n    targets: [{modelRewrite: m}]",
			`spec.rules[0].matches[0].model.type is "Prefix", want Exact`},
		{"a match of nothing", "  - targets: [{modelRewrite: m}]\n  - matches: [{model: {type: Exact}}]\n    targets: [{modelRewrite: m}]",
			"spec.rules[1].matches[0].model.value is empty, want the name of a model"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bad := decode[InferenceModelRewrite](t, head+c.rules)
			good := decode[InferenceModelRewrite](t, strings.Replace(head, "name: r", "name: s", 1)+"  - targets: [{modelRewrite: good}]")
			p, problems := policyOf(llama, nil, []*InferenceModelRewrite{bad, good})
			if want := "InferenceModelRewrite ns/r is left out: " + c.want; !slices.Equal(problems, []string{want}) {
				t.Errorf("got  %q\nwant %q", problems, want)
			}
			if model, by, _ := p.Target("m", rand.New(rand.NewPCG(1, 2))); model != "good" || by != "s" {
				t.Errorf("the other rewrite: %q by %q", model, by)
			}
		})
	}
}

func TestOlderRewritesGoFirst(t *testing.T) {
	made := func(name string, created time.Time) *InferenceModelRewrite {
		r := decode[InferenceModelRewrite](t, "spec:\n  poolRef: {name: vllm-llama3-8b-instruct}\n  rules: [{targets: [{modelRewrite: by-"+name+"}]}]")
		r.Name, r.CreationTimestamp = name, metav1.NewTime(created)
		return r
	}
	gone := made("gone", time.Unix(0, 0))
	gone.DeletionTimestamp = &metav1.Time{}
	p, _ := policyOf(llama, nil, []*InferenceModelRewrite{made("a", time.Unix(2, 0)), made("b", time.Unix(1, 0)), gone})
	if model, _, _ := p.Target("m", rand.New(rand.NewPCG(1, 2))); model != "by-b" {
		t.Errorf("got %s", model)
	}
}

func TestTargetOfAPool(t *testing.T) {
	cases := []struct{ name, spec, want string }{
		{"good", "{selector: {matchLabels: {b: '1', a: '2'}}, targetPorts: [{number: 1}, {number: 65535}]}", "a=2,b=1 1, 65535"},
		{"no selector", "{targetPorts: [{number: 1}]}", "its selector is empty and would take every pod of the namespace: name labels that only the model servers have"},
		{"a selector that is none", "{selector: {matchLabels: {a: 'b c'}}, targetPorts: [{number: 1}]}", "its selector matches nothing: "},
		{"no ports", "{selector: {matchLabels: {a: b}}}", "its target ports cannot be used: there are 0, want 1 to 8"},
		{"port 0", "{selector: {matchLabels: {a: b}}, targetPorts: [{number: 0}]}", "its target ports cannot be used: 0 is not from 1 to 65535"},
		{"port twice", "{selector: {matchLabels: {a: b}}, targetPorts: [{number: 1}, {number: 1}]}", "its target ports cannot be used: 1 is there twice"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			target, err := decode[InferencePool](t, "spec: "+c.spec).target()
			var got string
			if err != nil {
				got = err.Error()
			} else {
				got = target.selector.String() + " " + portList(target.ports)
			}
			if !strings.HasPrefix(got, c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestOlderPools(t *testing.T) {
	for file, want := range map[string]string{
		"pool-alpha.yaml":       "llm-d.ai/inferenceServing=true,llm-d.ai/model=ms-sim 8000",
		"pool-alpha-ports.yaml": "app=wide-ep 8000, 8001",
	} {
		t.Run(file, func(t *testing.T) {
			target, err := decode[AlphaInferencePool](t, documents(t, "objects/"+file)[0]).current().target()
			if err != nil {
				t.Fatal(err)
			}
			if got := target.selector.String() + " " + portList(target.ports); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// TestPolicyIsKept: what does not concern the pool, or says nothing new, makes no new policy.
func TestPolicyIsKept(t *testing.T) {
	told := make(chan struct{})
	close(told)
	r := &run{Watch: &Watch{options: Options{Group: PoolGroup, Pool: "p", Log: slog.New(slog.DiscardHandler)}}}
	for i := range 2 {
		r.policies.objectives.groups[i].follower = &follower{ready: told}
		r.policies.rewrites.groups[i].follower = &follower{ready: told}
	}
	after := func(name, pool string, priority int32, status PolicyStatus) *epp.Policy {
		r.policies.objectives.groups[0].store.set(&InferenceObjective{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: InferenceObjectiveSpec{PoolRef: PoolRef{Name: pool}, Priority: &priority}, Status: status})
		if !r.policies.read(r, new(problemSet)) {
			t.Error("not known")
		}
		return r.Policy()
	}
	first := after("chat", "p", 1, PolicyStatus{})
	if after("chat", "p", 1, PolicyStatus{Conditions: []metav1.Condition{{Type: "Accepted"}}}) != first || after("chat2", "q", 1, PolicyStatus{}) != first {
		t.Error("a new policy although nothing has changed")
	}
	if n, _ := after("chat", "p", 2, PolicyStatus{}).Priority("chat"); n != 2 {
		t.Errorf("priority %d", n)
	}
}
