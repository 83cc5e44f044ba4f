package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/scale/leaving"
)

// markedObjects are three decode pods of a Deployment, and a picker's rights; %s is what more it may do with pods.
const markedObjects = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: decode}
spec:
  replicas: 3
  selector: {matchLabels: {app: engine}}
  template:
    metadata: {labels: {app: engine, llm-d.ai/role: decode}}
    spec: {containers: [{name: c, image: i}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: picker}
rules: [{apiGroups: [""], resources: [pods], verbs: [list, watch%s]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: picker}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: picker}
subjects: [{kind: ServiceAccount, name: picker, namespace: %s}]
`

// oneLess is a configuration whose limits want one of three decode pods to go.
const oneLess = `--config-text={apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig, plugins: [
	{type: decode-filter}, {type: active-request-scorer}, {type: replica-sizer, parameters: {decode: {maxReplicas: 2}, prefill: {maxReplicas: 0}}}],
	schedulingProfiles: [{name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}]}]}`

// TestChosenPodGoes: when a Deployment becomes smaller, Kubernetes' own controller deletes the pod that the picker has chosen. Without the picker's
// right to annotate pods it deletes another one.
func TestChosenPodGoes(t *testing.T) {
	c := startCluster(t)
	c.startAutoscaler(t)
	for _, test := range []struct {
		name, namespace, rights string
		chosen                  bool
	}{
		{"with the right to patch pods", "may-patch", ", patch", true},
		{"without", "may-not", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			oldest := c.startEngines(t, test.namespace, test.rights)
			_, kubeconfig := c.As(t.Context(), test.namespace, "picker")
			s := serveWith(t, nil, "--secure-serving=false", "--drain-timeout=1ms", "--kubeconfig="+kubeconfig, "--pool-namespace="+test.namespace,
				"--endpoint-selector=app=engine", "--endpoint-target-ports=8000", "--mark-pods-to-go", oneLess)
			s.keepsBusy(t, 12, "10.0.0.1:8000")
			if test.chosen {
				c.awaitPods(t, test.namespace, "the annotation", func(pods []corev1.Pod) bool {
					for i := range pods {
						if has := pods[i].Annotations[corev1.PodDeletionCost] == leaving.Cost; has != (pods[i].Name == oldest) {
							return false
						}
					}
					return true
				})
			} else {
				c.awaitPods(t, test.namespace, "the refusal to be logged", func([]corev1.Pod) bool {
					return strings.Contains(s.stderr.String(), "needs the right to patch pods")
				})
			}
			_, err := c.Kubectl(t.Context(), "", "scale", "deployment/decode", "--replicas=2", "-n", test.namespace)
			must(t, err)
			left := c.awaitPods(t, test.namespace, "a pod to go", func(pods []corev1.Pod) bool { return len(pods) == 2 })
			went := !slices.ContainsFunc(left, func(p corev1.Pod) bool { return p.Name == oldest })
			if went != test.chosen {
				t.Errorf("the pod without requests went: %v, want %v", went, test.chosen)
			}
		})
	}
}

// startEngines makes three decode pods Ready, and returns the name of the one that has been for the longest, whose address is 10.0.0.1. All else being
// equal, Kubernetes deletes the pod that has been Ready for the shortest time.
func (c *cluster) startEngines(t *testing.T, namespace, rights string) (oldest string) {
	t.Helper()
	_, err := c.Kubectl(t.Context(), "", "create", "namespace", namespace)
	must(t, err)
	_, err = c.Kubectl(t.Context(), fmt.Sprintf(markedObjects, rights, namespace), "apply", "-n", namespace, "-f", "-")
	must(t, err)
	pods := c.awaitPods(t, namespace, "three pods", func(pods []corev1.Pod) bool { return len(pods) == 3 })
	for i := range pods {
		p, ip := &pods[i], fmt.Sprintf("10.0.0.%d", i+1)
		since := metav1.NewTime(time.Now().Add(-time.Hour >> (3 * i)))
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: since}}}
		_, err := c.admin.CoreV1().Pods(namespace).UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
		must(t, err)
	}
	return pods[0].Name
}

// awaitPods waits until the pods that are not being deleted fit.
func (c *cluster) awaitPods(t *testing.T, namespace, what string, fit func([]corev1.Pod) bool) []corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		all, err := c.admin.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=engine"})
		must(t, err)
		pods := slices.DeleteFunc(all.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		if fit(pods) {
			return pods
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			about, _ := c.Kubectl(t.Context(), "", "get", "pods,events", "-n", namespace, "-o", "yaml")
			t.Fatalf("waited in vain for %s; %s", what, about)
		}
	}
}

// keepsBusy sends requests, and keeps all of them open until the test ends but those of one endpoint.
func (s *served) keepsBusy(t *testing.T, n int, idle string) {
	t.Helper()
	conn, err := client.Dial(client.Options{Addresses: []string{s.addresses["extproc"]}, Plaintext: true})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	for range n {
		stream, err := conn.Open(t.Context(), client.Duplex())
		must(t, err)
		must(t, stream.RequestHeaders(client.RequestHead{Method: "POST", Path: "/v1/completions", Header: http.Header{}}, false))
		must(t, stream.RequestBody([]byte(`{"model":"m","prompt":"hello"}`), true))
		at := ""
		for !stream.RequestDone() {
			answer, err := stream.Recv()
			must(t, err)
			at += answer.Endpoints
		}
		if at == "" {
			t.Fatalf("no endpoint was picked; %s", &s.stderr)
		}
		if strings.HasPrefix(at, idle) {
			defer stream.Close()
		} else {
			t.Cleanup(stream.Close)
		}
	}
}
