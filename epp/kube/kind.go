package kube

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kind is a kind of objects that a follower follows.
type kind struct {
	label    string // in metrics
	gvk      schema.GroupVersionKind
	resource string // in roles
	object   client.Object
	list     client.ObjectList
}

var podKind = kind{"pod", corev1.SchemeGroupVersion.WithKind("Pod"), "pods", &corev1.Pod{}, &corev1.PodList{}}

// poolKind returns InferencePool in one of the two groups.
func poolKind(group string) kind {
	if group == AlphaGroup {
		return kind{"pool", gvkOf(AlphaGroup, "v1alpha2", "InferencePool"), "inferencepools",
			&AlphaInferencePool{}, &AlphaInferencePoolList{}}
	}
	return kind{"pool", gvkOf(PoolGroup, "v1", "InferencePool"), "inferencepools", &InferencePool{}, &InferencePoolList{}}
}

// objectiveKind returns InferenceObjective in one of the two groups.
func objectiveKind(group string) kind {
	return kind{"objective", gvkOf(group, "v1alpha2", "InferenceObjective"), "inferenceobjectives",
		&InferenceObjective{}, &InferenceObjectiveList{}}
}

// rewriteKind returns InferenceModelRewrite in one of the two groups.
func rewriteKind(group string) kind {
	return kind{"rewrite", gvkOf(group, "v1alpha2", "InferenceModelRewrite"), "inferencemodelrewrites",
		&InferenceModelRewrite{}, &InferenceModelRewriteList{}}
}

var variantKind = kind{"variant", gvkOf(VariantGroup, "v1alpha1", "VariantAutoscaling"), "variantautoscalings",
	&VariantAutoscaling{}, &VariantAutoscalingList{}}

func gvkOf(group, version, name string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: group, Version: version, Kind: name}
}

// scheme returns a scheme of this kind only: objectives and rewrites are the same Go types in two groups, which one scheme
// cannot distinguish.
func (k kind) scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypeWithName(k.gvk, k.object)
	s.AddKnownTypeWithName(k.gvk.GroupVersion().WithKind(k.gvk.Kind+"List"), k.list)
	metav1.AddToGroupVersion(s, k.gvk.GroupVersion())
	return s
}

// mapper maps the kind without a request to the cluster, so that a kind which the cluster gets later is found by its watch.
func (k kind) mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{k.gvk.GroupVersion()})
	m.AddSpecific(k.gvk, k.gvk.GroupVersion().WithResource(k.resource), k.gvk.GroupVersion().WithResource(k.resource),
		meta.RESTScopeNamespace)
	return m
}

// String returns the kind's name in messages.
func (k kind) String() string {
	if k.gvk.Group == "" {
		return k.resource
	}
	return k.resource + "." + k.gvk.Group
}
