package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The groups that pools and policies are in.
const (
	// PoolGroup is the group of InferencePool, version v1.
	PoolGroup = "inference.networking.k8s.io"
	// AlphaGroup was the group of all kinds, version v1alpha2. Its objects are still read.
	AlphaGroup = "inference.networking.x-k8s.io"
	// PolicyGroup is the group of InferenceObjective and InferenceModelRewrite, version v1alpha2.
	PolicyGroup = "llm-d.ai"
	// VariantGroup is the group of VariantAutoscaling, version v1alpha1.
	VariantGroup = "llmd.ai"
)

// InferencePool is the pool of model servers (inference.networking.k8s.io/v1).
type InferencePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              InferencePoolSpec   `json:"spec"`
	Status            InferencePoolStatus `json:"status,omitzero"`
}

// InferencePoolSpec is what a pool should be.
type InferencePoolSpec struct {
	Selector          LabelSelector      `json:"selector"`
	TargetPorts       []Port             `json:"targetPorts"`           // 1 to 8, each an endpoint of every pod
	AppProtocol       string             `json:"appProtocol,omitempty"` // what gateways speak to pods: http (also if empty) or kubernetes.io/h2c
	EndpointPickerRef *EndpointPickerRef `json:"endpointPickerRef,omitempty"`
}

// LabelSelector selects pods of the pool's namespace that have all the labels.
type LabelSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// Port is a port of a pod or a service.
type Port struct {
	Number int32 `json:"number"` // 1 to 65535
}

// EndpointPickerRef tells gateways which picker to ask.
type EndpointPickerRef struct {
	Group       string `json:"group,omitempty"`
	Kind        string `json:"kind,omitempty"` // Service if empty
	Name        string `json:"name"`
	Port        *Port  `json:"port,omitempty"`
	FailureMode string `json:"failureMode,omitempty"` // FailClose (also if empty) or FailOpen
}

// InferencePoolStatus is what gateways report about a pool.
type InferencePoolStatus struct {
	Parents []ParentStatus `json:"parents,omitempty"`
}

// ParentStatus is what one gateway reports about a pool.
type ParentStatus struct {
	ParentRef      ParentRef          `json:"parentRef"`
	ControllerName string             `json:"controllerName,omitempty"`
	Conditions     []metav1.Condition `json:"conditions,omitempty"`
}

// ParentRef names a gateway.
type ParentRef struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

// AlphaInferencePool is the pool before v1: kind InferencePool of inference.networking.x-k8s.io/v1alpha2.
type AlphaInferencePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              AlphaInferencePoolSpec   `json:"spec"`
	Status            AlphaInferencePoolStatus `json:"status,omitzero"`
}

// AlphaInferencePoolSpec is what a pool should be. It has either one target port or several.
type AlphaInferencePoolSpec struct {
	Selector         map[string]string  `json:"selector"`
	TargetPortNumber int32              `json:"targetPortNumber,omitempty"`
	TargetPorts      []Port             `json:"targetPorts,omitempty"`
	ExtensionRef     *AlphaExtensionRef `json:"extensionRef,omitempty"`
}

// AlphaExtensionRef tells gateways which picker to ask.
type AlphaExtensionRef struct {
	Group       string `json:"group,omitempty"`
	Kind        string `json:"kind,omitempty"`
	Name        string `json:"name"`
	PortNumber  *int32 `json:"portNumber,omitempty"`
	FailureMode string `json:"failureMode,omitempty"`
}

// AlphaInferencePoolStatus is what gateways report about a pool.
type AlphaInferencePoolStatus struct {
	Parents []ParentStatus `json:"parent,omitempty"`
}

// InferenceObjective is a named priority (llm-d.ai/v1alpha2, and the same in the older group).
type InferenceObjective struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              InferenceObjectiveSpec `json:"spec"`
	Status            PolicyStatus           `json:"status,omitzero"`
}

// InferenceObjectiveSpec is what an objective says.
type InferenceObjectiveSpec struct {
	PoolRef  PoolRef `json:"poolRef"`
	Priority *int32  `json:"priority,omitempty"` // nil = 0; negative: may be shed first
}

// PoolRef names a pool of the same namespace.
type PoolRef struct {
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind,omitempty"` // InferencePool if empty
	Name  string `json:"name"`
}

// PolicyStatus is what controllers report about an objective or a rewrite.
type PolicyStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// InferenceModelRewrite chooses the models that answer (llm-d.ai/v1alpha2, and the same in the older group).
type InferenceModelRewrite struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              InferenceModelRewriteSpec `json:"spec"`
	Status            PolicyStatus              `json:"status,omitzero"`
}

// InferenceModelRewriteSpec is what a rewrite says.
type InferenceModelRewriteSpec struct {
	PoolRef PoolRef            `json:"poolRef"`
	Rules   []ModelRewriteRule `json:"rules"`
}

// ModelRewriteRule redirects requests for some models to others.
type ModelRewriteRule struct {
	Matches []ModelRewriteMatch  `json:"matches,omitempty"` // any of them; none = every model
	Targets []ModelRewriteTarget `json:"targets,omitempty"`
}

// ModelRewriteMatch says which requests a rule applies to.
type ModelRewriteMatch struct {
	Model ModelMatch `json:"model"`
}

// ModelMatch compares the model of a request.
type ModelMatch struct {
	Type  string `json:"type,omitempty"` // Exact, also if empty
	Value string `json:"value"`
}

// ModelRewriteTarget is a model that answers instead, in proportion to its weight.
type ModelRewriteTarget struct {
	ModelRewrite string `json:"modelRewrite"`
	Weight       *int32 `json:"weight,omitempty"` // 1 to 1,000,000; nil on all targets of a rule: all alike
}

// InferencePoolList is a list as the API gives it.
type InferencePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InferencePool `json:"items"`
}

// AlphaInferencePoolList is a list as the API gives it.
type AlphaInferencePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AlphaInferencePool `json:"items"`
}

// InferenceObjectiveList is a list as the API gives it.
type InferenceObjectiveList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InferenceObjective `json:"items"`
}

// InferenceModelRewriteList is a list as the API gives it.
type InferenceModelRewriteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InferenceModelRewrite `json:"items"`
}

// VariantAutoscaling says of the pods of one object that they are a variant of a model, and what one costs (llmd.ai/v1alpha1, of llm-d's
// Workload Variant Autoscaler). What is not read is left out.
type VariantAutoscaling struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              VariantAutoscalingSpec `json:"spec"`
}

// VariantAutoscalingSpec is the part of it that is read.
type VariantAutoscalingSpec struct {
	ScaleTargetRef ScaleTargetRef `json:"scaleTargetRef"`
	VariantCost    string         `json:"variantCost,omitempty"` // of a pod for an hour, in any unit: a decimal number
}

// ScaleTargetRef is the object whose pods the variant has, in the same namespace.
type ScaleTargetRef struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// VariantAutoscalingList is a list of them.
type VariantAutoscalingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VariantAutoscaling `json:"items"`
}
