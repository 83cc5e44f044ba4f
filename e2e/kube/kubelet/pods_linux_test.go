package kubelet

import (
	"errors"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Conditions of pods, in the words of conditionsOf.
const (
	allReady = "PodScheduled PodReadyToStartContainers Initialized ContainersReady Ready"
	notReady = "PodScheduled PodReadyToStartContainers Initialized !ContainersReady:ContainersNotReady !Ready:ContainersNotReady"
	starting = "PodScheduled PodReadyToStartContainers !Initialized:ContainersNotInitialized" +
		" !ContainersReady:ContainersNotReady !Ready:ContainersNotReady"
	succeeded = "PodScheduled !PodReadyToStartContainers Initialized:PodCompleted !ContainersReady:PodCompleted !Ready:PodCompleted"
	failed    = "PodScheduled !PodReadyToStartContainers Initialized !ContainersReady:PodFailed !Ready:PodFailed"
)

// TestPods runs pods as the API documents them, on one node of one cluster, side by side.
func TestPods(t *testing.T) {
	b := newBench(t)
	t.Run("all", func(t *testing.T) {
		for _, c := range []struct {
			name string
			test func(t *testing.T, b *bench)
		}{
			{"one container", oneContainer},
			{"init containers and sidecars in order", initOrder},
			{"a sidecar's readiness is the pod's", sidecarReadiness},
			{"a failing init container of a pod that never restarts", initFailsNever},
			{"a failing init container of another pod", initFailsAlways},
			{"crashes and pauses", crashes},
			{"an unknown image", unknownImage},
			{"a program that is not there", noProgram},
			{"an object that comes late", lateObject},
			{"root where it must not be", rootRefused},
			{"the host's network", hostNetwork},
			{"a pod that succeeds, and its sidecar", runToSuccess},
			{"a pod that fails", runToFailure},
			{"a deadline", deadline},
			{"readiness by HTTP", httpReadiness},
			{"readiness by TCP, gRPC and command", otherReadiness},
			{"liveness", livenessRestarts},
			{"startup", startupGates},
			{"hooks after the start", postStart},
			{"deletion in order", deletionOrder},
			{"deletion of what does not listen", deafDeletion},
			{"a shorter grace", shorterGrace},
			{"force", forced},
			{"variables", environmentOfPod},
			{"files", filesOfPod},
			{"a changed ConfigMap", changedConfigMap},
			{"a token", tokenOfPod},
			{"users and groups", usersOfPod},
			{"names and addresses", namesOfPod},
			{"logs", logsOfPod},
			{"readiness gates", gatedPod},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.test(t, b)
			})
		}
	})
}

func oneContainer(t *testing.T, b *bench) {
	b.create(t, "one", `{terminationGracePeriodSeconds: 1, containers: [{name: a, command: [sleep, "1000"]}]}`)
	pod := b.shows(t, "one", corev1.PodRunning, allReady, "a=running")
	s := statusOf(pod, "a")
	if !s.Ready || s.Started == nil || !*s.Started || s.RestartCount != 0 || s.ContainerID == "" || s.ImageID == "" || s.Image != imageName {
		t.Errorf("status of the container: %+v", s)
	}
	if p := pod.Status; p.HostIP != "10.244.0.11" || p.PodIP == "" || len(p.PodIPs) != 1 || p.StartTime == nil || p.ObservedGeneration != pod.Generation {
		t.Errorf("status of the pod: %+v", p)
	}
	for _, reason := range []string{"Scheduled", "Pulled", "Created", "Started"} {
		b.happened(t, "one", reason, "")
	}
	if e := b.happened(t, "one", "Started", "a"); e.Source.Component != "kubelet" || e.InvolvedObject.FieldPath != "spec.containers{a}" {
		t.Errorf("the event comes from %+v and is about %+v", e.Source, e.InvolvedObject)
	}
	b.delete(t, "one")
	b.happened(t, "one", "Killing", "Stopping container a")
	b.vanished(t, "one")
}

func initOrder(t *testing.T, b *bench) {
	b.create(t, "order", `
terminationGracePeriodSeconds: 1
volumes: [{name: shared, emptyDir: {}}]
initContainers:
- {name: first, command: [sh, -c, 'echo first >> /shared/order'], volumeMounts: [{name: shared, mountPath: /shared}]}
- name: side
  restartPolicy: Always
  command: [sh, -c, 'echo side >> /shared/order; sleep 1000']
  startupProbe: {exec: {command: [test, -e, /shared/go]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 100}
  volumeMounts: [{name: shared, mountPath: /shared}]
- {name: last, command: [sh, -c, 'echo last >> /shared/order'], volumeMounts: [{name: shared, mountPath: /shared}]}
containers:
- {name: main, command: [sh, -c, 'cat /shared/order; sleep 1000'], volumeMounts: [{name: shared, mountPath: /shared}]}`)
	pod := b.shows(t, "order", corev1.PodPending, starting,
		"first=terminated Completed 0", "side=running", "last=waiting PodInitializing", "main=waiting PodInitializing")
	if s := statusOf(pod, "first"); !s.Ready || *s.Started {
		t.Errorf("an init container that is done: %+v", s)
	}
	if s := statusOf(pod, "side"); s.Ready || *s.Started {
		t.Errorf("a sidecar whose startup probe has not succeeded: %+v", s)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodInitialized && c.Message != "containers with incomplete status: [side last]" {
			t.Errorf("what is waited for: %s", c.Message)
		}
	}
	b.exec(t, "order", "side", "touch", "/shared/go")
	b.shows(t, "order", corev1.PodRunning, allReady, "first=terminated Completed 0", "side=running", "last=terminated Completed 0", "main=running")
	b.prints(t, "first\nside\nlast\n", "order", "-c", "main")
}

func sidecarReadiness(t *testing.T, b *bench) {
	b.create(t, "ready", `
terminationGracePeriodSeconds: 1
volumes: [{name: shared, emptyDir: {}}]
initContainers:
- name: side
  restartPolicy: Always
  command: [sleep, "1000"]
  readinessProbe: {exec: {command: [test, -e, /shared/go]}, periodSeconds: 1, timeoutSeconds: 10}
  volumeMounts: [{name: shared, mountPath: /shared}]
containers: [{name: main, command: [sleep, "1000"]}]`)
	b.shows(t, "ready", corev1.PodRunning, notReady, "side=running", "main=running")
	b.exec(t, "ready", "side", "touch", "/shared/go")
	b.shows(t, "ready", corev1.PodRunning, allReady)
	b.kill(t, "ready", "side")
	pod := b.await(t, "ready", func(p *corev1.Pod) error { return want("restarts", statusOf(p, "side").RestartCount, int32(1)) })
	if s := statusOf(pod, "main"); s.RestartCount != 0 {
		t.Errorf("the end of the sidecar was the main container's too: %+v", s)
	}
	b.shows(t, "ready", corev1.PodRunning, allReady)
}

func initFailsNever(t *testing.T, b *bench) {
	b.create(t, "init-never", `
restartPolicy: Never
initContainers: [{name: setup, command: [sh, -c, exit 3]}]
containers: [{name: main, command: [sleep, "1000"]}]`)
	b.shows(t, "init-never", corev1.PodFailed, "PodScheduled !PodReadyToStartContainers !Initialized:ContainersNotInitialized"+
		" !ContainersReady:PodFailed !Ready:PodFailed", "setup=terminated Error 3", "main=waiting PodInitializing")
}

func initFailsAlways(t *testing.T, b *bench) {
	b.create(t, "init-always", `
initContainers: [{name: setup, command: [sh, -c, exit 3]}]
containers: [{name: main, command: [sleep, "1000"]}]`)
	pod := b.shows(t, "init-always", corev1.PodPending, starting, "setup=waiting CrashLoopBackOff", "main=waiting PodInitializing")
	if got := stateOf(statusOf(pod, "setup").LastTerminationState); got != "terminated Error 3" {
		t.Errorf("its last state is %s", got)
	}
}

func crashes(t *testing.T, b *bench) {
	b.create(t, "crash", `{terminationGracePeriodSeconds: 1, containers: [{name: a, command: [sleep, "1000"]}]}`)
	first := b.shows(t, "crash", corev1.PodRunning, allReady, "a=running")
	b.kill(t, "crash", "a")
	second := b.await(t, "crash", func(p *corev1.Pod) error {
		s := statusOf(p, "a")
		return errors.Join(want("restarts", s.RestartCount, int32(1)), want("state", stateOf(s.State), "running"), want("ready", s.Ready, true),
			want("last state", stateOf(s.LastTerminationState), "terminated Error 137"))
	})
	if a, b := statusOf(first, "a").ContainerID, statusOf(second, "a"); b.ContainerID == a || b.LastTerminationState.Terminated.ContainerID != a {
		t.Errorf("the first was %s, then %+v", a, b)
	}
	b.kill(t, "crash", "a")
	pod := b.shows(t, "crash", corev1.PodRunning, notReady, "a=waiting CrashLoopBackOff")
	if s := statusOf(pod, "a"); s.RestartCount != 1 || stateOf(s.LastTerminationState) != "terminated Error 137" || *s.Started {
		t.Errorf("status in the pause: %+v", s)
	}
	b.happened(t, "crash", "BackOff", "Back-off restarting failed container a in pod crash_default")
	b.await(t, "crash", func(p *corev1.Pod) error {
		return errors.Join(want("restarts", statusOf(p, "a").RestartCount, int32(2)), want("conditions", conditionsOf(p), allReady))
	})
}

func unknownImage(t *testing.T, b *bench) {
	b.create(t, "image", `containers: [{name: a, image: "example.com/nothing:v1"}, {name: b, command: [sleep, "1000"]}]`)
	b.happened(t, "image", "Failed", "Error: ErrImagePull")
	b.shows(t, "image", corev1.PodPending, notReady, "a=waiting ImagePullBackOff", "b=running")
	b.happened(t, "image", "BackOff", `Back-off pulling image "example.com/nothing:v1"`)
}

func noProgram(t *testing.T, b *bench) {
	b.create(t, "program", `containers: [{name: a, command: [/no/such/program]}]`)
	pod := b.shows(t, "program", corev1.PodRunning, notReady, "a=waiting CrashLoopBackOff")
	if got := stateOf(statusOf(pod, "a").LastTerminationState); got != "terminated StartError 128" {
		t.Errorf("its last state is %s", got)
	}
	b.happened(t, "program", "Failed", "no such file or directory")
}

func lateObject(t *testing.T, b *bench) {
	b.create(t, "late", `
terminationGracePeriodSeconds: 1
volumes: [{name: v, configMap: {name: late-files}}]
containers:
- name: a
  command: [sh, -c, 'cat /v/file; echo $WORD; sleep 1000']
  env: [{name: WORD, valueFrom: {secretKeyRef: {name: late-words, key: word}}}]
  volumeMounts: [{name: v, mountPath: /v}]`)
	b.happened(t, "late", "FailedMount", `"late-files" not found`)
	b.shows(t, "late", corev1.PodPending, "PodScheduled !PodReadyToStartContainers Initialized !ContainersReady:ContainersNotReady"+
		" !Ready:ContainersNotReady", "a=waiting ContainerCreating")
	b.configMap(t, "late-files", map[string]string{"file": "a file\n"})
	b.shows(t, "late", corev1.PodPending, notReady, "a=waiting CreateContainerConfigError")
	b.happened(t, "late", "Failed", `secret "late-words" not found`)
	b.secret(t, "late-words", map[string]string{"other": "x"})
	b.happened(t, "late", "Failed", "couldn't find key word in Secret default/late-words")
	b.secret(t, "late-words", map[string]string{"word": "a word"})
	b.shows(t, "late", corev1.PodRunning, allReady, "a=running")
	b.prints(t, "a file\na word\n", "late")
}

func rootRefused(t *testing.T, b *bench) {
	b.create(t, "root", `containers: [{name: a, image: "`+rootName+`", securityContext: {runAsNonRoot: true}}]`)
	b.shows(t, "root", corev1.PodPending, notReady, "a=waiting CreateContainerConfigError")
	b.happened(t, "root", "Failed", "runAsNonRoot")
}

func hostNetwork(t *testing.T, b *bench) {
	b.create(t, "host", `{hostNetwork: true, containers: [{name: a}]}`)
	b.await(t, "host", func(p *corev1.Pod) error {
		return want("state", stateOf(statusOf(p, "a").State), "waiting CreateContainerConfigError")
	})
	b.happened(t, "host", "Failed", "this test kubelet does not support it")
	b.delete(t, "host")
	b.vanished(t, "host")
}

func runToSuccess(t *testing.T, b *bench) {
	b.create(t, "job", `
restartPolicy: Never
volumes: [{name: v, emptyDir: {}}]
initContainers:
- name: side
  restartPolicy: Always
  command: [sh, -c, 'trap "exit 0" TERM; touch /v/ready; sleep 1000 & wait']
  startupProbe: {exec: {command: [test, -e, /v/ready]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 60}
  volumeMounts: [{name: v, mountPath: /v}]
containers: [{name: a, command: [sh, -c, 'echo done; echo -n last words > /dev/termination-log']}]`)
	pod := b.shows(t, "job", corev1.PodSucceeded, succeeded, "a=terminated Completed 0", "side=terminated Completed 0")
	if got := statusOf(pod, "a").State.Terminated.Message; got != "last words" {
		t.Errorf("its message is %q", got)
	}
	if got := b.logs(t, "job", "-c", "a"); got != "done\n" {
		t.Errorf("its log is %q", got)
	}
	b.delete(t, "job")
	b.vanished(t, "job")
}

func runToFailure(t *testing.T, b *bench) {
	b.create(t, "fails", `
restartPolicy: Never
containers:
- {name: a, command: [sh, -c, 'echo why; exit 4'], terminationMessagePolicy: FallbackToLogsOnError}
- {name: b, command: ["true"]}`)
	pod := b.shows(t, "fails", corev1.PodFailed, failed, "a=terminated Error 4", "b=terminated Completed 0")
	if got := statusOf(pod, "a").State.Terminated.Message; got != "why\n" {
		t.Errorf("its message is %q", got)
	}
	b.create(t, "retries", `{restartPolicy: OnFailure, containers: [{name: a, command: [sh, -c, 'exit 4']}, {name: b, command: ["true"]}]}`)
	b.shows(t, "retries", corev1.PodRunning, notReady, "a=waiting CrashLoopBackOff", "b=terminated Completed 0")
}

func deadline(t *testing.T, b *bench) {
	b.create(t, "deadline", `{restartPolicy: Never, terminationGracePeriodSeconds: 1, activeDeadlineSeconds: 6,
		containers: [{name: a, command: [sleep, "1000"]}]}`)
	pod := b.shows(t, "deadline", corev1.PodFailed, failed, "a=terminated Error 137")
	if pod.Status.Reason != "DeadlineExceeded" {
		t.Errorf("the reason is %q", pod.Status.Reason)
	}
}

func gatedPod(t *testing.T, b *bench) {
	b.create(t, "gated", `{terminationGracePeriodSeconds: 1, readinessGates: [{conditionType: example.com/open}],
		containers: [{name: a, command: [sleep, "1000"]}]}`)
	b.shows(t, "gated", corev1.PodRunning, "PodScheduled PodReadyToStartContainers Initialized ContainersReady !Ready:ReadinessGatesNotReady")
	pods := b.client.CoreV1().Pods("default")
	pod, err := pods.Get(t.Context(), "gated", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: "example.com/open", Status: corev1.ConditionTrue})
	if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.shows(t, "gated", corev1.PodRunning, allReady)
}

// kill ends a container as a crash does.
func (b *bench) kill(t *testing.T, pod, name string) {
	t.Helper()
	c, err := b.node.Container("default", pod, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// exec runs a command in a container and gives what it printed.
func (b *bench) exec(t *testing.T, pod, name string, argv ...string) string {
	t.Helper()
	c, err := b.node.Container("default", pod, name)
	if err != nil {
		t.Fatal(err)
	}
	out, code, err := c.Exec(t.Context(), argv)
	if err != nil || code != 0 {
		t.Fatalf("%q ends with %d: %v: %s", argv, code, err, out)
	}
	return string(out)
}
