package kubelet

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/tandem-serving/tandem/e2e/controlplane"
)

// configMap makes an object or replaces it.
func (b *bench) configMap(t *testing.T, name string, data map[string]string) {
	t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	maps := b.client.CoreV1().ConfigMaps("default")
	_, err := maps.Create(t.Context(), object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = maps.Update(t.Context(), object, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bench) secret(t *testing.T, name string, data map[string]string) {
	t.Helper()
	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: data}
	secrets := b.client.CoreV1().Secrets("default")
	_, err := secrets.Create(t.Context(), object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = secrets.Update(t.Context(), object, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func environmentOfPod(t *testing.T, b *bench) {
	b.configMap(t, "env", map[string]string{"A": "from map", "B": "b of map"})
	b.secret(t, "env", map[string]string{"S": "secret"})
	b.create(t, "env", `
terminationGracePeriodSeconds: 1
containers:
- name: a
  command: [sh, -c, 'env | sort; echo "$0 $1"; sleep 1000', $(A)]
  args: [$$(A)]
  resources: {requests: {cpu: 1500m}, limits: {memory: 64Mi}}
  envFrom: [{configMapRef: {name: env}}, {prefix: P_, secretRef: {name: env}}, {configMapRef: {name: none, optional: true}}]
  env:
  - {name: OVERRIDDEN, value: pod}
  - {name: B, value: b of pod}
  - {name: BOTH, value: "$(A), $(B), $(NONE), $$(A)"}
  - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
  - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
  - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
  - {name: CPU, valueFrom: {resourceFieldRef: {resource: requests.cpu}}}
  - {name: MEM, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
  - {name: KEY, valueFrom: {configMapKeyRef: {name: env, key: B}}}
  - {name: NO_KEY, valueFrom: {configMapKeyRef: {name: env, key: C, optional: true}}}
  - {name: SECRET, valueFrom: {secretKeyRef: {name: env, key: S}}}`)
	pod := b.shows(t, "env", corev1.PodRunning, allReady)
	var got []string
	until(t, func(context.Context) error {
		if got = strings.Split(b.logs(t, "env"), "\n"); !slices.Contains(got, "from map $(A)") {
			return fmt.Errorf("it has printed %q only", got)
		}
		return nil
	})
	for _, line := range []string{"A=from map", "B=b of pod", "P_S=secret", "FROM_IMAGE=image", "OVERRIDDEN=pod", "HOSTNAME=env",
		"BOTH=from map, b of pod, $(NONE), $(A)", "NAME=env", "LABEL=env", "IP=" + pod.Status.PodIP, "HOST=10.244.0.11", "NODE=node-1",
		"CPU=2", "MEM=64", "KEY=b of map", "SECRET=secret", "KUBERNETES_SERVICE_HOST=10.0.0.1", "KUBERNETES_SERVICE_PORT=443"} {
		if !slices.Contains(got, line) {
			t.Errorf("there is no %q", line)
		}
	}
	if t.Failed() {
		t.Log(strings.Join(got, "\n"))
	}
	if slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, "NO_KEY") }) {
		t.Error("an optional key that is missing has a variable")
	}
}

func filesOfPod(t *testing.T, b *bench) {
	b.configMap(t, "files", map[string]string{"a": "file a\n", "b": "file b\n"})
	b.secret(t, "files", map[string]string{"s": "secret\n"})
	b.create(t, "files", `
terminationGracePeriodSeconds: 1
volumes:
- {name: map, configMap: {name: files, items: [{key: a, path: dir/renamed, mode: 0444}]}}
- {name: secret, secret: {secretName: files, defaultMode: 0440}}
- {name: none, configMap: {name: none, optional: true}}
- {name: down, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
- name: all
  projected:
    sources:
    - configMap: {name: files, items: [{key: b, path: b}]}
    - secret: {name: files, items: [{key: s, path: in/s}]}
    - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
- {name: empty, emptyDir: {}}
- {name: memory, emptyDir: {medium: Memory}}
securityContext: {fsGroup: 2000}
initContainers:
- name: other
  securityContext: {runAsUser: 1234}
  command: [sh, -c, 'echo other > /empty/file']
  volumeMounts: [{name: empty, mountPath: /empty}]
containers:
- name: a
  workingDir: /work
  securityContext: {readOnlyRootFilesystem: true}
  command: [sh, -c, 'cd /; cat map/dir/renamed secret/s; ls none; cat down/labels; echo; cat all/b all/in/s all/name; echo; cat empty/file one sub/x; echo x > /memory/x && cat /memory/x; stat -Lc %a map/dir/renamed secret/s; (echo x > /map/x) 2>/dev/null || echo map is read-only; sleep 1000']
  volumeMounts:
  - {name: map, mountPath: /map}
  - {name: secret, mountPath: /secret, readOnly: true}
  - {name: none, mountPath: /none}
  - {name: down, mountPath: /down}
  - {name: all, mountPath: /all}
  - {name: empty, mountPath: /empty}
  - {name: memory, mountPath: /memory}
  - {name: all, mountPath: /one, subPath: b}
  - {name: all, mountPath: /sub/x, subPath: in/s}`)
	b.shows(t, "files", corev1.PodRunning, allReady)
	want := "file a\nsecret\napp=\"files\"\nfile b\nsecret\nfiles\nother\nfile b\nsecret\nx\n444\n440\nmap is read-only\n"
	b.prints(t, want, "files", "-c", "a")
}

func changedConfigMap(t *testing.T, b *bench) {
	b.configMap(t, "changing", map[string]string{"a": "1", "gone": "x"})
	b.create(t, "changing", `
terminationGracePeriodSeconds: 1
volumes: [{name: v, configMap: {name: changing}}, {name: d, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}]
containers: [{name: a, command: [sleep, "1000"], volumeMounts: [{name: v, mountPath: /v}, {name: d, mountPath: /d}]}]`)
	b.shows(t, "changing", corev1.PodRunning, allReady)
	shows := func(want string, argv ...string) {
		t.Helper()
		until(t, func(context.Context) error {
			if got := b.exec(t, "changing", "a", argv...); got != want {
				return fmt.Errorf("%q says %q, want %q", argv, got, want)
			}
			return nil
		})
	}
	shows("1", "cat", "/v/a")
	b.configMap(t, "changing", map[string]string{"a": "2", "new": "y"})
	shows("2", "cat", "/v/a")
	shows("a\nnew\n", "ls", "/v")
	if _, err := b.cluster.Kubectl(t.Context(), "", "label", "pod", "changing", "more=label"); err != nil {
		t.Fatal(err)
	}
	shows("app=\"changing\"\nmore=\"label\"", "cat", "/d/labels")
}

func tokenOfPod(t *testing.T, b *bench) {
	b.create(t, "token", `{terminationGracePeriodSeconds: 1, containers: [{name: a, command: [sleep, "1000"]}]}`)
	pod := b.shows(t, "token", corev1.PodRunning, allReady)
	const dir = "/var/run/secrets/kubernetes.io/serviceaccount/"
	if got := b.exec(t, "token", "a", "cat", dir+"namespace"); got != "default" {
		t.Errorf("its namespace is %q", got)
	}
	config := rest.AnonymousClientConfig(b.cluster.Config())
	config.BearerToken, config.CAData = b.exec(t, "token", "a", "cat", dir+"token"), []byte(b.exec(t, "token", "a", "cat", dir+"ca.crt"))
	config.CAFile = ""
	review, err := controlplane.Client(t, config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	user := review.Status.UserInfo
	if user.Username != "system:serviceaccount:default:default" || !slices.Equal(user.Extra["authentication.kubernetes.io/pod-uid"], []string{string(pod.UID)}) {
		t.Errorf("the API server takes it for %+v", user)
	}
}

func usersOfPod(t *testing.T, b *bench) {
	b.create(t, "users", `
terminationGracePeriodSeconds: 1
securityContext: {runAsUser: 2000, runAsGroup: 2001, supplementalGroups: [7], fsGroup: 8}
containers:
- {name: a, command: [sh, -c, 'id -u; id -G; sleep 1000']}
- {name: b, securityContext: {runAsUser: 3000, runAsGroup: 3001}, command: [sh, -c, 'id -u; id -G; sleep 1000']}`)
	b.shows(t, "users", corev1.PodRunning, allReady)
	for name, want := range map[string]string{"a": "2000\n2001 7 8\n", "b": "3000\n3001 7 8\n"} {
		b.prints(t, want, "users", "-c", name)
	}
}

func namesOfPod(t *testing.T, b *bench) {
	b.create(t, "names", `{hostname: other, terminationGracePeriodSeconds: 1, containers: [{name: a, command: [sleep, "1000"]}]}`)
	pod := b.shows(t, "names", corev1.PodRunning, allReady)
	if got := b.exec(t, "names", "a", "uname", "-n"); got != "other\n" {
		t.Errorf("its name is %q", got)
	}
	resolver := b.exec(t, "names", "a", "cat", "/etc/resolv.conf")
	for _, line := range []string{"nameserver 10.0.0.10\n", "search default.svc.cluster.local svc.cluster.local cluster.local\n"} {
		if !strings.Contains(resolver, line) {
			t.Errorf("its resolver is told\n%s", resolver)
		}
	}
	if got := b.exec(t, "names", "a", "getent", "hosts", "other"); !strings.HasPrefix(got, pod.Status.PodIP) {
		t.Errorf("its own name is %q", got)
	}
	if got := b.exec(t, "names", "a", "getent", "hosts", "kubernetes.default"); !strings.HasPrefix(got, "10.0.0.1 ") {
		t.Errorf("the API server is %q", got)
	}
}

func logsOfPod(t *testing.T, b *bench) {
	pod := b.create(t, "logs", `
terminationGracePeriodSeconds: 1
volumes: [{name: v, emptyDir: {}}]
containers:
- name: a
  command: [sh, -c, 'echo run; echo error >&2; until test -e /v/go; do sleep 0.05; done; echo went; echo -n end; rm /v/go; exit 1']
  volumeMounts: [{name: v, mountPath: /v}]`)
	b.shows(t, "logs", corev1.PodRunning, allReady)
	b.prints(t, "run\nerror\n", "logs")
	if _, err := b.cluster.Kubectl(t.Context(), "", "logs", "-p", "logs"); err == nil || !strings.Contains(err.Error(), `previous terminated container "a" in pod "logs" not found`) {
		t.Errorf("the log of a run that there was not: %v", err)
	}
	// What follows is seen only by a client that tells when it has begun to.
	stream, err := b.client.CoreV1().Pods("default").GetLogs("logs", &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	head := make([]byte, len("run\n"))
	if _, err := io.ReadFull(stream, head); err != nil {
		t.Fatal(err)
	}
	b.touch(t, pod, "v", "go") // not by a program in the container, which is about to end
	rest, err := io.ReadAll(stream)
	if got := string(head) + string(rest); err != nil || got != "run\nerror\nwent\nend" {
		t.Errorf("who follows reads %q: %v", got, err)
	}
	b.await(t, "logs", func(p *corev1.Pod) error { return want("restarts", statusOf(p, "a").RestartCount, int32(1)) })
	for args, want := range map[string]string{
		"-p":              "run\nerror\nwent\nend",
		"":                "run\nerror\n",
		"--tail=1":        "error\n",
		"--limit-bytes=2": "ru",
		"--since=1h":      "run\nerror\n",
	} {
		b.prints(t, want, append(strings.Fields(args), "logs")...)
	}
	if got := b.logs(t, "--timestamps", "--tail=1", "logs"); !strings.HasSuffix(got, "Z error\n") {
		t.Errorf("with times: %q", got)
	}
	b.create(t, "no-logs", `containers: [{name: a, image: none}]`)
	b.shows(t, "no-logs", corev1.PodPending, notReady)
	if _, err := b.cluster.Kubectl(t.Context(), "", "logs", "no-logs"); err == nil || !strings.Contains(err.Error(), "waiting to start") {
		t.Errorf("the log of a container that never ran: %v", err)
	}
}
