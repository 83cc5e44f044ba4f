package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-serving/tandem/epp/extproc/client"
)

// scaledObjects are the Deployments of both roles with their autoscalers, and the picker's port as the server of external metrics: a
// Service without pods stands for this process.
const scaledObjects = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template: {metadata: {labels: {app: %[1]s}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: %[1]s}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: %[1]s}
  maxReplicas: 9
  metrics:
  - type: External
    external:
      metric: {name: tandem_desired_replicas, selector: {matchLabels: {role: %[1]s}}}
      target: {type: AverageValue, averageValue: "1"}
`

const externalMetrics = `
apiVersion: v1
kind: Service
metadata: {name: picker}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {namespace: default, name: picker, port: %s}
`

// startAutoscaler runs Kubernetes' own autoscaler, and the controllers that it needs, until the test ends.
func (c *cluster) startAutoscaler(t *testing.T) {
	t.Helper()
	c.StartControllers(t, "--controllers=deployment-controller,replicaset-controller,horizontal-pod-autoscaler-controller",
		"--horizontal-pod-autoscaler-sync-period=1s")
}

var roles = []string{"prefill", "decode"}

// replicas returns how many replicas the autoscalers have given the Deployments.
func (c *cluster) replicas(t *testing.T) map[string]int {
	t.Helper()
	are := map[string]int{}
	for _, role := range roles {
		d, err := c.admin.AppsV1().Deployments("default").Get(t.Context(), role, metav1.GetOptions{})
		must(t, err)
		are[role] = int(*d.Spec.Replicas)
	}
	return are
}

// sends sends requests with prompts that differ, and returns their streams.
func (s *served) sends(t *testing.T, n, words int, mode string) (streams []*client.Stream) {
	t.Helper()
	conn, err := client.Dial(client.Options{Addresses: []string{s.addresses["extproc"]}, Plaintext: true})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	for i := range n {
		stream, err := conn.Open(t.Context(), client.Duplex())
		must(t, err)
		must(t, stream.RequestHeaders(client.RequestHead{Method: "POST", Path: "/v1/completions", Header: http.Header{"X-Tandem-Pd": {mode}}}, false))
		must(t, stream.RequestBody([]byte(`{"model":"m","prompt":"`+strings.Repeat(strconv.Itoa(i)+mode+" ", words)+`"}`), true))
		for !stream.RequestDone() {
			_, err = stream.Recv()
			must(t, err)
		}
		streams = append(streams, stream)
	}
	return streams
}

// TestHPAScalesRolesApart: Kubernetes' autoscaler reads sizes through the API server. A burst of prompts scales prefill only, and answers that
// take long scale decode only.
func TestHPAScalesRolesApart(t *testing.T) {
	c := startCluster(t)
	c.startAutoscaler(t)
	for _, test := range []struct {
		name, grows, stays string
		requests           int
		words              int
		mode               string
		answered           bool // at once
	}{
		{"burst of prompts", "prefill", "decode", 400, 2000, "force", true},
		{"long answers", "decode", "prefill", 600, 10, "bypass", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, "--secure-serving=false", "--drain-timeout=1ms", "--external-metrics-address=127.0.0.1:0", `--config-text={apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig, plugins: [
				{type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}, {type: always-disagg-pd-decider}, {type: decode-filter}, {type: prefill-filter},
				{type: active-request-scorer}, {type: replica-sizer, parameters: {decode: {maxReplicas: 9}, prefill: {maxReplicas: 9}}}],
				schedulingProfiles: [{name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}]},
				{name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: active-request-scorer}]}]}`)
			c.applyAutoscalers(t, s)
			c.awaitReplicas(t, "the autoscalers to read sizes", func(is map[string]int) bool { return is["prefill"] == 1 && is["decode"] == 1 })
			streams := s.sends(t, test.requests, test.words, test.mode)
			end := func() {
				for _, stream := range streams {
					stream.Close()
				}
				streams = nil
			}
			defer end()
			if test.answered {
				end()
			}
			c.awaitReplicas(t, test.grows+" to grow", func(is map[string]int) bool {
				if is[test.stays] != 1 {
					t.Fatalf("%+v: %s does not stay", is, test.stays)
				}
				return is[test.grows] > 1
			})
			t.Logf("%s: %v replicas", test.name, c.replicas(t))
			for _, kinds := range []string{"hpa", "deployment"} {
				_, err := c.Kubectl(t.Context(), "", append([]string{"delete", kinds}, roles...)...)
				must(t, err)
			}
		})
	}
}

// applyAutoscalers makes the Deployments, their autoscalers, and a picker the server of external metrics.
func (c *cluster) applyAutoscalers(t *testing.T, s *served) {
	t.Helper()
	_, port, err := net.SplitHostPort(s.addresses["external-metrics"])
	must(t, err)
	objects := fmt.Sprintf(externalMetrics, port)
	for _, role := range roles {
		objects += "---" + fmt.Sprintf(scaledObjects, role)
	}
	_, err = c.Kubectl(t.Context(), objects, "apply", "-f", "-")
	must(t, err)
}

// awaitReplicas waits until the autoscalers have read their metrics, and the replicas of the Deployments fit.
func (c *cluster) awaitReplicas(t *testing.T, what string, fit func(map[string]int) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		all, err := c.admin.AutoscalingV2().HorizontalPodAutoscalers("default").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		read := 0
		for i := range all.Items {
			read += min(1, len(all.Items[i].Status.CurrentMetrics))
		}
		if is := c.replicas(t); read == len(roles) && fit(is) {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			events, _ := c.Kubectl(t.Context(), "", "get", "events,hpa,apiservices")
			t.Fatalf("waited in vain for %s: %v replicas; %s", what, c.replicas(t), events)
		}
	}
}
