package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pods lists the pods of a component that have not ended, or those of all components.
func (rel *release) pods(ctx context.Context, t *testing.T, component string) []corev1.Pod {
	t.Helper()
	selector := "app.kubernetes.io/instance=" + rel.name
	if component != "" {
		selector += ",app.kubernetes.io/component=" + component
	} else {
		selector += ",app.kubernetes.io/component!=test"
	}
	list, err := rel.c.admin.CoreV1().Pods(rel.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		if ctx.Err() == nil {
			t.Errorf("listing the pods of %s: %v", rel.name, err)
		}
		return nil
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
}

// readyPods lists those that are ready and stay.
func (rel *release) readyPods(ctx context.Context, t *testing.T, component string) []corev1.Pod {
	t.Helper()
	return slices.DeleteFunc(rel.pods(ctx, t, component), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || !isReady(p) })
}

func isReady(p corev1.Pod) bool { return podCondition(p, corev1.PodReady) == corev1.ConditionTrue }

// podCondition returns the status of a condition, "" if the pod does not have it.
func podCondition(p corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}

// restarts returns how often a container of a pod was started again.
func restarts(p corev1.Pod, container string) int {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.Name == container {
			return int(s.RestartCount)
		}
	}
	return 0
}

func podNames(pods []corev1.Pod) string {
	var names []string
	for _, p := range pods {
		state := string(p.Status.Phase)
		if isReady(p) {
			state = "ready"
		}
		if p.DeletionTimestamp != nil {
			state += ", leaving"
		}
		names = append(names, fmt.Sprintf("%s (%s)", p.Name, state))
	}
	return strings.Join(names, ", ")
}

// endpoints returns the addresses behind a Service by what the EndpointSlices say of them: ready, or terminating (which may
// serve yet).
func (rel *release) endpoints(ctx context.Context, t *testing.T, service string) (ready, terminating []string) {
	t.Helper()
	slicesOf, err := rel.c.admin.DiscoveryV1().EndpointSlices(rel.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil {
		t.Errorf("listing the endpoints of %s: %v", service, err)
		return nil, nil
	}
	for _, s := range slicesOf.Items {
		for _, e := range s.Endpoints {
			switch {
			case e.Conditions.Ready != nil && *e.Conditions.Ready:
				ready = append(ready, e.Addresses...)
			case e.Conditions.Terminating != nil && *e.Conditions.Terminating:
				terminating = append(terminating, e.Addresses...)
			}
		}
	}
	return ready, terminating
}

// eventsOf counts the events about an object by their reason.
func (rel *release) eventsOf(ctx context.Context, t *testing.T, object string) map[string]int {
	t.Helper()
	list, err := rel.c.admin.CoreV1().Events(rel.namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + object})
	if err != nil {
		t.Errorf("listing the events of %s: %v", object, err)
		return nil
	}
	count := map[string]int{}
	for _, e := range list.Items {
		count[e.Reason] += max(1, int(e.Count))
	}
	return count
}

// mustHaveEvents waits until each of the reasons has been told of an object.
func (rel *release) mustHaveEvents(t *testing.T, object string, reasons ...string) {
	t.Helper()
	rel.c.await(t, fmt.Sprintf("events %v of %s", reasons, object), 10*time.Second, func(ctx context.Context) (string, bool) {
		seen := rel.eventsOf(ctx, t, object)
		all := !slices.ContainsFunc(reasons, func(reason string) bool { return seen[reason] == 0 })
		return strings.Join(slices.Sorted(maps.Keys(seen)), ", "), all
	})
}

// page reads a page of a pod through the API server, which reaches pods wherever this test runs.
func (c *cluster) page(ctx context.Context, namespace, pod string, port int, path string) (string, error) {
	text, err := c.admin.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").
		Name(fmt.Sprintf("%s:%d", pod, port)).SubResource("proxy").Suffix(path).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("reading %s of %s:%d: %w", path, pod, port, err)
	}
	return string(text), nil
}

// state describes a release for a message of a failure: pods, the last events, and what containers that are not well have
// said.
func (rel *release) state(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	text := rel.told(ctx, "get", "pods,deployments", "-o", "wide")
	events := strings.Split(strings.TrimSpace(rel.told(ctx, "get", "events", "--sort-by=.lastTimestamp")), "\n")
	text += "\n" + strings.Join(events[max(0, len(events)-25):], "\n")
	list, err := rel.c.admin.CoreV1().Pods(rel.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + rel.name})
	if err != nil {
		return text + "\n" + err.Error()
	}
	for _, p := range list.Items {
		for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if s.Ready || s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 {
				continue
			}
			text += fmt.Sprintf("\n%s/%s: %+v, before: %+v\n", p.Name, s.Name, s.State, s.LastTerminationState)
			text += rel.told(ctx, "logs", p.Name, "-c", s.Name, "--tail=10")
		}
	}
	return text
}

// told is what kubectl says of the release's namespace, or why it does not.
func (rel *release) told(ctx context.Context, args ...string) string {
	out, err := rel.c.kubectl(ctx, "", append(args, "-n", rel.namespace)...)
	if err != nil {
		out += err.Error()
	}
	return out
}
