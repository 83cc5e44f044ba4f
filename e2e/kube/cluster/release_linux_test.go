package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// quick are values that make the simulated preset short of time: pods end soon, and what is not released runs out soon.
// drainSeconds is the least that the chart takes, and the lease what that leaves to a prefill pod. Traces are those of clients
// that ask for one.
var quick = []string{"drainSeconds=20", "engine.leaseSeconds=7", "sidecar.prefillTimeoutSeconds=5",
	"sidecar.firstEventTimeoutSeconds=5", "tracing.ratio=0"}

// imagesFile says where the chart's images are.
const imagesFile = "testdata/images.yaml"

// helmTimeout bounds the waiting of helm: a rollout of all pods takes a third of it on two cores.
const helmTimeout = "150s"

// release is one of the chart.
type release struct {
	c         *cluster
	name      string
	namespace string
	preset    string   // values file of the chart
	serves    string   // what clients call its model
	base      []string // what is set in it, as --set takes it
}

// release describes a release of the simulated preset. It is not installed by that.
func (c *cluster) release(name, namespace string, set ...string) *release {
	rel := &release{c: c, name: name, namespace: namespace, preset: chart + "/values-sim.yaml", serves: "tandem/sim", base: slices.Clone(set)}
	if c.local != nil {
		rel.base = append(rel.base, "tracing.endpoint=http://"+bridge.String()+":"+collectorPort)
	}
	return rel
}

// object returns the name of the release's object of a component: prefill, decode, epp, proxy.
func (rel *release) object(component string) string { return rel.name + "-tandem-" + component }

// components are the Deployments of a release.
var components = []string{"prefill", "decode", "epp", "proxy"}

// helm runs helm and gives what it printed.
func (c *cluster) helm(ctx context.Context, t *testing.T, args ...string) (string, error) {
	t.Helper()
	return c.command(ctx, "", tool(t, "helm"), args...)
}

// values returns the arguments that give helm the release's values, and more on top.
func (rel *release) values(set []string) []string {
	args := []string{"-f", imagesFile, "-f", rel.preset}
	if *valuesFile != "" {
		args = append(args, "-f", *valuesFile)
	}
	for _, s := range slices.Concat(rel.base, set) {
		args = append(args, "--set", s)
	}
	return args
}

// install installs the release and waits until it is ready. It gives the notes.
func (rel *release) install(t *testing.T, r *run, set ...string) string {
	t.Helper()
	args := append([]string{"install", rel.name, chart, "-n", rel.namespace, "--wait", "--timeout", helmTimeout}, rel.values(set)...)
	out, err := rel.c.helm(r.ctx, t, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, rel.state(r.ctx))
	}
	return out
}

// upgrade gives the release other values than its own, which set adds to, and waits for the rollout.
func (rel *release) upgrade(t *testing.T, r *run, set ...string) {
	t.Helper()
	if err := rel.tryUpgrade(t, r, helmTimeout, set...); err != nil {
		t.Fatalf("%v\n%s", err, rel.state(r.ctx))
	}
}

// tryUpgrade is an upgrade that may fail, or not be done in time.
func (rel *release) tryUpgrade(t *testing.T, r *run, timeout string, set ...string) error {
	t.Helper()
	args := append([]string{"upgrade", rel.name, chart, "-n", rel.namespace, "--wait", "--timeout", timeout}, rel.values(set)...)
	_, err := rel.c.helm(r.ctx, t, args...)
	return err
}

// uninstall takes the release away and waits until its pods are gone.
func (rel *release) uninstall(t *testing.T, r *run) {
	t.Helper()
	if _, err := rel.c.helm(r.ctx, t, "uninstall", rel.name, "-n", rel.namespace, "--wait", "--timeout", helmTimeout); err != nil {
		t.Fatalf("%v\n%s", err, rel.state(r.ctx))
	}
	rel.c.await(t, "the pods of "+rel.name+" are gone", time.Minute, func(ctx context.Context) (string, bool) {
		pods := rel.pods(ctx, t, "")
		return podNames(pods), len(pods) == 0
	})
}

// makeWhole has the release as it is described, whatever a failed scenario before has left.
func (rel *release) makeWhole(t *testing.T, r *run) {
	t.Helper()
	if rel.isWhole(r.ctx, t) {
		return
	}
	args := append([]string{"upgrade", "--install", rel.name, chart, "-n", rel.namespace, "--wait", "--timeout", helmTimeout}, rel.values(nil)...)
	if _, err := rel.c.helm(r.ctx, t, args...); err != nil {
		t.Fatalf("making %s whole: %v\n%s", rel.name, err, rel.state(r.ctx))
	}
}

// isWhole reports whether the release has its values and all its pods.
func (rel *release) isWhole(ctx context.Context, t *testing.T) bool {
	t.Helper()
	for _, component := range components {
		d, err := rel.c.admin.AppsV1().Deployments(rel.namespace).Get(ctx, rel.object(component), metav1.GetOptions{})
		if err != nil || !settled(d) || *d.Spec.Replicas != 2 {
			return false
		}
	}
	text, err := rel.c.helm(ctx, t, "get", "values", rel.name, "-n", rel.namespace, "-o", "json")
	if err != nil {
		return false
	}
	var values struct {
		EPP struct{ Threshold int }
	}
	return json.Unmarshal([]byte(text), &values) == nil && values.EPP.Threshold == threshold
}

// settled reports whether a Deployment has all the pods that it wants, of the newest template and no others.
func settled(d *appsv1.Deployment) bool {
	s, want := d.Status, *d.Spec.Replicas
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == want && s.AvailableReplicas == want && s.Replicas == want &&
		s.UnavailableReplicas == 0
}

// awaitSettled waits until a component's Deployment has all its pods, and no pod that leaves is left.
func (rel *release) awaitSettled(t *testing.T, component string, limit time.Duration) {
	t.Helper()
	rel.c.await(t, rel.object(component)+" has settled", limit, func(ctx context.Context) (string, bool) {
		d, err := rel.c.admin.AppsV1().Deployments(rel.namespace).Get(ctx, rel.object(component), metav1.GetOptions{})
		if err != nil {
			return err.Error(), false
		}
		pods := rel.pods(ctx, t, component)
		leaving := slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		return fmt.Sprintf("%+v; pods %s", d.Status, podNames(pods)), settled(d) && !leaving
	})
}

// scale sets a component's replicas by kubectl.
func (rel *release) scale(t *testing.T, component string, replicas int) {
	t.Helper()
	rel.c.mustKubectl(t, "scale", "deployment", rel.object(component), "-n", rel.namespace, fmt.Sprintf("--replicas=%d", replicas))
}
