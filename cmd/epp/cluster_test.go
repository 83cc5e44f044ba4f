package main

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials/insecure"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tandem-serving/tandem/e2e/controlplane"
)

// cluster is a control plane with pods of a P/D pool in the namespace of llm-d's guides.
type cluster struct {
	*controlplane.Plane
	admin kubernetes.Interface
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	plane := controlplane.Start(t)
	return &cluster{plane, controlplane.Client(t, plane.Config())}
}

func TestCluster(t *testing.T) {
	c := startCluster(t)
	c.InstallCRDs("../../epp/kube/testdata/crds/*.yaml")
	t.Run("in place of llm-d's", c.testInPlaceOfLLMD)
	t.Run("comes and goes", c.testComesAndGoes)
}

// apply creates the objects of a file in a new namespace, and the pods of the guide.
func (c *cluster) apply(t *testing.T, namespace, file string) {
	t.Helper()
	for _, args := range [][]string{{"create", "namespace", namespace}, {"apply", "-n", namespace, "-f", file},
		{"apply", "-n", namespace, "-f", "testdata/llm-d/pods.yaml"}} {
		_, err := c.Kubectl(t.Context(), "", args...)
		must(t, err)
	}
}

// setReady sets a pod's address and makes it ready, as its kubelet would.
func (c *cluster) setReady(t *testing.T, namespace, name, ip string) {
	t.Helper()
	pods := c.admin.CoreV1().Pods(namespace)
	pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	_, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
}

// begin starts a picker as the container of a Deployment: with its arguments, environment and files, and the rights of its service
// account.
func (c *cluster) begin(t *testing.T, namespace, deployment string) (*served, *corev1.Container) {
	t.Helper()
	found, err := c.admin.AppsV1().Deployments(namespace).Get(t.Context(), deployment, metav1.GetOptions{})
	must(t, err)
	container := &found.Spec.Template.Spec.Containers[0]
	args := slices.Clone(container.Args)
	for path, dir := range c.mount(t, found) {
		for i := range args {
			args[i] = strings.Replace(args[i], path, dir, 1)
		}
	}
	env := map[string]string{}
	for _, v := range container.Env {
		if env[v.Name] = v.Value; v.ValueFrom != nil && v.ValueFrom.FieldRef.FieldPath == "metadata.namespace" {
			env[v.Name] = namespace
		}
	}
	_, kubeconfig := c.As(t.Context(), namespace, found.Spec.Template.Spec.ServiceAccountName)
	t.Setenv("KUBECONFIG", kubeconfig)
	return begin(t, env, append(args, localPorts...)...), container
}

// mount writes the ConfigMaps of a pod into directories. It returns them by the path of their mount.
func (c *cluster) mount(t *testing.T, of *appsv1.Deployment) map[string]string {
	t.Helper()
	spec := &of.Spec.Template.Spec
	dirs := map[string]string{}
	for _, mount := range spec.Containers[0].VolumeMounts {
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		data, err := c.admin.CoreV1().ConfigMaps(of.Namespace).Get(t.Context(), spec.Volumes[i].ConfigMap.Name, metav1.GetOptions{})
		must(t, err)
		dirs[mount.MountPath] = t.TempDir()
		for name, text := range data.Data {
			write(t, filepath.Join(dirs[mount.MountPath], name), text)
		}
	}
	return dirs
}

// testInPlaceOfLLMD starts the picker in place of llm-d's, with what llm-d's charts install for it. The picker accepts the arguments
// and the configuration, its Role is sufficient, it answers its probes, and it picks pods.
func (c *cluster) testInPlaceOfLLMD(t *testing.T) {
	for _, test := range []struct {
		file, namespace, deployment string
		plaintext                   bool
		prefill                     string
	}{
		{"gateway.yaml", "llm-d", "guide-epp", false, "10.0.0.1:8000"},
		{"gateway.yaml", "llm-d", "guide-epp-ha", false, "10.0.0.1:8000"},
		{"standalone.yaml", "standalone", "guide-epp", true, ""}, // its configuration knows no prefill
	} {
		t.Run(test.namespace+" "+test.deployment, func(t *testing.T) {
			if _, err := c.admin.CoreV1().Namespaces().Get(t.Context(), test.namespace, metav1.GetOptions{}); err != nil {
				c.apply(t, test.namespace, "testdata/llm-d/"+test.file)
				c.setReady(t, test.namespace, "prefill-0", "10.0.0.1")
				c.setReady(t, test.namespace, "decode-0", "10.0.0.2")
				c.setReady(t, test.namespace, "stranger", "10.0.0.3")
			}
			s, container := c.begin(t, test.namespace, test.deployment)
			s.awaitReady(t)
			for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
				mustBe(t, s.health(t, "health", insecure.NewCredentials()), *probe.GRPC.Service, serving)
			}
			decodes := []string{"10.0.0.2:8000"}
			if test.prefill == "" {
				decodes = append(decodes, "10.0.0.1:8000") // without roles in its configuration, any pod may be picked
			}
			if decode, prefill := s.pick(t, test.plaintext); !slices.Contains(decodes, decode) || prefill != test.prefill {
				t.Errorf("picked %q and %q", decode, prefill)
			}
			if names := fmt.Sprint(s.endpoints(t)); strings.Contains(names, "stranger") {
				t.Errorf("a pod outside the pool is an endpoint: %s", names)
			}
		})
	}
}

// testComesAndGoes: a picker that cannot reach the cluster is live, is not ready and reports why. It becomes ready, and answers
// the requests that came before, when it reaches the cluster. It stays ready when the cluster is gone again, and with a new
// configuration.
func (c *cluster) testComesAndGoes(t *testing.T) {
	c.apply(t, "flaky", "testdata/llm-d/gateway.yaml")
	c.setReady(t, "flaky", "decode-0", "10.0.0.2")
	kubeconfig, file := c.Kubeconfig(), filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, pdConfig(1000))
	c.StopAPIServer()

	metrics, probes, extproc := freeAddress(t), freeAddress(t), freeAddress(t)
	s := begin(t, nil, "--pool-name=guide", "--pool-namespace=flaky", "--kubeconfig="+kubeconfig, "--config-file="+file, "--secure-serving=false",
		portFlag("metrics-port", metrics), portFlag("grpc-health-port", probes), portFlag("grpc-port", extproc))
	s.addresses = map[string]string{"metrics": metrics, "health": probes, "extproc": extproc}
	eventually(t, func() bool {
		conn, err := net.Dial("tcp", metrics)
		if err != nil {
			return false // it does not listen yet
		}
		conn.Close()
		status, text := s.ask(t, "GET", "metrics", "/readyz", nil)
		return status == http.StatusServiceUnavailable && strings.Contains(text, "not known yet: the API server cannot be reached")
	})
	health := s.health(t, "health", insecure.NewCredentials())
	mustBe(t, health, "liveness", serving)
	mustBe(t, health, "readiness", notServing)
	if status, _ := s.ask(t, "GET", "metrics", "/livez", nil); status != http.StatusOK {
		t.Errorf("/livez: %d", status)
	}

	picks := func() {
		t.Helper()
		if decode, _ := s.pick(t, true); decode != "10.0.0.2:8000" {
			t.Errorf("picked %q", decode)
		}
	}
	started := make(chan error, 1)
	go func() { started <- c.StartAPIServer(t.Context()) }()
	picks() // it waits until the endpoints are known
	must(t, <-started)
	s.awaitReady(t)
	picks()
	write(t, file, pdConfig(1001))
	s.uses(t, 1001)
	picks()
	c.StopAPIServer()
	s.tells(t, "the API server cannot be reached")
	picks()
	write(t, file, pdConfig(1002)+"dataLayer: {discovery: {pluginRef: file-discovery}}\n")
	s.tells(t, "the configuration names file-discovery, and --pool-name is given too")
	picks()
}

// pdConfig returns a configuration that its threshold identifies.
func pdConfig(threshold int) string {
	text, _, _ := strings.Cut(configOf("endpoints.yaml", threshold), "dataLayer")
	return text
}

// freeAddress returns an address that no process listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

func portFlag(name, address string) string {
	_, port, _ := net.SplitHostPort(address)
	return "--" + name + "=" + port
}
