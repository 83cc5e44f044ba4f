package kube

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// DeletionCosts returns the annotation controller.kubernetes.io/pod-deletion-cost of the pods of the endpoints that have it, by name.
func (w *Watch) DeletionCosts() map[string]string {
	pods := w.podSet.Load()
	if pods == nil {
		return nil
	}
	return pods.deletionCosts()
}

// SetDeletionCost annotates a pod with it; "" removes the annotation. The picker needs the right to patch pods.
func (w *Watch) SetDeletionCost(ctx context.Context, pod, cost string) error {
	config := rest.CopyConfig(w.config)
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(podKind.scheme()).WithoutConversion()
	client, err := rest.RESTClientForConfigAndClient(config, w.client)
	if err != nil {
		return fmt.Errorf("making a client of pods: %w", err)
	}
	value := &cost
	if cost == "" {
		value = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{corev1.PodDeletionCost: value}}})
	if err != nil {
		return err
	}
	if err := client.Patch(types.MergePatchType).Namespace(w.options.Namespace).Resource(podKind.resource).Name(pod).Body(patch).Do(ctx).Error(); err != nil {
		return fmt.Errorf("annotating pod %s/%s: %w", w.options.Namespace, pod, err)
	}
	return nil
}

// deletionCosts returns the annotation of the pods that have it, by name.
func (r *podSet) deletionCosts() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]string{}
	for name, m := range r.pods {
		if cost, has := m.pod.Annotations[corev1.PodDeletionCost]; has {
			all[name] = cost
		}
	}
	return all
}
