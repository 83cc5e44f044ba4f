package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tandem-serving/tandem/e2e/controlplane"
	"github.com/tandem-serving/tandem/epp"
)

// patience bounds every wait. client-go tries again after a few seconds; a busy machine takes its time.
const patience = 40 * time.Second

// cluster is a control plane with what tests do to it.
type cluster struct {
	*controlplane.Plane
	admin kubernetes.Interface
}

func startCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{Plane: controlplane.Start(t)}
	c.admin = controlplane.Client(t, c.Config())
	return c
}

// kubectl runs kubectl, which must work.
func (c *cluster) kubectl(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apply writes objects into a namespace.
func (c *cluster) apply(t testing.TB, namespace, objects string) {
	t.Helper()
	c.kubectl(t, objects, "apply", "--server-side", "--force-conflicts", "-n", namespace, "-f", "-")
}

// namespace makes a namespace with a picker's role, and returns the configuration of its service account.
func (c *cluster) namespace(t testing.TB, name string) *rest.Config {
	t.Helper()
	c.kubectl(t, "", "create", "namespace", name)
	c.kubectl(t, "", "apply", "-n", name, "-f", "testdata/role.yaml")
	config, _ := c.As(t.Context(), name, "picker")
	return config
}

// ready makes a pod that is ready at an address.
func (c *cluster) ready(t testing.TB, namespace, name, ip string, but ...func(*corev1.Pod)) {
	t.Helper()
	p := podOf(name, ip, but...)
	p.Namespace = namespace
	p.Spec.Containers = []corev1.Container{{Name: "engine", Image: "engine"}}
	if _, err := c.admin.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.status(t, namespace, name, ip, corev1.ConditionTrue)
}

// status says of a pod what a kubelet would.
func (c *cluster) status(t testing.TB, namespace, name, ip string, ready corev1.ConditionStatus) {
	t.Helper()
	patch := fmt.Sprintf(`{"status": {"phase": "Running", "podIP": %q, "podIPs": [{"ip": %q}], "conditions": [{"type": "Ready", "status": %q}]}}`, ip, ip, ready)
	_, err := c.admin.CoreV1().Pods(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
}

// remove deletes a pod at once, as one is whose kubelet has nothing to wait for.
func (c *cluster) remove(t testing.TB, namespace, name string) {
	t.Helper()
	now := int64(0)
	if err := c.admin.CoreV1().Pods(namespace).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
}

// probe is a running Watch.
type probe struct {
	*Watch
	applied  chan []epp.Spec
	lines    lines
	last     []epp.Spec
	count    int // of calls of apply
	told     int // lines of the log
	heard    func(line string)
	registry *prometheus.Registry
	halt     func()
}

// follow runs a Watch until the test ends, or halt is called.
func follow(t testing.TB, options Options) *probe {
	t.Helper()
	p := &probe{applied: make(chan []epp.Spec, 10000), lines: make(lines, 10000), registry: prometheus.NewPedanticRegistry()}
	options.Log, options.Metrics = slog.New(p.lines), p.registry
	var err error
	if p.Watch, err = New(options); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, func(specs []epp.Spec) { p.applied <- specs }) }()
	halted := false
	p.halt = func() {
		stop()
		if halted {
			return
		}
		halted = true
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("running the watch: %v", err)
			}
		case <-time.After(patience):
			t.Error("the watch does not end")
		}
	}
	t.Cleanup(p.halt)
	return p
}

// until waits for a condition. It is looked at whenever the watch has applied or logged something, and now and then: a trouble
// whose words change is logged once.
func (p *probe) until(t testing.TB, what string, met func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for !met() {
		select {
		case <-again.C:
		case p.last = <-p.applied:
			p.count++
		case line := <-p.lines:
			p.told++
			t.Log(line)
			if p.heard != nil {
				p.heard(line)
			}
		case <-limit.C:
			t.Fatalf("waited in vain for: %s; endpoints %v, trouble: %v", what, named(p.last), p.Trouble())
		}
	}
}

// endpoints waits until the pool is as wanted.
func (p *probe) endpoints(t testing.TB, want ...string) {
	t.Helper()
	p.until(t, "endpoints "+strings.Join(want, ", "), func() bool { return p.count > 0 && slices.Equal(named(p.last), want) })
}

// trouble waits until Trouble says all of want; nothing wanted = no trouble.
func (p *probe) trouble(t testing.TB, want ...string) {
	t.Helper()
	p.until(t, "trouble "+strings.Join(want, ", "), func() bool {
		err := p.Trouble()
		if err == nil {
			return len(want) == 0
		}
		for _, text := range want {
			if !strings.Contains(err.Error(), text) {
				return false
			}
		}
		return len(want) > 0
	})
}

// sync waits until endpoints and policy are known.
func (p *probe) sync(t testing.TB) {
	t.Helper()
	select {
	case <-p.Synced():
	case <-time.After(patience):
		t.Fatalf("not synced; trouble: %v", p.Trouble())
	}
}

// unmet fails if anything is known of the cluster.
func (p *probe) unmet(t testing.TB) {
	t.Helper()
	select {
	case <-p.Synced():
		t.Error("synced although the cluster has not told everything")
	default:
	}
	if p.count+len(p.applied) > 0 {
		t.Error("a pool was applied although the cluster has not told everything")
	}
}

// expectMetrics compares gauges and counters; "some " demands at least as much.
func (p *probe) expectMetrics(t testing.TB, want map[string]float64) {
	t.Helper()
	families, err := p.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			got[fmt.Sprintf("%s{%s}", f.GetName(), strings.Join(labels, ","))] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for name, n := range want {
		bare, atLeast := strings.CutPrefix(name, "some ")
		if v, there := got[bare]; !there || v != n && (!atLeast || v < n) {
			t.Errorf("%s is %v, want %v; all: %v", name, v, n, got)
		}
	}
}
