package epp_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

func to(models ...string) (all []epp.RewriteTarget) {
	for _, m := range models {
		all = append(all, epp.RewriteTarget{Model: m, Weight: 1})
	}
	return all
}

func forModel(model, target string) epp.RewriteRule {
	return epp.RewriteRule{Models: []string{model}, Targets: to(target)}
}

func TestPolicyPriority(t *testing.T) {
	p := epp.NewPolicy([]epp.Objective{{"fast", 10}, {"batch", -1}, {"zero", 0}, {"fast", 20}}, nil)
	for _, c := range []struct {
		name  string
		from  *epp.Policy
		want  int
		known bool
	}{
		{"fast", p, 20, true}, {"batch", p, -1, true}, {"zero", p, 0, true}, {"other", p, 0, false}, {"", p, 0, false}, {"fast", nil, 0, false},
	} {
		if got, known := c.from.Priority(c.name); got != c.want || known != c.known {
			t.Errorf("%q: %d %t, want %d %t", c.name, got, known, c.want, c.known)
		}
	}
}

func TestPolicyTarget(t *testing.T) {
	old, young := time.Unix(1000, 0), time.Unix(2000, 0)
	every := epp.RewriteRule{Targets: to("every")}
	for _, c := range []struct {
		name     string
		rewrites []epp.Rewrite
		target   string // for the model "m"; "" = it is left alone
		by       string
	}{
		{"no rewrites", nil, "", ""},
		{"another model", []epp.Rewrite{{"r", old, []epp.RewriteRule{forModel("x", "y")}}}, "", ""},
		{"this model", []epp.Rewrite{{"r", old, []epp.RewriteRule{forModel("x", "y"), forModel("m", "n")}}}, "n", "r"},
		{"one of several", []epp.Rewrite{{"r", old, []epp.RewriteRule{{Models: []string{"x", "m"}, Targets: to("n")}}}}, "n", "r"},
		{"every model", []epp.Rewrite{{"r", old, []epp.RewriteRule{every}}}, "every", "r"},
		{"exact before every, in one", []epp.Rewrite{{"r", old, []epp.RewriteRule{every, forModel("m", "n")}}}, "n", "r"},
		{"exact before every, though younger", []epp.Rewrite{{"a", old, []epp.RewriteRule{every}}, {"b", young, []epp.RewriteRule{forModel("m", "n")}}}, "n", "b"},
		{"the older one", []epp.Rewrite{{"a", young, []epp.RewriteRule{forModel("m", "new")}}, {"b", old, []epp.RewriteRule{forModel("m", "old")}}}, "old", "b"},
		{"the older one for every model", []epp.Rewrite{{"a", young, []epp.RewriteRule{{Targets: to("new")}}}, {"b", old, []epp.RewriteRule{every}}}, "every", "b"},
		{"of one age", []epp.Rewrite{{"b", old, []epp.RewriteRule{forModel("m", "of-b")}}, {"a", old, []epp.RewriteRule{forModel("m", "of-a")}}}, "of-a", "a"},
		{"the first rule", []epp.Rewrite{{"r", old, []epp.RewriteRule{forModel("m", "first"), forModel("m", "second")}}}, "first", "r"},
		{"a rule without targets", []epp.Rewrite{{"r", old, []epp.RewriteRule{{Models: []string{"m"}}, {}, forModel("m", "n")}}}, "n", "r"},
		{"a target without a name", []epp.Rewrite{{"r", old, []epp.RewriteRule{{Models: []string{"m"}, Targets: to("")}, {Targets: to("", "n")}}}}, "n", "r"},
		{"a weight that was not said", []epp.Rewrite{{"r", old, []epp.RewriteRule{{Targets: []epp.RewriteTarget{{Model: "n"}}}}}}, "n", "r"},
		{"the model itself", []epp.Rewrite{{"r", old, []epp.RewriteRule{forModel("m", "m")}}}, "m", "r"},
	} {
		t.Run(c.name, func(t *testing.T) {
			target, by, ok := epp.NewPolicy(nil, c.rewrites).Target("m", rand.New(rand.NewPCG(1, 2)))
			if target != c.target || by != c.by || ok != (c.by != "") {
				t.Errorf("%q by %q %t, want %q by %q", target, by, ok, c.target, c.by)
			}
		})
	}
	if _, _, ok := (*epp.Policy)(nil).Target("m", nil); ok {
		t.Error("no policy rewrites")
	}
}

// Targets are drawn by their weights, the largest and the smallest too.
func TestPolicyDraws(t *testing.T) {
	p := epp.NewPolicy(nil, []epp.Rewrite{{Name: "r", Rules: []epp.RewriteRule{{
		Targets: []epp.RewriteTarget{{"a", 70}, {"b", 0}, {"c", 29}, {"d", -5}}}}}})
	count := map[string]int{}
	random := rand.New(rand.NewPCG(1, 2))
	const draws = 100_000
	for range draws {
		target, _, _ := p.Target("m", random)
		count[target]++
	}
	for model, weight := range map[string]float64{"a": 70, "b": 1, "c": 29, "d": 1} {
		want := draws * weight / 101
		if got := float64(count[model]); got < 0.85*want || got > 1.15*want {
			t.Errorf("%s was drawn %v times of %d, want about %.0f", model, got, draws, want)
		}
	}
}
