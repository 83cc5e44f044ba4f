package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tandem-serving/tandem/e2e/controlplane"
	"github.com/tandem-serving/tandem/e2e/kube/container"
	"github.com/tandem-serving/tandem/e2e/kube/services"
	"github.com/tandem-serving/tandem/stack"
)

const (
	// DNS is the address of the cluster's resolver, and Domain the suffix of all names that it knows.
	DNS, Domain = services.DNS, services.Domain
	// NodeGrace is how long after its last heartbeat a node counts as not ready: short enough for tests to wait for it, and
	// four of a kubelet's heartbeats if they come every 2 s. Kubernetes waits 50 s for heartbeats every 10 s.
	NodeGrace = 8 * time.Second
	// Toleration is how long a pod stays on a node that is not ready, unless it says so itself. Kubernetes waits 5 min.
	Toleration = 3 * time.Second

	// host is the address of the bridge that package container makes: pods and this process can reach it.
	host = "10.244.0.1"
	// The ports that these programs have on a real node. Linux gives none of them to clients, so they are still free when the
	// API server is started again.
	serverPort, managerPort, schedulerPort = 6443, 10257, 10259
	// checkInterval is the time between two checks of a new cluster.
	checkInterval = 50 * time.Millisecond
)

// Cluster is a control plane that works like a real one, with controllers, Services and their names. It has no nodes; package
// kubelet makes them.
type Cluster struct {
	*controlplane.Plane
	tb        testing.TB
	manager   *stack.Process
	scheduler *stack.Process
	services  *services.Services
}

// StartCluster runs a cluster until the test ends, in the namespaces that container.Enter has made: one at a time. It returns
// when pods can be made. If namespaces or programs are missing the test is skipped, or fails if CI=true.
func StartCluster(tb testing.TB) *Cluster {
	tb.Helper()
	container.Require(tb)
	c := &Cluster{Plane: controlplane.StartAt(tb, host, serverPort, clusterFlags()), tb: tb}
	tb.Cleanup(c.stop)
	ctx, cancel := context.WithTimeout(tb.Context(), controlplane.StartTimeout)
	defer cancel()
	if err := c.start(ctx); err != nil {
		tb.Fatal(err)
	}
	return c
}

// clusterFlags returns the API server's flags. It may allow privileged pods, because pod security refuses them; and it reads logs
// from nodes without verifying their certificates, which they sign themselves.
func clusterFlags() []string {
	return []string{"--advertise-address=" + host, "--allow-privileged", "--kubelet-preferred-address-types=InternalIP",
		"--default-not-ready-toleration-seconds=" + seconds(Toleration),
		"--default-unreachable-toleration-seconds=" + seconds(Toleration)}
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

func (c *Cluster) start(ctx context.Context) (err error) {
	if c.manager, err = c.Run(ctx, "kube-controller-manager", health(managerPort, "healthz"), c.managerFlags()); err != nil {
		return err
	}
	c.scheduler, err = c.Run(ctx, "kube-scheduler", health(schedulerPort, "readyz"), c.localFlags(schedulerPort))
	if err != nil {
		return err
	}
	if c.services, err = services.Start(ctx, c.Config()); err != nil {
		return err
	}
	return c.awaitUse(ctx)
}

func health(port int, path string) string {
	return "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + "/" + path
}

// localFlags returns the flags of a program of which only one works for the API server.
func (c *Cluster) localFlags(port int) []string {
	return []string{"--kubeconfig=" + c.Kubeconfig(), "--leader-elect=false", "--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port), "--cert-dir=" + c.Path("pki-"+strconv.Itoa(port)), "--profiling=false"}
}

// managerFlags leaves all default controllers on, each with its own account, as in production. Making these accounts takes
// five seconds at the program's own limit of requests.
func (c *Cluster) managerFlags() []string {
	return append(c.localFlags(managerPort), "--service-account-private-key-file="+c.Path("accounts.key"),
		"--root-ca-file="+c.Path("pki/apiserver.crt"), "--use-service-account-credentials",
		"--kube-api-qps=200", "--kube-api-burst=400", "--node-monitor-grace-period="+NodeGrace.String(), "--node-monitor-period=1s")
}

// awaitUse waits until pods can be made in the namespace default, and the API server can be reached as pods do, by its
// Service.
func (c *Cluster) awaitUse(ctx context.Context) error {
	client, err := rest.HTTPClientFor(c.Config())
	if err != nil {
		return fmt.Errorf("asking the new cluster: %w", err)
	}
	defer client.CloseIdleConnections()
	again := time.NewTicker(checkInterval)
	defer again.Stop()
	for _, url := range []string{
		c.URL() + "/api/v1/namespaces/default/serviceaccounts/default",
		c.URL() + "/api/v1/namespaces/default/configmaps/kube-root-ca.crt",
		"https://" + services.APIServer + "/readyz",
	} {
		for err := controlplane.Get(ctx, client, url); err != nil; err = controlplane.Get(ctx, client, url) {
			select {
			case <-again.C:
			case <-ctx.Done():
				return fmt.Errorf("waiting for %s: %w", url, errors.Join(err, c.output()))
			}
		}
	}
	return nil
}

// output is an error with the last words of the program that a new cluster is waiting for.
func (c *Cluster) output() error {
	return fmt.Errorf("kube-controller-manager's last lines: %q", c.manager.Output())
}

func (c *Cluster) stop() {
	c.tb.Helper()
	if c.services != nil {
		if err := c.services.Stop(); err != nil {
			c.tb.Error(err)
		}
	}
	controlplane.Kill(c.tb, &c.scheduler)
	controlplane.Kill(c.tb, &c.manager)
}
