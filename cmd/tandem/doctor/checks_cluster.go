package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func checkPods(ctx context.Context, f *fleet) finding {
	if f.cluster == nil {
		return finding{}
	}
	found := each(ctx, podsOf(f.cluster.engines), f.how.Timeout, func(_ context.Context, p podRef) finding {
		if err := notReady(p.Pod); err != nil {
			return finding{verdict: fail, seen: err.Error()}
		}
		return finding{verdict: ok}
	})
	if found.verdict == ok {
		found.seen = fmt.Sprintf("%d, and all are ready", len(f.cluster.engines))
	}
	return found
}

// podRef is a pod by its name.
type podRef struct{ *corev1.Pod }

func (p podRef) String() string { return p.Name }

func podsOf(pods []*corev1.Pod) (refs []podRef) {
	for _, p := range pods {
		refs = append(refs, podRef{p})
	}
	return refs
}

func notReady(pod *corev1.Pod) error {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return nil
		}
		if c.Type == corev1.PodReady && c.Message != "" {
			return errors.New("not ready: " + c.Message)
		}
	}
	return fmt.Errorf("not ready (%s)", pod.Status.Phase)
}

func checkSelector(_ context.Context, f *fleet) finding {
	c := f.cluster
	switch {
	case c == nil:
		return finding{}
	case c.selector == nil && c.unseen != nil:
		return finding{verdict: unknown, seen: c.unseen.Error(), do: "allow this user to list inferencepools"}
	case c.selector == nil:
		return finding{verdict: unknown, seen: "there is no InferencePool, and no picker has a flag with a selector"}
	}
	var missing, foreign []string
	for _, pod := range c.engines {
		if !c.selector.Matches(labels.Set(pod.Labels)) {
			missing = append(missing, pod.Name)
		}
	}
	for i := range c.pods {
		pod := &c.pods[i]
		if pod.DeletionTimestamp == nil && c.selector.Matches(labels.Set(pod.Labels)) && !slices.Contains(c.engines, pod) {
			foreign = append(foreign, pod.Name)
		}
	}
	switch {
	case len(missing) > 0:
		return finding{verdict: fail, seen: c.from + " does not select " + few(missing)}
	case len(foreign) > 0:
		return finding{verdict: fail, seen: c.from + " also selects " + few(foreign)}
	}
	return finding{verdict: ok, seen: fmt.Sprintf("%s selects all %d engines", c.from, len(c.engines))}
}

func checkService(_ context.Context, f *fleet) finding {
	c := f.cluster
	if c == nil || c.pool == nil || c.pool.Spec.Picker == nil {
		return finding{}
	}
	if c.trouble != nil {
		return finding{verdict: unknown, seen: c.trouble.Error()}
	}
	ref := c.pool.Spec.Picker
	at := slices.IndexFunc(c.services, func(s corev1.Service) bool { return s.Name == ref.Name })
	if at < 0 {
		return finding{verdict: fail, seen: fmt.Sprintf("%s names the Service %s, which does not exist", c.from, ref.Name)}
	}
	service := &c.services[at]
	if ref.Port != nil && !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == int32(ref.Port.Number) }) {
		return finding{verdict: fail, seen: fmt.Sprintf("%s names port %d of the Service %s, which has no such port", c.from, ref.Port.Number, ref.Name)}
	}
	selector := labels.SelectorFromSet(service.Spec.Selector)
	if len(service.Spec.Selector) == 0 || !slices.ContainsFunc(c.pods, func(p corev1.Pod) bool { return selector.Matches(labels.Set(p.Labels)) && notReady(&p) == nil }) {
		return finding{verdict: fail, seen: fmt.Sprintf("no ready pod is behind the Service %s", ref.Name), do: "run kubectl describe pod on the picker's pods to see why they are not ready"}
	}
	return finding{verdict: ok, seen: ref.Name}
}
