package kubelet

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slot is the place of a container in its pod, in which it runs again and again.
type slot struct {
	facts
	spec    *corev1.Container
	run     *run    // that goes on
	crashes backoff // of its runs
	misses  backoff // of tries to find its image
	pause   pause
}

// pause is why a container that should run is not started yet.
type pause struct {
	until time.Time
	// begins is when its status says so; until then it says how the last try ended.
	begins time.Time
	state  corev1.ContainerStateWaiting
	event  string
}

func newPause(d time.Duration, now time.Time, state corev1.ContainerStateWaiting, event string) pause {
	return pause{until: now.Add(d), begins: now.Add(min(d/10, time.Second)), state: state, event: event}
}

func (w *worker) addSlot(c *corev1.Container, k kind) {
	first := w.node.options.Backoff
	w.slots = append(w.slots, &slot{spec: c, facts: facts{name: c.Name, image: c.Image, kind: k},
		crashes: backoff{first: first, immediate: true}, misses: backoff{first: first}})
}

// again reports whether a container that has ended is started again.
func (s *slot) again(policy corev1.RestartPolicy) bool {
	switch {
	case s.kind == sidecar:
		return true
	case s.kind == initial || policy == corev1.RestartPolicyOnFailure:
		return s.ended.ExitCode != 0 && policy != corev1.RestartPolicyNever
	}
	return policy == corev1.RestartPolicyAlways
}

// wanted reports whether a container should run and does not.
func (s *slot) wanted(policy corev1.RestartPolicy) bool {
	return s.running == nil && (!s.ran() || s.again(policy))
}

// due returns the containers that should run now and do not, in their order. Init containers go one after the other: one that
// has to end is waited for, and a sidecar until it was started once.
func due(slots []*slot, policy corev1.RestartPolicy) (list []*slot) {
	begun := false // an ordinary container has run
	for _, s := range slots {
		begun = begun || s.kind == ordinary && s.ran()
	}
	for _, s := range slots {
		if s.kind == initial && (begun || s.succeeded()) {
			continue
		}
		if s.wanted(policy) {
			list = append(list, s)
		}
		if !begun && (s.kind == initial || s.kind == sidecar && !s.passed) {
			return list
		}
	}
	return list
}

// complete reports whether a pod has come to its end by itself: no ordinary container runs or will run again, or an init
// container has failed for good.
func complete(slots []*slot, policy corev1.RestartPolicy) bool {
	done := true
	for _, s := range slots {
		final := s.running == nil && s.ran() && !s.again(policy)
		if s.kind == initial && final && s.ended.ExitCode != 0 {
			return true
		}
		done = done && (s.kind != ordinary || final)
	}
	return done
}

// restore takes over what an earlier kubelet of the node has said of the pod. What ran then has ended with the node.
func (w *worker) restore() {
	status := &w.pod.Status
	if status.StartTime == nil {
		return
	}
	w.began, w.conditions = *status.StartTime, status.Conditions
	for _, said := range slices.Concat(status.InitContainerStatuses, status.ContainerStatuses) {
		for _, s := range w.slots {
			if s.name == said.Name {
				s.restore(&said, w.pod.Spec.RestartPolicy)
			}
		}
	}
	w.over = status.Phase == corev1.PodSucceeded || status.Phase == corev1.PodFailed
	w.restored = w.over
}

func (s *slot) restore(said *corev1.ContainerStatus, policy corev1.RestartPolicy) {
	s.restarts, s.id, s.ended = said.RestartCount, said.ContainerID, said.LastTerminationState.Terminated
	if said.State.Terminated != nil {
		s.ended = said.State.Terminated
	}
	if r := said.State.Running; r != nil {
		s.ended = &corev1.ContainerStateTerminated{ExitCode: 255, Reason: "Unknown", StartedAt: r.StartedAt,
			FinishedAt: metav1.Now().Rfc3339Copy(), ContainerID: said.ContainerID}
	}
	s.lost = s.ended != nil && policy != corev1.RestartPolicyNever
}

// backOff puts off the next start of a container that has ended.
func (s *slot) backOff(pod *corev1.Pod, ran time.Duration, now time.Time) {
	d := s.crashes.fail(ran)
	name := fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
	s.pause = newPause(d, now, corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
		Message: fmt.Sprintf("back-off %v restarting failed container=%s pod=%s", d, s.name, name)},
		fmt.Sprintf("Back-off restarting failed container %s in pod %s", s.name, name))
}
