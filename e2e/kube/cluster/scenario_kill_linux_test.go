package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// victim is a container that is killed, and what its death may do to requests.
type victim struct {
	component, container string
	excused              excuse
	strands              int // hand-offs that it may have in its hands, of the load's clients
}

// victims are all containers of a release. A prefill engine takes its hand-offs with it, so none of them is stranded.
var victims = []victim{
	{"prefill", "engine", 0, 0},
	{"decode", "engine", eventsExcused, clients},
	{"decode", "sidecar", eventsExcused | cutsExcused, clients},
	{"epp", "epp", 0, 0},
	{"proxy", "envoy", breaksExcused, 0},
}

// scenarioKill: one process after the other is killed under load, and comes back; then whole pods are taken away.
var scenarioKill = scenario{name: "kill", release: true, ci: true, local: "kills processes by their number",
	run: func(t *testing.T, r *run) {
		for i, v := range victims {
			r.killOne(t, v, i%2)
		}
		for _, v := range []victim{{"prefill", "", 0, 0}, {"decode", "", eventsExcused | cutsExcused, clients}} {
			r.deleteOne(t, v)
		}
	}}

// killOne kills a container of one of the component's pods, and waits until the node has started it again.
func (r *run) killOne(t *testing.T, v victim, which int) {
	t.Helper()
	l := r.press(t, r.llm, v.excused)
	l.await(t, 16)
	r.strands += v.strands
	r.llm.awaitSettled(t, v.component, time.Minute)
	pods := r.llm.readyPods(r.ctx, t, v.component)
	if len(pods) != 2 {
		t.Fatalf("pods of %s: %s", v.component, podNames(pods))
	}
	pod := pods[which]
	before := restarts(pod, v.container)
	began := time.Now()
	r.kill(t, pod, v.container)
	r.await(t, fmt.Sprintf("%s of %s runs again", v.container, pod.Name), time.Minute, func(ctx context.Context) (string, bool) {
		now, err := r.admin.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err.Error(), false
		}
		s := statusOf(*now, v.container)
		return fmt.Sprintf("%+v", s), isReady(*now) && int(s.RestartCount) == before+1 && killed(s.LastTerminationState)
	})
	back := time.Since(began)
	r.llm.awaitSettled(t, v.component, time.Minute)
	l.await(t, 24)
	n := l.end(t)
	r.saw("kill -9 of %s/%s: exit code 137 and one restart shown, ready after %.1f s; %d right, %d ended by event, %d cut, %d refused", v.component,
		v.container, back.Seconds(), n.right, n.events, n.cut, n.refused)
}

// killed reports whether a container's last end was by SIGKILL, as Kubernetes shows that.
func killed(s corev1.ContainerState) bool { return s.Terminated != nil && s.Terminated.ExitCode == 137 }

func statusOf(p corev1.Pod, container string) corev1.ContainerStatus {
	for _, all := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, s := range all {
			if s.Name == container {
				return s
			}
		}
	}
	return corev1.ContainerStatus{}
}

// deleteOne takes a pod away without asking it.
func (r *run) deleteOne(t *testing.T, v victim) {
	t.Helper()
	l := r.press(t, r.llm, v.excused)
	l.await(t, 16)
	r.strands += v.strands
	pod := r.llm.readyPods(r.ctx, t, v.component)[0]
	r.mustKubectl(t, "delete", "pod", pod.Name, "-n", pod.Namespace, "--grace-period=0", "--force")
	r.llm.awaitSettled(t, v.component, time.Minute)
	if contains(r.llm.pods(r.ctx, t, v.component), pod) {
		t.Errorf("%s is still there", pod.Name)
	}
	l.await(t, 24)
	n := l.end(t)
	r.saw("deletion of a pod of %s with --grace-period=0 --force: replaced; %d right, %d ended by event, %d cut, %d refused", v.component, n.right,
		n.events, n.cut, n.refused)
}
