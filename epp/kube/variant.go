package kube

import (
	"context"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-serving/tandem/epp"
)

// Labels by which controllers say of a pod to which object it belongs, other than by its owner references.
const (
	templateHash = "pod-template-hash"                // ends the name of a Deployment's ReplicaSet
	groupName    = "leaderworkerset.sigs.k8s.io/name" // the LeaderWorkerSet, on leaders and workers
)

// workload is an object that has pods, in the namespace of the pool.
type workload struct{ kind, name string }

// workloadsOf returns the objects that a pod belongs to: its controller, the Deployment of a ReplicaSet, and the LeaderWorkerSet of a
// StatefulSet. All of it is on the pod, so that nothing but pods need be read. A Deployment names its ReplicaSets <name>-<hash> and labels
// pods with the hash; a worker's StatefulSet has its leader's name, so only the label says of it which LeaderWorkerSet it belongs to.
func workloadsOf(p *corev1.Pod) (all []workload) {
	owner := metav1.GetControllerOfNoCopy(p)
	if owner == nil {
		return nil
	}
	all = append(all, workload{owner.Kind, owner.Name})
	switch owner.Kind {
	case "ReplicaSet":
		if name, is := strings.CutSuffix(owner.Name, "-"+p.Labels[templateHash]); is && p.Labels[templateHash] != "" {
			all = append(all, workload{"Deployment", name})
		}
	case "StatefulSet":
		if name := p.Labels[groupName]; name != "" {
			all = append(all, workload{"LeaderWorkerSet", name})
		}
	}
	return all
}

// variant is what a VariantAutoscaling says of the pods of its scale target.
type variant struct {
	name string
	cost string // a decimal number; "" = not known
}

// variantsByTarget are variants by the object whose pods they are.
type variantsByTarget map[workload]variant

// variantProblem is what is wrong with the object of a variant.
type variantProblem struct {
	target workload
	text   string
}

// variantsOf returns what the objects, ordered by name, say, and what is wrong with them. An object without a usable cost still names its
// pods' variant. Of several with one target the first counts.
func variantsOf(objects []*VariantAutoscaling) (all variantsByTarget, problems []variantProblem) {
	all = variantsByTarget{}
	for _, o := range objects {
		if o.DeletionTimestamp != nil {
			continue
		}
		ref := o.Spec.ScaleTargetRef
		target := workload{ref.Kind, ref.Name}
		if other, taken := all[target]; taken {
			problems = append(problems, variantProblem{target, fmt.Sprintf("VariantAutoscaling %s/%s is left out: %s also has %s %s as its"+
				" scaleTargetRef; delete one of them", o.Namespace, o.Name, other.name, ref.Kind, ref.Name)})
			continue
		}
		v := variant{name: o.Name, cost: o.Spec.VariantCost}
		if cost, err := strconv.ParseFloat(v.cost, 64); v.cost != "" && (err != nil || !(cost >= 0) || math.IsInf(cost, 1)) {
			problems = append(problems, variantProblem{target, fmt.Sprintf("VariantAutoscaling %s/%s has no cost: its spec.variantCost is %q,"+
				" want a decimal number that is not negative", o.Namespace, o.Name, v.cost)})
			v.cost = ""
		}
		all[target] = v
	}
	return all, problems
}

// labelsOf returns a pod's labels, with those of its variant that it does not have itself.
func (all variantsByTarget) labelsOf(p *corev1.Pod) map[string]string {
	if len(all) == 0 {
		return p.Labels
	}
	for _, w := range workloadsOf(p) {
		v, known := all[w]
		if !known {
			continue
		}
		labels := map[string]string{epp.VariantLabel: v.name}
		if v.cost != "" {
			labels[epp.VariantCostLabel] = v.cost
		}
		maps.Copy(labels, p.Labels)
		return labels
	}
	return p.Labels
}

// variants follows the VariantAutoscalings of the pool's namespace. They are optional: without the kind, or the permission to read it, pods
// have the labels that they have.
type variants struct {
	follower *follower // nil in selector mode
	store    store[*VariantAutoscaling]
	denied   bool // it was logged that they may not be read
}

func (v *variants) start(ctx context.Context, r *run) (err error) {
	v.follower, err = followInto(ctx, r, variantKind, &v.store)
	return err
}

// read gives the pods their variants, and reports whether it is known which there are, or why not.
func (v *variants) read(r *run, found *problemSet) (known bool) {
	if v.follower == nil {
		return true
	}
	broken, told := v.follower.state()
	switch {
	case broken != nil && broken.reason == faultMissing:
	case broken != nil && broken.reason == faultForbidden && !told:
		if !v.denied {
			r.options.Log.Info("VariantAutoscalings are not read, so variants and their costs are those of pod labels: to have them read,"+
				" grant the verbs list and watch on "+variantKind.String(), "namespace", r.options.Namespace, "error", broken.err)
			v.denied = true
		}
	default:
		found.follower(v.follower, broken, told, r.options.Namespace)
	}
	var objects []*VariantAutoscaling
	if v.follower.has() {
		objects, _ = v.store.list()
	}
	all, problems := variantsOf(objects)
	for _, problem := range problems {
		if r.pods != nil && r.pods.podSet.has(problem.target) { // other objects are about other pools of the namespace
			found.add(problem.text, problem.text)
		}
	}
	for _, s := range []*selected{r.pods, r.next} {
		if s != nil {
			s.podSet.assign(all)
		}
	}
	return told || broken != nil
}
