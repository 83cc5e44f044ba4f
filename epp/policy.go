package epp

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// Policy gives requests their priority and the model that answers. A pool's operators write it. It does not change after it
// was made, so any number of goroutines may use it. A nil Policy is empty.
type Policy struct {
	priorities map[string]int
	exact      map[string]choice // by the model asked for
	every      choice            // of all other models
}

// choice is the rule for a model, and the rewrite that it belongs to. The zero value is no rule.
type choice struct {
	rewrite string
	targets []RewriteTarget
	total   int // of the weights
}

// Objective is a named priority: an InferenceObjective. Requests name it in HeaderObjective.
type Objective struct {
	Name     string
	Priority int // higher is more urgent; negative: may be shed first
}

// Rewrite changes the model of requests: an InferenceModelRewrite.
type Rewrite struct {
	Name    string
	Created time.Time // if two rewrites apply, the older one counts
	Rules   []RewriteRule
}

// RewriteRule redirects requests for some models to others. A rule without targets changes nothing.
type RewriteRule struct {
	Models  []string // exact names of the models that it applies to; none = every model
	Targets []RewriteTarget
}

// RewriteTarget is a model that answers instead, in proportion to its weight.
type RewriteTarget struct {
	Model  string // "" is not a target
	Weight int    // 1 to MaxWeight; less counts as 1
}

// MaxWeight is the largest weight that Kubernetes accepts for a target.
const MaxWeight = 1_000_000

// NewPolicy makes a policy. The last of two objectives with one name counts. Of the rules for one model, the older rewrite's
// counts; of rewrites of one age the one with the first name; of one rewrite the first rule.
func NewPolicy(objectives []Objective, rewrites []Rewrite) *Policy {
	p := &Policy{priorities: make(map[string]int, len(objectives)), exact: make(map[string]choice)}
	for _, o := range objectives {
		p.priorities[o.Name] = o.Priority
	}
	byAge := slices.SortedStableFunc(slices.Values(rewrites), func(a, b Rewrite) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	for i := range byAge {
		for j := range byAge[i].Rules {
			p.add(byAge[i].Name, &byAge[i].Rules[j])
		}
	}
	return p
}

// add appends a rule: earlier rules for the same model come first.
func (p *Policy) add(rewrite string, rule *RewriteRule) {
	c := choice{rewrite: rewrite}
	for _, t := range rule.Targets {
		if t.Model != "" {
			t.Weight = max(1, t.Weight)
			c.targets = append(c.targets, t)
			c.total += t.Weight
		}
	}
	if c.total == 0 {
		return
	}
	if len(rule.Models) == 0 && p.every.total == 0 {
		p.every = c
	}
	for _, model := range rule.Models {
		if _, taken := p.exact[model]; !taken {
			p.exact[model] = c
		}
	}
}

// Priority returns the priority of an objective; 0 and false if the policy does not have it.
func (p *Policy) Priority(objective string) (priority int, known bool) {
	if p == nil {
		return 0, false
	}
	priority, known = p.priorities[objective]
	return priority, known
}

// Target draws, by weight, the model that answers requests for a model, and returns the rewrite that chose it; false if none
// does. A rule for exactly this model has precedence over one for every model. The target may be the model itself.
func (p *Policy) Target(model string, r *rand.Rand) (target, rewrite string, rewritten bool) {
	if p == nil {
		return "", "", false
	}
	c, ok := p.exact[model]
	if !ok {
		c = p.every
	}
	if c.total == 0 {
		return "", "", false
	}
	lot := r.IntN(c.total)
	i := 0
	for lot >= c.targets[i].Weight {
		lot -= c.targets[i].Weight
		i++
	}
	return c.targets[i].Model, c.rewrite, true
}
