package kube

import (
	"fmt"
	"slices"

	"github.com/tandem-serving/tandem/epp"
)

// poolID identifies the pool that objectives and rewrites refer to.
type poolID struct{ group, name string }

// means reports whether a reference is to the pool. The kind may be missing, and so may the group: its default in the CRDs is
// their own group, which has no pools.
func (ref PoolRef) means(pool poolID) bool {
	return ref.Name == pool.name && (ref.Kind == "" || ref.Kind == "InferencePool") &&
		(ref.Group == pool.group || ref.Group == "" || ref.Group == PolicyGroup)
}

// policyOf makes a policy from the objects that refer to the pool. problems lists those that are left out.
func policyOf(pool poolID, objectives []*InferenceObjective, rewrites []*InferenceModelRewrite) (
	p *epp.Policy, problems []string) {
	var priorities []epp.Objective
	for _, o := range objectives {
		if o.Spec.PoolRef.means(pool) && o.DeletionTimestamp == nil {
			priorities = append(priorities, o.objective())
		}
	}
	var rules []epp.Rewrite
	for _, r := range rewrites {
		if !r.Spec.PoolRef.means(pool) || r.DeletionTimestamp != nil {
			continue
		}
		rewrite, err := r.rewrite()
		if err != nil {
			problems = append(problems, fmt.Sprintf("InferenceModelRewrite %s/%s is left out: %v", r.Namespace, r.Name, err))
			continue
		}
		rules = append(rules, rewrite)
	}
	slices.Sort(problems)
	return epp.NewPolicy(priorities, rules), problems
}

func (o *InferenceObjective) objective() epp.Objective {
	made := epp.Objective{Name: o.Name}
	if o.Spec.Priority != nil {
		made.Priority = int(*o.Spec.Priority)
	}
	return made
}

// rewrite returns the object as an epp.Rewrite. The API server checks most of it, but not with every version of the CRD.
func (r *InferenceModelRewrite) rewrite() (epp.Rewrite, error) {
	made := epp.Rewrite{Name: r.Name, Created: r.CreationTimestamp.Time}
	for i := range r.Spec.Rules {
		rule, err := r.Spec.Rules[i].rule()
		if err != nil {
			return epp.Rewrite{}, fmt.Errorf("spec.rules[%d].%w", i, err)
		}
		made.Rules = append(made.Rules, rule)
	}
	return made, nil
}

func (r *ModelRewriteRule) rule() (made epp.RewriteRule, err error) {
	for i, m := range r.Matches {
		switch {
		case m.Model.Type != "" && m.Model.Type != "Exact":
			return made, fmt.Errorf("matches[%d].model.type is %q, want Exact", i, m.Model.Type)
		case m.Model.Value == "":
			return made, fmt.Errorf("matches[%d].model.value is empty, want the name of a model", i)
		}
		made.Models = append(made.Models, m.Model.Value)
	}
	if len(r.Targets) == 0 {
		return made, fmt.Errorf("targets is empty, want at least one")
	}
	for i, t := range r.Targets {
		weight := int32(1)
		switch {
		case (t.Weight == nil) != (r.Targets[0].Weight == nil):
			return made, fmt.Errorf("targets[%d].weight must be there on all targets or on none", i)
		case t.Weight != nil:
			weight = *t.Weight
		}
		switch {
		case t.ModelRewrite == "":
			return made, fmt.Errorf("targets[%d].modelRewrite is empty, want the name of a model", i)
		case weight < 1 || weight > epp.MaxWeight:
			return made, fmt.Errorf("targets[%d].weight is %d, want 1 to %d", i, weight, epp.MaxWeight)
		}
		made.Targets = append(made.Targets, epp.RewriteTarget{Model: t.ModelRewrite, Weight: int(weight)})
	}
	return made, nil
}
