package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tandem-serving/tandem/e2e/controlplane"
	"github.com/tandem-serving/tandem/e2e/kube"
	"github.com/tandem-serving/tandem/e2e/kube/container"
	"github.com/tandem-serving/tandem/e2e/kube/kubelet"
	"github.com/tandem-serving/tandem/e2e/otlp"
)

const (
	tools = "../../../.tools"
	chart = "../../../charts/tandem"
	// namespace is where releases are installed: one that enforces the level restricted of pod security.
	namespace = "tandem-e2e"
	// nodes is how many the cluster has: enough that one can go, and that two pods of a role are apart.
	nodes = 3
	// collectorPort is where the collector of traces listens, on the bridge that pods are on.
	collectorPort = "4317"
)

// bridge is the address of the test process on the pods' network.
var bridge = netip.MustParseAddr("10.244.0.1")

// cluster is what the scenarios run on.
type cluster struct {
	ctx        context.Context // ends with the whole test
	kubeconfig string
	dir        string               // helm's and kubectl's own files
	admin      kubernetes.Interface // with all rights that the kubeconfig gives
	config     *rest.Config
	plain      *plainEngine
	llm        *release
	local      *local // nil on a real cluster
}

// local is what only the cluster of this test has.
type local struct {
	plane  *kube.Cluster
	host   *container.Host
	nodes  map[string]*kubelet.Node // those that run, and those that crashed and were not started again
	images container.Images
	traces *otlp.Receiver
}

// newCluster makes the cluster, or finds the one that KUBECONFIG names, where it deletes the releases' namespace in the end.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{ctx: t.Context(), dir: t.TempDir(), plain: startPlain(t)}
	if *onReal {
		c.kubeconfig = os.Getenv("KUBECONFIG")
		if c.kubeconfig == "" {
			t.Fatal("-cluster.real takes the cluster that KUBECONFIG names: set it")
		}
	} else {
		c.startLocal(t)
	}
	c.connect(t)
	c.makeNamespace(t, "create") // not one that was there before: it is deleted
	if c.local != nil {
		c.startNodes(t)
	} else {
		t.Cleanup(func() {
			_, _ = c.kubectl(context.Background(), "", "delete", "namespace", namespace, "--ignore-not-found", "--wait=false")
		})
	}
	c.llm = c.release("llm", namespace, quick...)
	return c
}

func (c *cluster) startLocal(t *testing.T) {
	t.Helper()
	container.Require(t)
	c.local = &local{images: container.Tandem(t), traces: otlp.Start(t, net.JoinHostPort(bridge.String(), collectorPort))}
	c.local.plane = kube.StartCluster(t)
	c.kubeconfig = c.local.plane.Kubeconfig()
	c.local.plane.InstallCRDs(tools+"/crds/*.yaml", "../../../epp/kube/testdata/crds/*.yaml")
}

// connect makes clients from the kubeconfig, as helm and kubectl do.
func (c *cluster) connect(t *testing.T) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1 // no limit: tests ask again and again
	c.admin = controlplane.Client(t, config)
	c.config = config
}

// makeNamespace has kubectl create the namespace of the releases, or apply it, which takes one that is there. It refuses pods
// beyond the level restricted.
func (c *cluster) makeNamespace(t *testing.T, how string) {
	t.Helper()
	const text = `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "` + namespace + `",
		"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}`
	if _, err := c.kubectl(t.Context(), text, how, "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// tool returns the path of a program: of the tools here, or of the PATH.
func tool(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(tools, name))
	if err == nil {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	if path, err = exec.LookPath(filepath.Base(name)); err != nil {
		missing(t, fmt.Sprintf("there is no %s (make tools fetches it): %v", filepath.Base(name), err))
	}
	return path
}

// kubectl runs kubectl as the user that the kubeconfig names, in the namespace of the releases unless args say otherwise. The
// error has what it complained of.
func (c *cluster) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	path := filepath.Join(tools, "kube", "kubectl")
	if _, err := os.Stat(path); err != nil {
		path = "kubectl"
	}
	return c.command(ctx, stdin, path, args...)
}

// mustKubectl fails the test if kubectl fails.
func (c *cluster) mustKubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.kubectl(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// command runs a program that talks to the cluster, with nothing of the user's who runs the test but the kubeconfig.
func (c *cluster) command(ctx context.Context, stdin, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"KUBECONFIG=" + c.kubeconfig, "PATH=" + os.Getenv("PATH"), "HOME=" + c.dir, "HELM_CACHE_HOME=" + c.dir,
		"HELM_CONFIG_HOME=" + c.dir, "HELM_DATA_HOME=" + c.dir}
	cmd.Stdin = strings.NewReader(stdin)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		what := filepath.Base(path) + " " + strings.Join(args, " ")
		return out.String(), fmt.Errorf("%s: %w: %s", what, errors.Join(err, context.Cause(ctx)), strings.TrimSpace(complaints.String()))
	}
	return out.String(), nil
}

// pollEvery is how often a state without notification is polled.
const pollEvery = 200 * time.Millisecond

// await looks again and again until something is so, and fails the test with the last state if it is not in time.
func (c *cluster) await(t *testing.T, what string, limit time.Duration, look func(ctx context.Context) (state string, ok bool)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	state, ok := look(ctx)
	for !ok {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %s", what, limit, state)
		case <-tick.C:
		}
		var now string
		if now, ok = look(ctx); ctx.Err() == nil {
			state = now
		}
	}
}
