package controlplane_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/e2e/controlplane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPlane(t *testing.T) {
	plane, ctx := controlplane.Start(t), t.Context()
	admin := controlplane.Client(t, plane.Config())
	pods := admin.CoreV1().Pods("default")

	t.Run("objects outlive a restart of the API server", func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		plane.StopAPIServer()
		if _, err := pods.Get(ctx, "a", metav1.GetOptions{}); err == nil {
			t.Error("the API server answers although it was stopped")
		}
		if err := plane.StartAPIServer(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := pods.Get(ctx, "a", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("a service account may do what RBAC grants", func(t *testing.T) {
		config, _ := plane.As(ctx, "default", "reader")
		own := controlplane.Client(t, config)
		if _, err := own.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("listing pods without a role: %v, want forbidden", err)
		}
		for _, args := range []string{"create role reader --verb=list --resource=pods", "create rolebinding reader --role=reader --serviceaccount=default:reader"} {
			if _, err := plane.Kubectl(ctx, "", strings.Fields(args)...); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := own.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("pod security is enforced where a namespace asks for it", func(t *testing.T) {
		if _, err := plane.Kubectl(ctx, `
apiVersion: v1
kind: Namespace
metadata: {name: strict, labels: {pod-security.kubernetes.io/enforce: restricted}}`, "create", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		_, err := plane.Kubectl(ctx, "", "run", "root", "--image=i", "--namespace=strict")
		if err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
			t.Errorf("a pod that may run as root was taken: %v", err)
		}
	})
	t.Run("history is cut off", func(t *testing.T) {
		before, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := plane.Kubectl(ctx, "", "annotate", "pod", "a", "--overwrite", "n=1"); err != nil {
				t.Fatal(err)
			}
			if _, err := plane.Kubectl(ctx, "", "annotate", "pod", "a", "n-"); err != nil {
				t.Fatal(err)
			}
		}
		if err := plane.CompactEtcd(ctx); err != nil {
			t.Fatal(err)
		}
		plane.StopAPIServer()
		if err := plane.StartAPIServer(ctx); err != nil {
			t.Fatal(err)
		}
		watch, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: before.ResourceVersion})
		if err == nil {
			event := <-watch.ResultChan()
			watch.Stop()
			err = apierrors.FromObject(event.Object)
		}
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			t.Errorf("watching on from before the cut: %v, want expired", err)
		}
	})
}
