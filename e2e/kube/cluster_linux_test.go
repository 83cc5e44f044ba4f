package kube_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/tandem-serving/tandem/e2e/controlplane"
	"github.com/tandem-serving/tandem/e2e/kube"
)

// patience bounds the wait for what a cluster does within seconds, on a machine with a lot else to do: clients of an API server
// that was away for long try it every 30 s.
const patience = 2 * time.Minute

// await asks until there is no error any more.
func await(t *testing.T, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for err := check(ctx); err != nil; err = check(ctx) {
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

// kubectl runs kubectl and returns its output.
func kubectl(t *testing.T, cluster *kube.Cluster, stdin, args string) string {
	t.Helper()
	out, err := cluster.Kubectl(t.Context(), stdin, strings.Fields(args)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// addNode makes a node that says once that it is well.
func addNode(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := beat(t.Context(), client, name); err != nil {
		t.Fatal(err)
	}
}

// beat says that a node is well, as a kubelet does again and again.
func beat(ctx context.Context, client kubernetes.Interface, name string) error {
	now := time.Now().UTC().Format(time.RFC3339)
	patch := fmt.Sprintf(`{"status":{"allocatable":{"cpu":"4","pods":"10"},
		"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%q,"lastTransitionTime":%[1]q}]}}`, now)
	_, err := client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

func TestCluster(t *testing.T) {
	cluster := kube.StartCluster(t)
	client := controlplane.Client(t, cluster.Config())
	pods := client.CoreV1().Pods("default")

	addNode(t, client, "by-hand")
	kubectl(t, cluster, "", "create deployment web --image=i --replicas=2")
	bound := func(want int) {
		t.Helper()
		await(t, func(ctx context.Context) error {
			if err := beat(ctx, client, "by-hand"); err != nil {
				return err
			}
			list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil {
				return err
			}
			there := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != "by-hand" })
			if len(there) != want {
				return fmt.Errorf("%d of %d pods are bound to the node, want %d", len(there), len(list.Items), want)
			}
			return nil
		})
	}

	t.Run("a Deployment makes pods, and they are bound to a node", func(t *testing.T) { bound(2) })
	t.Run("a node without heartbeats loses its pods", func(t *testing.T) { evicted(t, client) })
	t.Run("a pod has the token and the root certificate of its account", func(t *testing.T) { mounted(t, cluster, client) })
	t.Run("pod security refuses what a namespace does not want", func(t *testing.T) { refused(t, cluster) })
	t.Run("all goes on when the API server is back", func(t *testing.T) {
		cluster.StopAPIServer()
		if err := cluster.StartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		kubectl(t, cluster, "", "create deployment later --image=i")
		await(t, func(ctx context.Context) error {
			list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=later"})
			if err == nil && len(list.Items) != 1 {
				err = fmt.Errorf("%d pods, want 1", len(list.Items))
			}
			return err
		})
	})
	t.Run("a namespace goes with all that is in it", func(t *testing.T) {
		kubectl(t, cluster, "", "create namespace gone")
		kubectl(t, cluster, "", "create configmap a --namespace=gone")
		kubectl(t, cluster, "", "delete namespace gone --timeout=2m")
		if _, err := client.CoreV1().Namespaces().Get(t.Context(), "gone", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%v, want not found", err)
		}
	})
}

// evicted waits until the node counts as unreachable and its pods have to go. That there is another one which is well is of
// importance: when all are gone it is taken for a fault of the network, and pods stay.
func evicted(t *testing.T, client kubernetes.Interface) {
	addNode(t, client, "well")
	await(t, func(ctx context.Context) error {
		if err := beat(ctx, client, "well"); err != nil {
			return err
		}
		list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=by-hand"})
		if err != nil {
			return err
		}
		for _, p := range list.Items {
			if p.DeletionTimestamp == nil {
				return errors.New("pod " + p.Name + " stays on the node")
			}
		}
		return nil
	})
	for name, want := range map[string]bool{"by-hand": true, "well": false} {
		node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		unreachable := func(taint corev1.Taint) bool {
			return taint.Key == corev1.TaintNodeUnreachable && taint.Effect == corev1.TaintEffectNoExecute
		}
		if slices.ContainsFunc(node.Spec.Taints, unreachable) != want {
			t.Errorf("taints of node %s: %v", name, node.Spec.Taints)
		}
	}
}

func mounted(t *testing.T, cluster *kube.Cluster, client kubernetes.Interface) {
	kubectl(t, cluster, "", "run alone --image=i")
	pod, err := client.CoreV1().Pods("default").Get(t.Context(), "alone", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var sources []string
	for _, v := range pod.Spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			switch {
			case s.ServiceAccountToken != nil:
				sources = append(sources, s.ServiceAccountToken.Path)
			case s.ConfigMap != nil:
				sources = append(sources, s.ConfigMap.Name)
			}
		}
	}
	if want := []string{"token", "kube-root-ca.crt"}; pod.Spec.ServiceAccountName != "default" || !slices.Equal(sources, want) {
		t.Errorf("account %q, sources %v, want %v", pod.Spec.ServiceAccountName, sources, want)
	}
	for _, toleration := range pod.Spec.Tolerations {
		if s := toleration.TolerationSeconds; s == nil || time.Duration(*s)*time.Second != kube.Toleration {
			t.Errorf("toleration %v, want %v", toleration, kube.Toleration)
		}
	}
	if len(pod.Spec.Tolerations) != 2 {
		t.Errorf("tolerations %v, want of nodes that are not ready and of unreachable ones", pod.Spec.Tolerations)
	}
}

func refused(t *testing.T, cluster *kube.Cluster) {
	const privileged = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"root"},
		"spec":{"containers":[{"name":"c","image":"i","securityContext":{"privileged":true}}]}}`
	kubectl(t, cluster, "", "create namespace strict")
	kubectl(t, cluster, "", "label namespace strict pod-security.kubernetes.io/enforce=restricted")
	await(t, func(ctx context.Context) error { // admission sees namespaces by a watch
		_, err := cluster.Kubectl(ctx, privileged, "create", "--dry-run=server", "--namespace=strict", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), `violates PodSecurity "restricted:latest": privileged`) {
			return fmt.Errorf("a privileged pod: %w", err)
		}
		return nil
	})
	kubectl(t, cluster, privileged, "create -f -")
}
