package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNode has a node come, lose its API server for a while, lose its power, and come back.
func TestNode(t *testing.T) {
	b := newBench(t)
	t.Run("it is registered", func(t *testing.T) { registered(t, b) })
	t.Run("pods run on without the API server", func(t *testing.T) { withoutServer(t, b) })
	t.Run("a status that another client has changed is put right", func(t *testing.T) { putRight(t, b) })

	dir := t.TempDir()
	second := b.start(t, "node-2", netip.MustParseAddr("10.244.0.12"), dir)
	b.create(t, "victim", `{nodeSelector: {name: node-2}, terminationGracePeriodSeconds: 1, containers: [{name: a, command: [sleep, "1000"]}]}`)
	b.create(t, "stays", `{nodeSelector: {name: node-2}, tolerations: [{operator: Exists}], terminationGracePeriodSeconds: 1,
		containers: [{name: a, command: [sleep, "1000"]}]}`)
	t.Run("power loss", func(t *testing.T) { powerLoss(t, b, second) })
	t.Run("the power is back", func(t *testing.T) {
		b.node = b.start(t, "node-2", netip.MustParseAddr("10.244.0.12"), dir)
		powerBack(t, b)
	})
}

// isReady returns the status of a node's condition Ready.
func (b *bench) isReady(ctx context.Context, name string) (corev1.ConditionStatus, *corev1.Node, error) {
	node, err := b.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", nil, err
	}
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return "", node, errors.New("it has no condition Ready")
	}
	return node.Status.Conditions[i].Status, node, nil
}

func registered(t *testing.T, b *bench) {
	ready, node, err := b.isReady(t.Context(), "node-1")
	if err != nil || ready != corev1.ConditionTrue {
		t.Fatalf("ready: %s, %v", ready, err)
	}
	for label, want := range map[string]string{corev1.LabelHostname: "node-1", corev1.LabelOSStable: "linux", "name": "node-1"} {
		if got := node.Labels[label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
	if a := node.Status.Addresses; len(a) != 1 || a[0] != (corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.244.0.11"}) {
		t.Errorf("addresses: %v", a)
	}
	renewed := func(ctx context.Context) (time.Time, error) {
		lease, err := b.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, "node-1", metav1.GetOptions{})
		if err != nil {
			return time.Time{}, err
		}
		return lease.Spec.RenewTime.Time, nil
	}
	first, err := renewed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	until(t, func(ctx context.Context) error {
		now, err := renewed(ctx)
		if err == nil && !now.After(first) {
			err = errors.New("the lease is not renewed")
		}
		return err
	})
}

func withoutServer(t *testing.T, b *bench) {
	b.configMap(t, "alone", map[string]string{"word": "known"})
	b.create(t, "alone", `{terminationGracePeriodSeconds: 1, containers: [{name: a, command: [sleep, "1000"],
		envFrom: [{configMapRef: {name: alone}}]}]}`)
	b.shows(t, "alone", corev1.PodRunning, allReady)
	b.cluster.StopAPIServer()
	before, err := b.node.Container("default", "alone", "a")
	if err != nil {
		t.Fatal(err)
	}
	b.kill(t, "alone", "a")
	until(t, func(context.Context) error {
		now, err := b.node.Container("default", "alone", "a")
		if err == nil && now == before {
			err = errors.New("the container is the old one")
		}
		return err
	})
	if err := b.cluster.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.await(t, "alone", func(p *corev1.Pod) error {
		return errors.Join(want("restarts", statusOf(p, "a").RestartCount, int32(1)), want("conditions", conditionsOf(p), allReady))
	})
}

func putRight(t *testing.T, b *bench) {
	b.create(t, "wrong", `{terminationGracePeriodSeconds: 1, containers: [{name: a, command: [sleep, "1000"]}]}`)
	b.shows(t, "wrong", corev1.PodRunning, allReady)
	until(t, func(ctx context.Context) error {
		pods := b.client.CoreV1().Pods("default")
		pod, err := pods.Get(ctx, "wrong", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range pod.Status.Conditions {
			if pod.Status.Conditions[i].Type == corev1.PodReady {
				pod.Status.Conditions[i].Status = corev1.ConditionFalse
			}
		}
		_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	})
	b.shows(t, "wrong", corev1.PodRunning, allReady)
}

// powerLoss crashes a node: it is missed, and the pod of a Deployment comes up elsewhere, while those of the node stay listed.
func powerLoss(t *testing.T, b *bench, second *Node) {
	for _, name := range []string{"victim", "stays"} {
		b.shows(t, name, corev1.PodRunning, allReady)
	}
	c, err := second.Container("default", "stays", "a")
	if err != nil {
		t.Fatal(err)
	}
	second.Crash()
	select {
	case <-c.Done():
	default:
		t.Error("a container of the node runs without power")
	}
	until(t, func(ctx context.Context) error {
		ready, node, err := b.isReady(ctx, "node-2")
		if err == nil && (ready != corev1.ConditionUnknown || !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Key == corev1.TaintNodeUnreachable && taint.Effect == corev1.TaintEffectNoExecute
		})) {
			err = fmt.Errorf("its condition is %s and its taints are %v", ready, node.Spec.Taints)
		}
		return err
	})
	for name, deleted := range map[string]bool{"victim": true, "stays": false} {
		b.await(t, name, func(p *corev1.Pod) error {
			return errors.Join(want("is to be deleted", p.DeletionTimestamp != nil, deleted),
				want("state", stateOf(statusOf(p, "a").State), "running"), // as last heard
				want("not ready", strings.Contains(conditionsOf(p), "!Ready"), true))
		})
	}
}

func powerBack(t *testing.T, b *bench) {
	b.vanished(t, "victim")
	b.await(t, "stays", func(p *corev1.Pod) error {
		s := statusOf(p, "a")
		return errors.Join(want("conditions", conditionsOf(p), allReady), want("restarts", s.RestartCount, int32(1)),
			want("last state", stateOf(s.LastTerminationState), "terminated Unknown 255"))
	})
	until(t, func(ctx context.Context) error {
		ready, node, err := b.isReady(ctx, "node-2")
		if err == nil && (ready != corev1.ConditionTrue || len(node.Spec.Taints) > 0) {
			err = fmt.Errorf("its condition is %s and its taints are %v", ready, node.Spec.Taints)
		}
		return err
	})
}
