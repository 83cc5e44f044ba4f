package podwatch

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/controlplane"
)

const poolYAML = `
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llama}
spec:
  selector: {matchLabels: {app: engine}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: epp, port: {number: 9002}}
`

// roleYAML is what docs/llm-d.md says that the sidecar needs.
const roleYAML = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: sidecar}
rules:
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
- {apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: sidecar}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: sidecar}
subjects: [{kind: ServiceAccount, name: sidecar}]
`

const podYAML = `
apiVersion: v1
kind: Pod
metadata: {name: %NAME, labels: {app: engine}}
spec: {containers: [{name: engine, image: engine}]}
`

// TestAPIServer follows a pool of a real API server: without the right, with it, and over an outage.
func TestAPIServer(t *testing.T) {
	plane := controlplane.Start(t)
	plane.InstallCRDs("../../epp/kube/testdata/crds/inference.networking.k8s.io_*.yaml")
	kubectl := func(stdin string, args ...string) {
		t.Helper()
		if _, err := plane.Kubectl(t.Context(), stdin, args...); err != nil {
			t.Fatal(err)
		}
	}
	pod := func(name, address string) {
		t.Helper()
		kubectl(strings.ReplaceAll(podYAML, "%NAME", name), "apply", "-n", "serving", "-f", "-")
		kubectl("", "patch", "pod", name, "-n", "serving", "--subresource=status", "--type=merge",
			"-p", `{"status":{"phase":"Pending","podIP":"`+address+`","podIPs":[{"ip":"`+address+`"}]}}`)
	}
	kubectl("", "create", "namespace", "serving")
	config, _ := plane.As(t.Context(), "serving", "sidecar")
	api := API{URL: plane.URL(), Client: controlplane.HTTPClient(t, config), Token: func() (string, error) { return config.BearerToken, nil }}
	w := New(api, llama, slog.New(slog.DiscardHandler))
	w.pauses = [2]time.Duration{100 * time.Millisecond, time.Second}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	defer func() { stop(); <-ended }()

	until(t, "the right is missing", func() bool {
		err := w.Ready()
		return err != nil && strings.Contains(err.Error(), `cannot list resource "inferencepools"`)
	})
	kubectl(roleYAML, "apply", "-n", "serving", "-f", "-")
	kubectl(poolYAML, "apply", "-n", "serving", "-f", "-")
	until(t, "no pods are known", func() bool { return w.Ready() == nil })
	has := func(addr string) func() bool { return func() bool { return w.Has(netip.MustParseAddr(addr)) } }
	pod("a", "10.0.0.1")
	until(t, "a pod that is not ready", has("10.0.0.1"))
	plane.StopAPIServer()
	if err := plane.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	pod("b", "10.0.0.2")
	until(t, "a pod that came after an outage", has("10.0.0.2"))
	if !w.Has(netip.MustParseAddr("10.0.0.1")) {
		t.Error("the first pod was lost in the outage")
	}
	kubectl("", "delete", "pod", "a", "-n", "serving", "--grace-period=0", "--force")
	until(t, "a pod that was deleted", func() bool { return !has("10.0.0.1")() })
}

// until waits until a condition is met, which another process brings about.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	limit := time.NewTimer(2 * time.Minute)
	defer limit.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !met() {
		select {
		case <-again.C:
		case <-limit.C:
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}
