package kube

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// pointed copies what p points to.
func pointed[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// each copies a list by copying each of its items, and keeps nil nil.
func each[T any](list []T, copied func(*T) T) []T {
	if list == nil {
		return nil
	}
	out := make([]T, len(list))
	for i := range list {
		out[i] = copied(&list[i])
	}
	return out
}

func copyConditions(c []metav1.Condition) []metav1.Condition {
	return each(c, func(c *metav1.Condition) metav1.Condition { return *c.DeepCopy() })
}

func copyParents(p []ParentStatus) []ParentStatus {
	return each(p, func(p *ParentStatus) ParentStatus {
		out := *p
		out.Conditions = copyConditions(p.Conditions)
		return out
	})
}

func copyRules(rules []ModelRewriteRule) []ModelRewriteRule {
	return each(rules, func(r *ModelRewriteRule) ModelRewriteRule {
		return ModelRewriteRule{
			Matches: slices.Clone(r.Matches),
			Targets: each(r.Targets, func(t *ModelRewriteTarget) ModelRewriteTarget {
				return ModelRewriteTarget{ModelRewrite: t.ModelRewrite, Weight: pointed(t.Weight)}
			}),
		}
	})
}

func (p *InferencePool) copied() InferencePool {
	out := *p
	out.ObjectMeta = *p.ObjectMeta.DeepCopy()
	out.Spec.Selector.MatchLabels = maps.Clone(p.Spec.Selector.MatchLabels)
	out.Spec.TargetPorts = slices.Clone(p.Spec.TargetPorts)
	if out.Spec.EndpointPickerRef = pointed(p.Spec.EndpointPickerRef); out.Spec.EndpointPickerRef != nil {
		out.Spec.EndpointPickerRef.Port = pointed(p.Spec.EndpointPickerRef.Port)
	}
	out.Status.Parents = copyParents(p.Status.Parents)
	return out
}

func (p *AlphaInferencePool) copied() AlphaInferencePool {
	out := *p
	out.ObjectMeta = *p.ObjectMeta.DeepCopy()
	out.Spec.Selector = maps.Clone(p.Spec.Selector)
	out.Spec.TargetPorts = slices.Clone(p.Spec.TargetPorts)
	if out.Spec.ExtensionRef = pointed(p.Spec.ExtensionRef); out.Spec.ExtensionRef != nil {
		out.Spec.ExtensionRef.PortNumber = pointed(p.Spec.ExtensionRef.PortNumber)
	}
	out.Status.Parents = copyParents(p.Status.Parents)
	return out
}

func (o *InferenceObjective) copied() InferenceObjective {
	out := *o
	out.ObjectMeta = *o.ObjectMeta.DeepCopy()
	out.Spec.Priority = pointed(o.Spec.Priority)
	out.Status.Conditions = copyConditions(o.Status.Conditions)
	return out
}

func (r *InferenceModelRewrite) copied() InferenceModelRewrite {
	out := *r
	out.ObjectMeta = *r.ObjectMeta.DeepCopy()
	out.Spec.Rules = copyRules(r.Spec.Rules)
	out.Status.Conditions = copyConditions(r.Status.Conditions)
	return out
}

func (v *VariantAutoscaling) copied() VariantAutoscaling {
	out := *v
	out.ObjectMeta = *v.ObjectMeta.DeepCopy()
	return out
}

// DeepCopyObject implements runtime.Object.
func (p *InferencePool) DeepCopyObject() runtime.Object {
	out := p.copied()
	return &out
}

// DeepCopyObject implements runtime.Object.
func (p *AlphaInferencePool) DeepCopyObject() runtime.Object {
	out := p.copied()
	return &out
}

// DeepCopyObject implements runtime.Object.
func (o *InferenceObjective) DeepCopyObject() runtime.Object {
	out := o.copied()
	return &out
}

// DeepCopyObject implements runtime.Object.
func (r *InferenceModelRewrite) DeepCopyObject() runtime.Object {
	out := r.copied()
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *InferencePoolList) DeepCopyObject() runtime.Object {
	return &InferencePoolList{l.TypeMeta, *l.ListMeta.DeepCopy(), each(l.Items, (*InferencePool).copied)}
}

// DeepCopyObject implements runtime.Object.
func (l *AlphaInferencePoolList) DeepCopyObject() runtime.Object {
	return &AlphaInferencePoolList{l.TypeMeta, *l.ListMeta.DeepCopy(), each(l.Items, (*AlphaInferencePool).copied)}
}

// DeepCopyObject implements runtime.Object.
func (l *InferenceObjectiveList) DeepCopyObject() runtime.Object {
	return &InferenceObjectiveList{l.TypeMeta, *l.ListMeta.DeepCopy(), each(l.Items, (*InferenceObjective).copied)}
}

// DeepCopyObject implements runtime.Object.
func (l *InferenceModelRewriteList) DeepCopyObject() runtime.Object {
	return &InferenceModelRewriteList{l.TypeMeta, *l.ListMeta.DeepCopy(), each(l.Items, (*InferenceModelRewrite).copied)}
}

// DeepCopyObject implements runtime.Object.
func (v *VariantAutoscaling) DeepCopyObject() runtime.Object {
	out := v.copied()
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *VariantAutoscalingList) DeepCopyObject() runtime.Object {
	return &VariantAutoscalingList{l.TypeMeta, *l.ListMeta.DeepCopy(), each(l.Items, (*VariantAutoscaling).copied)}
}
