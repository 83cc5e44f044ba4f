package kubelet

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serving is a container that is runProgram.
const serving = `name: a, env: [{name: ` + programVariable + `, value: "8080"}], ports: [{name: web, containerPort: 8080}]`

// set has the program of a pod answer otherwise, once it listens.
func (b *bench) set(t *testing.T, pod, path string) {
	t.Helper()
	s, err := b.node.Sandbox("default", pod)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	until(t, func(context.Context) error {
		answer, err := client.Get("http://" + s.IP().String() + ":8080/set/" + path)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	})
}

func httpReadiness(t *testing.T, b *bench) {
	b.create(t, "http", `{terminationGracePeriodSeconds: 1, containers: [{`+serving+`,
		readinessProbe: {httpGet: {path: /check/x, port: web}, periodSeconds: 1, failureThreshold: 2}}]}`)
	b.shows(t, "http", corev1.PodRunning, allReady)
	b.set(t, "http", "x/503")
	b.shows(t, "http", corev1.PodRunning, notReady)
	b.happened(t, "http", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503")
	b.set(t, "http", "x/200")
	pod := b.shows(t, "http", corev1.PodRunning, allReady)
	if n := statusOf(pod, "a").RestartCount; n != 0 {
		t.Errorf("%d restarts for want of readiness", n)
	}
}

func otherReadiness(t *testing.T, b *bench) {
	for name, probe := range map[string]string{
		"tcp":  `tcpSocket: {port: web}`,
		"grpc": `grpc: {port: 8081}`,
		"exec": `exec: {command: ["true"]}, timeoutSeconds: 10`,
	} {
		b.create(t, name, `{terminationGracePeriodSeconds: 1, containers: [{`+serving+`, readinessProbe: {`+probe+`, periodSeconds: 1}}]}`)
	}
	for name, probe := range map[string]string{
		"no-tcp":  `tcpSocket: {port: 9}`,
		"no-grpc": `grpc: {port: 8080}`,
		"no-exec": `exec: {command: [sh, -c, echo bad; exit 3]}, timeoutSeconds: 10`,
		"slow":    `exec: {command: [sleep, "60"]}`,
	} {
		b.create(t, name, `{terminationGracePeriodSeconds: 1, containers: [{`+serving+`, readinessProbe: {`+probe+`, periodSeconds: 1}}]}`)
	}
	for name, message := range map[string]string{"no-tcp": "connection refused", "no-grpc": "", "no-exec": "bad", "slow": "timed out"} {
		b.happened(t, name, "Unhealthy", message)
		b.shows(t, name, corev1.PodRunning, notReady)
	}
	for _, name := range []string{"tcp", "grpc", "exec"} {
		b.shows(t, name, corev1.PodRunning, allReady)
	}
	b.set(t, "grpc", "grpc/503")
	b.shows(t, "grpc", corev1.PodRunning, notReady)
	b.happened(t, "grpc", "Unhealthy", `responded with "NOT_SERVING"`)
}

func livenessRestarts(t *testing.T, b *bench) {
	b.create(t, "live", `{terminationGracePeriodSeconds: 60, containers: [{`+serving+`,
		livenessProbe: {httpGet: {path: /check/x, port: 8080}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 2}}]}`)
	b.shows(t, "live", corev1.PodRunning, allReady)
	b.set(t, "live", "x/500")
	b.await(t, "live", func(p *corev1.Pod) error {
		s := statusOf(p, "a")
		return errors.Join(want("restarts", s.RestartCount, int32(1)), want("last state", stateOf(s.LastTerminationState), "terminated Completed 0"))
	})
	b.happened(t, "live", "Unhealthy", "Liveness probe failed")
	b.happened(t, "live", "Killing", "Container a failed liveness probe, will be restarted")
	b.shows(t, "live", corev1.PodRunning, allReady)
}

func startupGates(t *testing.T, b *bench) {
	b.create(t, "startup", `{terminationGracePeriodSeconds: 1, volumes: [{name: v, emptyDir: {}}], containers: [{`+serving+`,
		volumeMounts: [{name: v, mountPath: /v}],
		startupProbe: {exec: {command: [test, -e, /v/go]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 60},
		livenessProbe: {exec: {command: [test, -e, /v/go]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 1},
		readinessProbe: {httpGet: {path: /check/x, port: 8080}, periodSeconds: 1}}]}`)
	b.happened(t, "startup", "Unhealthy", "Startup probe failed")
	pod := b.shows(t, "startup", corev1.PodRunning, notReady, "a=running")
	if s := statusOf(pod, "a"); *s.Started || s.RestartCount != 0 {
		t.Errorf("before its startup probe has succeeded: %+v", s)
	}
	b.exec(t, "startup", "a", "touch", "/v/go")
	b.shows(t, "startup", corev1.PodRunning, allReady)

	b.create(t, "no-startup", `{terminationGracePeriodSeconds: 1, containers: [{`+serving+`,
		startupProbe: {exec: {command: ["false"]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 2}}]}`)
	b.happened(t, "no-startup", "Killing", "Container a failed startup probe, will be restarted")
	b.restarted(t, "no-startup", "a")
}

func postStart(t *testing.T, b *bench) {
	b.create(t, "hooked", `{terminationGracePeriodSeconds: 1, volumes: [{name: v, emptyDir: {}}], containers: [{`+serving+`,
		volumeMounts: [{name: v, mountPath: /v}],
		lifecycle: {postStart: {exec: {command: [sh, -c, 'until test -e /v/go; do sleep 0.1; done']}}}}]}`)
	b.shows(t, "hooked", corev1.PodRunning, notReady, "a=running")
	b.exec(t, "hooked", "a", "touch", "/v/go")
	b.shows(t, "hooked", corev1.PodRunning, allReady)

	b.create(t, "unhooked", `{terminationGracePeriodSeconds: 1, containers: [{`+serving+`,
		lifecycle: {postStart: {exec: {command: ["false"]}}}}]}`)
	b.happened(t, "unhooked", "FailedPostStartHook", "command ended with 1")
	b.restarted(t, "unhooked", "a")
}

// trap returns a shell command that writes a word when it is told to end, and ends a moment later.
func trap(word string) string {
	return `[sh, -c, 'trap "sleep 0.3; echo ` + word + ` >> /v/log; exit 0" TERM; touch /v/` + word + `; while :; do sleep 0.05; done']`
}

func deletionOrder(t *testing.T, b *bench) {
	pod := b.create(t, "end", `
terminationGracePeriodSeconds: 300
volumes: [{name: v, emptyDir: {}}]
initContainers:
- {name: s1, restartPolicy: Always, command: `+trap("s1")+`, volumeMounts: [{name: v, mountPath: /v}]}
- {name: s2, restartPolicy: Always, command: `+trap("s2")+`, volumeMounts: [{name: v, mountPath: /v}]}
containers:
- name: main
  command: `+trap("main")+`
  volumeMounts: [{name: v, mountPath: /v}]
  lifecycle: {preStop: {exec: {command: [sh, -c, 'echo hook >> /v/log; until test -e /v/go; do sleep 0.05; done']}}}
  readinessProbe: {exec: {command: [test, '!', -e, /v/unready]}, periodSeconds: 1, timeoutSeconds: 10}`)
	b.shows(t, "end", corev1.PodRunning, allReady)
	dir := filepath.Join(b.node.options.Dir, "pods", string(pod.UID), "volumes", "v")
	exists := func(names ...string) {
		t.Helper()
		for _, name := range names {
			b.await(t, "end", func(*corev1.Pod) error {
				_, err := os.Stat(filepath.Join(dir, name))
				return err
			})
		}
	}
	exists("s1", "s2", "main") // so they have set their traps
	b.delete(t, "end")
	exists("log")
	f, err := os.Open(filepath.Join(dir, "log")) // which can be read when it is gone
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	// While the hook runs, the pod serves and says so, and readiness still counts.
	leaving := b.shows(t, "end", corev1.PodRunning, allReady, "s1=running", "s2=running", "main=running")
	if leaving.DeletionTimestamp == nil {
		t.Error("the pod has no deletionTimestamp")
	}
	b.exec(t, "end", "main", "touch", "/v/unready")
	b.shows(t, "end", corev1.PodRunning, notReady)
	b.touch(t, pod, "v", "go")
	b.vanished(t, "end")
	text := make([]byte, 100)
	n, err := f.Read(text)
	if got := strings.Fields(string(text[:n])); strings.Join(got, " ") != "hook main s2 s1" {
		t.Errorf("they ended in the order %v (%v)", got, err)
	}
}

func deafDeletion(t *testing.T, b *bench) {
	const grace = 4 * time.Second
	b.create(t, "deaf", `{terminationGracePeriodSeconds: 4, volumes: [{name: v, emptyDir: {}}],
		initContainers: [{name: side, restartPolicy: Always, command: [sleep, "1000"]}],
		containers: [{name: a, command: [sleep, "1000"], lifecycle: {preStop: {sleep: {seconds: 1}}}}]}`)
	b.shows(t, "deaf", corev1.PodRunning, allReady)
	began := time.Now()
	b.delete(t, "deaf")
	b.vanished(t, "deaf")
	if took := time.Since(began); took < grace {
		t.Errorf("it took %v only, and had %v", took, grace)
	}
}

func shorterGrace(t *testing.T, b *bench) {
	b.create(t, "hurry", `{terminationGracePeriodSeconds: 300, containers: [{name: a, command: [sleep, "1000"],
		lifecycle: {preStop: {sleep: {seconds: 200}}}}]}`)
	b.shows(t, "hurry", corev1.PodRunning, allReady)
	b.delete(t, "hurry")
	b.happened(t, "hurry", "Killing", "")
	one := int64(1)
	if err := b.client.CoreV1().Pods("default").Delete(t.Context(), "hurry", metav1.DeleteOptions{GracePeriodSeconds: &one}); err != nil {
		t.Fatal(err)
	}
	b.vanished(t, "hurry")
}

func forced(t *testing.T, b *bench) {
	b.create(t, "forced", `{terminationGracePeriodSeconds: 300, containers: [{name: a, command: [sleep, "1000"]}]}`)
	b.shows(t, "forced", corev1.PodRunning, allReady)
	c, err := b.node.Container("default", "forced", "a")
	if err != nil {
		t.Fatal(err)
	}
	none := int64(0)
	if err := b.client.CoreV1().Pods("default").Delete(t.Context(), "forced", metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(patience):
		t.Error("its container runs on")
	}
}
