package kubelet

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kind is what a container is in its pod.
type kind int

const (
	ordinary kind = iota
	initial       // an init container that has to end
	sidecar       // an init container that runs beside the ordinary ones
)

// facts is what is known of one container, as far as its status goes.
type facts struct {
	name, image string
	kind        kind
	id          string                        // of its last run; "" if it never ran
	waiting     *corev1.ContainerStateWaiting // why it does not run; nil: for a reason that lies in its pod
	running     *corev1.ContainerStateRunning
	ended       *corev1.ContainerStateTerminated // its last run that is over
	before      *corev1.ContainerStateTerminated // the one before that
	restarts    int32
	started     bool // it runs, its postStart hook is over and its startup probe has succeeded
	ready       bool // it is started, and its readiness probe succeeds
	passed      bool // it was started once
	lost        bool // its last run was before the node went down, in another sandbox
}

// succeeded reports whether it ended well and does not run again.
func (f *facts) succeeded() bool { return f.running == nil && f.ran() && f.ended.ExitCode == 0 }

func (f *facts) ran() bool { return f.running != nil || f.ended != nil && !f.lost }

// podFacts is what is known of a pod.
type podFacts struct {
	pod        *corev1.Pod
	hostIP     string
	podIP      string // "" until it has one
	began      metav1.Time
	sandbox    bool // its network is there
	over       bool // nothing of it runs, and nothing will
	reason     string
	message    string // why the pod failed as a whole; else ""
	containers []facts
}

// initialized reports whether ordinary containers may run. Once they did, what becomes of the init containers does not matter.
func (p *podFacts) initialized() bool {
	for i := range p.containers {
		if p.containers[i].kind == ordinary && p.containers[i].ran() {
			return true
		}
	}
	return len(p.uninitialized()) == 0
}

// uninitialized names the init containers that are waited for.
func (p *podFacts) uninitialized() (names []string) {
	for i := range p.containers {
		f := &p.containers[i]
		if f.kind == initial && !f.succeeded() || f.kind == sidecar && !f.passed {
			names = append(names, f.name)
		}
	}
	return names
}

// phase is Pending until each ordinary container has run, and becomes final only when nothing runs any more.
func (p *podFacts) phase() corev1.PodPhase {
	if !p.over {
		if !p.initialized() || slices.ContainsFunc(p.containers, func(f facts) bool { return f.kind == ordinary && !f.ran() }) {
			return corev1.PodPending
		}
		return corev1.PodRunning
	}
	if p.reason != "" || slices.ContainsFunc(p.containers, func(f facts) bool { return f.kind == ordinary && !f.succeeded() }) {
		return corev1.PodFailed
	}
	return corev1.PodSucceeded
}

// status is what a kubelet says of a pod. Of old it needs the conditions, for the times of their last change.
func (p *podFacts) status(old []corev1.PodCondition, now metav1.Time) corev1.PodStatus {
	s := corev1.PodStatus{ObservedGeneration: p.pod.Generation, Phase: p.phase(), Reason: p.reason, Message: p.message,
		HostIP: p.hostIP, HostIPs: []corev1.HostIP{{IP: p.hostIP}}, StartTime: &p.began}
	if p.podIP != "" {
		s.PodIP, s.PodIPs = p.podIP, []corev1.PodIP{{IP: p.podIP}}
	}
	pending := "ContainerCreating"
	if len(p.pod.Spec.InitContainers) > 0 {
		pending = "PodInitializing"
	}
	for i := range p.containers {
		f := &p.containers[i]
		if f.kind == ordinary {
			s.ContainerStatuses = append(s.ContainerStatuses, f.status(pending))
		} else {
			s.InitContainerStatuses = append(s.InitContainerStatuses, f.status(pending))
		}
	}
	s.Conditions = p.conditions(s.Phase)
	for i := range s.Conditions {
		c := &s.Conditions[i]
		c.ObservedGeneration, c.LastTransitionTime = p.pod.Generation, now
		for _, was := range old {
			if was.Type == c.Type && was.Status == c.Status {
				c.LastTransitionTime = was.LastTransitionTime
			}
		}
	}
	return s
}

func (f *facts) status(pending string) corev1.ContainerStatus {
	started := f.started
	s := corev1.ContainerStatus{Name: f.name, Image: f.image, ImageID: f.image, ContainerID: f.id, RestartCount: f.restarts,
		Started: &started, Ready: f.ready || f.kind == initial && f.succeeded()}
	switch {
	case f.running != nil:
		s.State.Running, s.LastTerminationState.Terminated = f.running, f.ended
	case f.waiting != nil:
		s.State.Waiting, s.LastTerminationState.Terminated = f.waiting, f.ended
	case f.ended == nil:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: pending}
	default:
		s.State.Terminated, s.LastTerminationState.Terminated = f.ended, f.before
	}
	if f.id == "" {
		s.ImageID = ""
	}
	return s
}

// conditions are those that a kubelet is in charge of.
func (p *podFacts) conditions(phase corev1.PodPhase) []corev1.PodCondition {
	ready := p.readiness(phase)
	gated := p.gates(ready)
	gated.Type = corev1.PodReady
	return []corev1.PodCondition{
		condition(corev1.PodReadyToStartContainers, p.sandbox),
		p.initialization(phase),
		gated,
		ready,
	}
}

func condition(t corev1.PodConditionType, is bool) corev1.PodCondition {
	if is {
		return corev1.PodCondition{Type: t, Status: corev1.ConditionTrue}
	}
	return corev1.PodCondition{Type: t, Status: corev1.ConditionFalse}
}

func (p *podFacts) initialization(phase corev1.PodPhase) corev1.PodCondition {
	c := condition(corev1.PodInitialized, p.initialized())
	switch {
	case phase == corev1.PodSucceeded:
		c.Reason = "PodCompleted"
	case c.Status == corev1.ConditionFalse:
		c.Reason, c.Message = "ContainersNotInitialized", fmt.Sprintf("containers with incomplete status: %v", p.uninitialized())
	}
	return c
}

// readiness returns the condition ContainersReady: of ordinary containers and sidecars.
func (p *podFacts) readiness(phase corev1.PodPhase) corev1.PodCondition {
	var unready []string
	for i := range p.containers {
		if f := &p.containers[i]; f.kind != initial && !f.ready {
			unready = append(unready, f.name)
		}
	}
	c := condition(corev1.ContainersReady, len(unready) == 0)
	switch {
	case phase == corev1.PodSucceeded:
		c.Status, c.Reason = corev1.ConditionFalse, "PodCompleted"
	case phase == corev1.PodFailed:
		c.Status, c.Reason = corev1.ConditionFalse, "PodFailed"
	case len(unready) > 0:
		c.Reason, c.Message = "ContainersNotReady", fmt.Sprintf("containers with unready status: %v", unready)
	}
	return c
}

// gates adds to the readiness of containers that of the pod's readiness gates, which others set as conditions.
func (p *podFacts) gates(ready corev1.PodCondition) corev1.PodCondition {
	var missing []string
	for _, gate := range p.pod.Spec.ReadinessGates {
		if !slices.ContainsFunc(p.pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == gate.ConditionType && c.Status == corev1.ConditionTrue
		}) {
			missing = append(missing, string(gate.ConditionType))
		}
	}
	if ready.Status == corev1.ConditionTrue && len(missing) > 0 {
		return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: "ReadinessGatesNotReady",
			Message: "readiness gates that are not true: " + strings.Join(missing, ", ")}
	}
	return ready
}

// ours are the conditions that a kubelet writes; all others in a status belong to others.
var ours = []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady,
	corev1.ContainersReady}

// merge puts what a kubelet says of a pod into a status that others have written into too.
func merge(status, said corev1.PodStatus) corev1.PodStatus {
	merged := *status.DeepCopy()
	merged.ObservedGeneration, merged.StartTime = said.ObservedGeneration, said.StartTime
	merged.Phase, merged.Reason, merged.Message = said.Phase, said.Reason, said.Message
	merged.HostIP, merged.HostIPs, merged.PodIP, merged.PodIPs = said.HostIP, said.HostIPs, said.PodIP, said.PodIPs
	merged.InitContainerStatuses, merged.ContainerStatuses = said.InitContainerStatuses, said.ContainerStatuses
	merged.Conditions = slices.DeleteFunc(merged.Conditions, func(c corev1.PodCondition) bool {
		return slices.Contains(ours, c.Type)
	})
	merged.Conditions = append(merged.Conditions, said.Conditions...)
	return merged
}
