package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tandem-serving/tandem/e2e/controlplane"
)

// release is a Helm release in a namespace of its own, before its objects are created.
type release struct {
	name     string
	plane    *controlplane.Plane
	client   kubernetes.Interface
	pods     []*corev1.Pod // engines in the order of the members, then the picker
	notReady string        // a pod
	selector map[string]string
	service  *corev1.Service
	ports    []string
}

const releaseName = "chat"

// newRelease makes the objects of a running pool, as the chart does.
func newRelease(p *testPool, name string, plane *controlplane.Plane, client kubernetes.Interface) *release {
	r := &release{name: name, plane: plane, client: client,
		selector: map[string]string{instanceLabel: releaseName, "llm-d.ai/inference-serving": "true"}}
	for _, m := range p.members {
		r.pods = append(r.pods, r.engine(m.name, m.role, m.listens, p.side))
		if m.role == "decode" {
			addSidecar(r.pods[len(r.pods)-1], m.listens, p.told)
		}
	}
	picker := pod("epp-0", map[string]string{instanceLabel: releaseName, componentLabel: "epp"}, nil)
	for flag, purpose := range map[string]string{"grpc-port": "extproc", "grpc-health-port": "health", "metrics-port": "metrics"} {
		_, port, _ := net.SplitHostPort(p.addrs[purpose])
		picker.Spec.Containers[0].Args = append(picker.Spec.Containers[0].Args, "--"+flag+"="+port)
	}
	r.pods = append(r.pods, picker)
	r.service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "epp"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{componentLabel: "epp"}, Ports: []corev1.ServicePort{{Port: 9002, TargetPort: intstr.FromInt32(9002)}}}}
	return r
}

func pod(name string, labels, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: annotations},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
}

// engine returns a pod whose only port is the port of the test's engine.
func (r *release) engine(name, role, listens, side string) *corev1.Pod {
	_, port, _ := net.SplitHostPort(listens)
	_, sidePortOf, _ := net.SplitHostPort(side)
	r.ports = append(r.ports, port)
	p := pod(name, map[string]string{instanceLabel: releaseName, componentLabel: role, roleLabel: role, "llm-d.ai/inference-serving": "true"},
		map[string]string{"llm-d.ai/active-ports": port})
	kv := map[string]string{"prefill": "kv_producer", "decode": "kv_consumer"}[role]
	p.Spec.Containers[0].Args = []string{"--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"` + kv + `"}`, "--tensor-parallel-size=2"}
	p.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: sideHost, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		{Name: sidePort, Value: sidePortOf}}
	return p
}

// addSidecar adds a sidecar container to a pod. It serves at the pod's port, and has its metrics at another.
func addSidecar(p *corev1.Pod, listens, metricsAddr string) {
	_, port, _ := net.SplitHostPort(listens)
	_, metrics, _ := net.SplitHostPort(metricsAddr)
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "sidecar", Image: "none",
		Args: []string{"--port=" + port, "--metrics-port=" + metrics, "--kv-connector=nixlv2"}})
}

func (r *release) find(name string) *corev1.Pod {
	for _, p := range r.pods {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// create creates the objects in the API server.
func (r *release) create(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	if _, err := r.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range r.pods {
		made, err := r.client.CoreV1().Pods(r.name).Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
		if p.Name == r.notReady {
			ready.Status, ready.Message = corev1.ConditionFalse, "containers with unready status: [engine]"
		}
		made.Status.Phase, made.Status.PodIP, made.Status.PodIPs = corev1.PodRunning, "127.0.0.1", []corev1.PodIP{{IP: "127.0.0.1"}}
		made.Status.Conditions = []corev1.PodCondition{ready}
		if _, err := r.client.CoreV1().Pods(r.name).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if r.service != nil {
		if _, err := r.client.CoreV1().Services(r.name).Create(ctx, r.service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.createPool(t)
}

func (r *release) createPool(t *testing.T) {
	t.Helper()
	labels, err := json.Marshal(r.selector)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: chat, namespace: %s, labels: {%s: chat}}
spec:
  selector: {matchLabels: %s}
  targetPorts: [{number: %s}]
  endpointPickerRef: {name: epp, port: {number: 9002}}
`, r.name, instanceLabel, labels, strings.Join(r.ports, "}, {number: "))
	if out, err := r.plane.Kubectl(t.Context(), text, "apply", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestCluster(t *testing.T) {
	plane := controlplane.Start(t)
	plane.InstallCRDs("../../../epp/kube/testdata/crds/*.yaml")
	admin := controlplane.Client(t, plane.Config())
	p := healthy()
	p.start(t)
	p.loads(t, 4)
	tests := []struct {
		name, check string
		verdict     verdict
		seen, do    string
		breaks      func(r *release)
	}{
		{"healthy", "", ok, "", "", func(*release) {}},
		{"a worker of a group", "", ok, "", "", func(r *release) {
			r.pods = append(r.pods, pod("decode-0-1", map[string]string{instanceLabel: releaseName, componentLabel: "decode", workerLabel: "1"}, nil))
		}},
		{"pod not ready", "pods", fail, "prefill-0: not ready: containers with unready status", "kubectl describe pod", func(r *release) { r.notReady = "prefill-0" }},
		{"selector of another label", "selector", fail, "the InferencePool chat does not select decode-0", "labels of this release's engines", func(r *release) {
			delete(r.find("decode-0").Labels, "llm-d.ai/inference-serving")
		}},
		{"pods of another release", "selector", fail, "the InferencePool chat also selects other-0", "tells releases apart", func(r *release) {
			other := pod("other-0", map[string]string{instanceLabel: "other", roleLabel: "decode", "llm-d.ai/inference-serving": "true"}, nil)
			r.pods, r.selector = append(r.pods, other), map[string]string{"llm-d.ai/inference-serving": "true"}
		}},
		{"role label misspelt", "roles", fail, `prefill-0: "Prefill" is not a role`, "prefill, decode, encode", func(r *release) {
			r.find("prefill-0").Labels[roleLabel] = "Prefill"
		}},
		{"pool's port is not the engine's", "endpoints", fail, "prefill-0: 127.0.0.1:1: connection refused", "correct its address and port", func(r *release) {
			r.find("prefill-0").Annotations["llm-d.ai/active-ports"] = "1"
			r.ports = append(r.ports, "1")
		}},
		{"side channel on localhost", "side-channel", fail, sideHost + " is not set, and defaults to localhost", "status.podIP", func(r *release) {
			r.find("prefill-0").Spec.Containers[0].Env = nil
		}},
		{"side channel's host is a name of its own", "side-channel", fail, "localhost, which other pods cannot reach", "status.podIP", func(r *release) {
			r.find("prefill-0").Spec.Containers[0].Env = []corev1.EnvVar{{Name: sideHost, Value: "localhost"}}
		}},
		{"side channel's host by another variable", "", ok, "", "", func(r *release) {
			c := &r.find("prefill-0").Spec.Containers[0]
			c.Env[0].Name = "POD_IP"
			c.Env = append(c.Env, corev1.EnvVar{Name: sideHost, Value: "$(POD_IP)"})
		}},
		{"side channel's host by a Secret", "side-channel", unknown, "its pod does not show", "--side-channel", func(r *release) {
			r.find("prefill-0").Spec.Containers[0].Env[0].ValueFrom = &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "k"}}
		}},
		{"wrong kv_role", "kv-role", fail, "prefill-0: it is labelled prefill and started as kv_consumer", "kv_producer", func(r *release) {
			r.find("prefill-0").Spec.Containers[0].Args[1] = `{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}`
		}},
		{"prefill wider than decode", "parallelism", warn, "prefill 8, decode 2", "--tensor-parallel-size", func(r *release) {
			r.find("prefill-0").Spec.Containers[0].Args[2] = "--tensor-parallel-size=8"
		}},
		{"no such service", "service", fail, "names the Service epp, which does not exist", "endpointPickerRef", func(r *release) { r.service = nil }},
		{"service without that port", "service", fail, "names port 9002 of the Service epp, which has no such port", "endpointPickerRef", func(r *release) {
			r.service.Spec.Ports[0].Port = 9999
		}},
		{"no pod behind the service", "service", fail, "no ready pod is behind the Service epp", "not ready", func(r *release) {
			r.service.Spec.Selector = map[string]string{"app": "none"}
		}},
	}
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRelease(p, fmt.Sprintf("case-%d", i), plane, admin)
			test.breaks(r)
			r.create(t)
			got, found := findings(t, "--namespace="+r.name, "--release="+releaseName, "--kubeconfig="+plane.Kubeconfig(), "--via=direct",
				"--idle-wait=0s", "--timeout=10s")
			if l := found[test.check]; test.check != "" && (l.Verdict != test.verdict || !strings.Contains(l.Seen, test.seen) || !strings.Contains(l.Do, test.do)) {
				t.Errorf("%s: %s → %s", l.Verdict, l.Seen, l.Do)
			}
			for name, l := range found {
				if name != test.check && (l.Verdict == warn || l.Verdict == fail) {
					t.Errorf("%s complains too: %s", name, l.Seen)
				}
			}
			for _, name := range []string{"selector", "pods", "service", "picker", "freshness", "kv-role", "keeper", "leases"} {
				if name != test.check && found[name].Verdict != ok {
					t.Errorf("%s: %+v", name, found[name])
				}
			}
			if want := map[verdict]int{ok: 0, fail: 1}[test.verdict]; got.code != want {
				t.Errorf("exit %d: %s", got.code, got.stderr)
			}
		})
	}
	t.Run("one release of two", func(t *testing.T) { testReleases(t, p, plane, admin) })
	t.Run("through the API server", func(t *testing.T) { testThrough(t, p, plane, admin) })
	t.Run("refused", func(t *testing.T) {
		_, kubeconfig := plane.As(t.Context(), "default", "stranger")
		got := doctor(t.Context(), "--namespace=case-0", "--kubeconfig="+kubeconfig)
		if got.code != 4 || !strings.Contains(got.stderr, "reading the pods of the namespace: pods is forbidden") {
			t.Errorf("exit %d: %s", got.code, got.stderr)
		}
	})
	t.Run("pods only", func(t *testing.T) {
		if out, err := plane.Kubectl(t.Context(), "", "create", "role", "reader", "--namespace=case-0", "--verb=list", "--resource=pods"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if out, err := plane.Kubectl(t.Context(), "", "create", "rolebinding", "reader", "--namespace=case-0", "--role=reader", "--serviceaccount=case-0:reader"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		_, kubeconfig := plane.As(t.Context(), "case-0", "reader")
		_, found := findings(t, "--namespace=case-0", "--kubeconfig="+kubeconfig, "--via=direct", "--idle-wait=0s")
		if l := found["selector"]; l.Verdict != unknown || !strings.Contains(l.Seen, "inferencepools") || found["pods"].Verdict != ok {
			t.Errorf("%+v, %+v", l, found["pods"])
		}
	})
	t.Run("nothing there", func(t *testing.T) {
		got := doctor(t.Context(), "--namespace=default", "--kubeconfig="+plane.Kubeconfig())
		if got.code != 4 || !strings.Contains(got.stderr, "the namespace default has no engines") {
			t.Errorf("exit %d: %s", got.code, got.stderr)
		}
	})
}

func testReleases(t *testing.T, p *testPool, plane *controlplane.Plane, admin kubernetes.Interface) {
	r := newRelease(p, "two", plane, admin)
	r.pods = append(r.pods, pod("other-0", map[string]string{instanceLabel: "other", roleLabel: "decode"}, nil))
	r.create(t)
	at := []string{"--namespace=two", "--kubeconfig=" + plane.Kubeconfig(), "--via=direct", "--idle-wait=0s"}
	if got := doctor(t.Context(), at...); got.code != 2 || !strings.Contains(got.stderr, "name one with --release") {
		t.Errorf("exit %d: %s", got.code, got.stderr)
	}
	if _, found := findings(t, append(at, "--selector="+instanceLabel+"=chat,"+roleLabel)...); found["roles"].Seen != "2 prefill, 2 decode" {
		t.Errorf("%+v", found["roles"])
	}
}

// testThrough sends requests through the API server's proxy. The real API server refuses to connect to loopback, where a
// test's pods are, so a server in front of it does that part.
func testThrough(t *testing.T, p *testPool, plane *controlplane.Plane, admin kubernetes.Interface) {
	r := newRelease(p, "through", plane, admin)
	r.create(t)
	at := []string{"--namespace=through", "--kubeconfig=" + plane.Kubeconfig(), "--timeout=10s"}
	_, found := findings(t, at...)
	if l := found["endpoints"]; l.Verdict != fail || !strings.Contains(l.Seen, "it answers 4") && !strings.Contains(l.Seen, "it answers 5") {
		t.Errorf("%+v", l)
	}
	config, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]any{}}},
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": "http://" + passer(t, plane)}}}})
	if err != nil {
		t.Fatal(err)
	}
	at[1] = "--kubeconfig=" + write(t, "kubeconfig", string(config))
	got, found := findings(t, append(at, "--probe")...)
	for _, name := range []string{"endpoints", "roles", "selector", "metrics", "version", "model", "sidecar", "picker", "probe", "clock", "connector", "keeper"} {
		if found[name].Verdict != ok {
			t.Errorf("%s: %+v", name, found[name])
		}
	}
	for _, name := range []string{"side-channel", "keep-alive", "tls"} {
		if found[name].Verdict != unknown {
			t.Errorf("%s: %+v", name, found[name])
		}
	}
	if got.code != 0 {
		t.Errorf("exit %d: %s", got.code, got.stderr)
	}
}

// passer starts a server in front of the API server. It forwards requests for pods itself, as the API server does for
// addresses that are not loopback.
func passer(t *testing.T, plane *controlplane.Plane) string {
	t.Helper()
	transport, err := rest.TransportFor(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	api, err := url.Parse(plane.Config().Host)
	if err != nil {
		t.Fatal(err)
	}
	toAPI := httputil.NewSingleHostReverseProxy(api)
	toAPI.Transport = transport
	toPods := &http.Transport{}
	t.Cleanup(toPods.CloseIdleConnections)
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		head, path, forPod := strings.Cut(r.URL.Path, "/proxy/")
		if !forPod {
			toAPI.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
			return
		}
		port := head[strings.LastIndex(head, ":")+1:]
		pod := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:" + port})
		pod.Transport = toPods
		r.URL.Path = "/" + path
		pod.ServeHTTP(w, r)
	})
}
