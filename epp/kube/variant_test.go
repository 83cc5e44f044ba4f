package kube

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-serving/tandem/epp"
)

// ownedBy has a controller own a pod.
func ownedBy(kind, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "n"},
			{APIVersion: "apps/v1", Kind: kind, Name: name, UID: "u", Controller: &yes}}
	}
}

func TestWorkloadsOfAPod(t *testing.T) {
	cases := []struct {
		name string
		pod  *corev1.Pod
		want []workload
	}{
		{"no owner", podOf("a", ""), nil},
		{"an owner that is no controller", podOf("a", "", ownedBy("StatefulSet", "s"),
			func(p *corev1.Pod) { p.OwnerReferences = p.OwnerReferences[:1] }), nil},
		{"a Deployment", podOf("a", "", ownedBy("ReplicaSet", "l40s-decode-5d8f9c"), labeled(templateHash, "5d8f9c")),
			[]workload{{"ReplicaSet", "l40s-decode-5d8f9c"}, {"Deployment", "l40s-decode"}}},
		{"a ReplicaSet of its own", podOf("a", "", ownedBy("ReplicaSet", "set-")), []workload{{"ReplicaSet", "set-"}}},
		{"another's hash", podOf("a", "", ownedBy("ReplicaSet", "l40s-1"), labeled(templateHash, "2")), []workload{{"ReplicaSet", "l40s-1"}}},
		{"a StatefulSet", podOf("a-0", "", ownedBy("StatefulSet", "a")), []workload{{"StatefulSet", "a"}}},
		{"a leader of a group", podOf("g-0", "", ownedBy("StatefulSet", "g"), labeled(groupName, "g")),
			[]workload{{"StatefulSet", "g"}, {"LeaderWorkerSet", "g"}}},
		{"a worker of a group", podOf("g-0-1", "", ownedBy("StatefulSet", "g-0"), labeled(groupName, "g")),
			[]workload{{"StatefulSet", "g-0"}, {"LeaderWorkerSet", "g"}}},
		{"an owner of another kind", podOf("a", "", ownedBy("RayCluster", "r")), []workload{{"RayCluster", "r"}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			trimmed, err := trimPod(c.pod)
			if err != nil {
				t.Fatal(err)
			}
			if got := workloadsOf(trimmed.(*corev1.Pod)); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func variantOf(name, kind, target, cost string) *VariantAutoscaling {
	return &VariantAutoscaling{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: VariantAutoscalingSpec{ScaleTargetRef: ScaleTargetRef{kind, target}, VariantCost: cost}}
}

func TestLabelsOfVariants(t *testing.T) {
	deployed := func(more ...func(*corev1.Pod)) *corev1.Pod {
		return podOf("a", "10.0.0.1", append(more, ownedBy("ReplicaSet", "d-1"), labeled(templateHash, "1"))...)
	}
	ending := variantOf("v", "Deployment", "d", "4")
	ending.DeletionTimestamp = &metav1.Time{}
	cases := []struct {
		name          string
		objects       []*VariantAutoscaling
		pod           *corev1.Pod
		variant, cost string
		problem       string // "" = none
	}{
		{name: "none", pod: deployed()},
		{name: "of the pod's Deployment", objects: []*VariantAutoscaling{variantOf("v", "Deployment", "d", "4.5")}, pod: deployed(),
			variant: "v", cost: "4.5"},
		{name: "of another Deployment", objects: []*VariantAutoscaling{variantOf("v", "Deployment", "d-1", "4")}, pod: deployed()},
		{name: "of another kind", objects: []*VariantAutoscaling{variantOf("v", "StatefulSet", "d", "4")}, pod: deployed()},
		{name: "without a cost", objects: []*VariantAutoscaling{variantOf("v", "Deployment", "d", "")}, pod: deployed(), variant: "v"},
		{name: "free", objects: []*VariantAutoscaling{variantOf("v", "Deployment", "d", "0")}, pod: deployed(), variant: "v", cost: "0"},
		{name: "a cost that is none", objects: []*VariantAutoscaling{variantOf("v", "Deployment", "d", "dear")}, pod: deployed(), variant: "v",
			problem: `VariantAutoscaling ns/v has no cost: its spec.variantCost is "dear", want a decimal number that is not negative`},
		{name: "a negative cost", objects: []*VariantAutoscaling{variantOf("v", "Deployment", "d", "-1")}, pod: deployed(), variant: "v",
			problem: `its spec.variantCost is "-1"`},
		{name: "a cost without end", objects: []*VariantAutoscaling{variantOf("v", "Deployment", "d", "Inf")}, pod: deployed(), variant: "v",
			problem: `its spec.variantCost is "Inf"`},
		{name: "a cost that is no number", objects: []*VariantAutoscaling{variantOf("v", "Deployment", "d", "nan")}, pod: deployed(), variant: "v",
			problem: `its spec.variantCost is "nan"`},
		{name: "the pod's own variant counts", objects: []*VariantAutoscaling{variantOf("v", "Deployment", "d", "4")},
			pod: deployed(labeled(epp.VariantLabel, "own")), variant: "own", cost: "4"},
		{name: "the pod's own cost counts", objects: []*VariantAutoscaling{variantOf("v", "Deployment", "d", "4")},
			pod: deployed(labeled(epp.VariantCostLabel, "9")), variant: "v", cost: "9"},
		{name: "two of one Deployment", objects: []*VariantAutoscaling{variantOf("v", "Deployment", "d", "4"), variantOf("w", "Deployment", "d", "5")},
			pod: deployed(), variant: "v", cost: "4",
			problem: "VariantAutoscaling ns/w is left out: v also has Deployment d as its scaleTargetRef; delete one of them"},
		{name: "one that is being deleted", objects: []*VariantAutoscaling{ending}, pod: deployed()},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			all, problems := variantsOf(c.objects)
			got := ""
			for _, problem := range problems {
				got += problem.text
			}
			if !strings.Contains(got, c.problem) || c.problem == "" && got != "" {
				t.Errorf("problems %q, want %q", got, c.problem)
			}
			before := maps.Clone(c.pod.Labels)
			specs, _ := endpointsOf(c.pod, []uint16{8000}, all)
			if l := specs[0].Labels; l[epp.VariantLabel] != c.variant || l[epp.VariantCostLabel] != c.cost || l["app"] != "engine" {
				t.Errorf("labels %v, want variant %q and cost %q", l, c.variant, c.cost)
			}
			if !maps.Equal(c.pod.Labels, before) {
				t.Errorf("the pod's labels have become %v", c.pod.Labels)
			}
		})
	}
}

// TestVariantsOfPods: pods have variants that come after them, and pods that come after their variants have them too.
func TestVariantsOfPods(t *testing.T) {
	r := newPodSet([]uint16{8000})
	variantsNow := func() []string {
		specs, _ := r.collect()
		var all []string
		for _, s := range specs {
			all = append(all, s.Pod+" "+s.Labels[epp.VariantLabel])
		}
		slices.Sort(all)
		return all
	}
	r.set(podOf("a-0", "10.0.0.1", ownedBy("StatefulSet", "a")))
	all, _ := variantsOf([]*VariantAutoscaling{variantOf("v", "StatefulSet", "a", "1"), variantOf("w", "StatefulSet", "b", "2")})
	r.assign(all)
	r.set(podOf("b-0", "10.0.0.2", ownedBy("StatefulSet", "b")))
	if got, want := variantsNow(), []string{"a-0 v", "b-0 w"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for w, want := range map[workload]bool{{"StatefulSet", "a"}: true, {"StatefulSet", "c"}: false, {"Deployment", "a"}: false} {
		if r.has(w) != want {
			t.Errorf("has pods of %v: %t, want %t", w, !want, want)
		}
	}
	before := r.state()
	r.assign(maps.Clone(all))
	if r.state() != before {
		t.Error("the same variants again count as a change")
	}
	r.assign(nil)
	if got, want := variantsNow(), []string{"a-0 ", "b-0 "}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
