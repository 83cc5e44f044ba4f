package cluster

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/e2e/kube"
	"github.com/tandem-serving/tandem/e2e/kube/container"
	"github.com/tandem-serving/tandem/e2e/kube/kubelet"
)

func (c *cluster) startNodes(t *testing.T) {
	t.Helper()
	host, err := container.NewHost(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	c.local.host, c.local.nodes = host, map[string]*kubelet.Node{}
	t.Cleanup(func() {
		for _, node := range c.local.nodes {
			node.Stop()
		}
	})
	for i := range nodes {
		c.startNode(t, nodeName(i))
	}
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// startNode starts a node, for the first time or again after it crashed. Its address is one of the bridge's; the pods of all
// nodes are on that. It runs until the whole test ends.
func (c *cluster) startNode(t *testing.T, name string) {
	t.Helper()
	var number byte
	if _, err := fmt.Sscanf(name, "node-%d", &number); err != nil {
		t.Fatalf("%q is no name of a node: %v", name, err)
	}
	address := bridge.As4()
	address[3] = 11 + number
	dir := filepath.Join(c.dir, fmt.Sprintf("%s-%d", name, time.Now().UnixNano()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	node, err := kubelet.Start(c.ctx, kubelet.Options{
		Name: name, Address: netip.AddrFrom4(address), Config: c.config, Host: c.local.host, Images: c.local.images, Dir: dir,
		Nameservers: []string{kube.DNS}, Domain: kube.Domain, APIServer: "10.0.0.1:443", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	c.local.nodes[name] = node
}

// nodeOf returns the node that a pod is on.
func (c *cluster) nodeOf(t *testing.T, pod corev1.Pod) *kubelet.Node {
	t.Helper()
	node := c.local.nodes[pod.Spec.NodeName]
	if node == nil {
		t.Fatalf("%s is on node %q, which does not run", pod.Name, pod.Spec.NodeName)
	}
	return node
}

// container returns a running container of a pod.
func (c *cluster) container(t *testing.T, pod corev1.Pod, name string) *container.Container {
	t.Helper()
	found, err := c.nodeOf(t, pod).Container(pod.Namespace, pod.Name, name)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// sandbox is what a pod's containers share: its network.
func (c *cluster) sandbox(t *testing.T, pod corev1.Pod) *container.Sandbox {
	t.Helper()
	found, err := c.nodeOf(t, pod).Sandbox(pod.Namespace, pod.Name)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// kill ends the first process of a container as `kill -9` on its node does.
func (c *cluster) kill(t *testing.T, pod corev1.Pod, name string) {
	t.Helper()
	found := c.container(t, pod, name)
	if err := syscall.Kill(found.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-found.Done()
}
