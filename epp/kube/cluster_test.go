package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tandem-serving/tandem/epp"
)

const poolYAML = `
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: p}
spec:
  selector: {matchLabels: {app: engine}}
  targetPorts: [{number: 8000}]
`

const rewriteYAML = `
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: %s}
spec: {poolRef: {group: inference.networking.k8s.io, name: p}, rules: [{targets: [%s]}]}
`

const variantYAML = `
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: %s}
spec: {modelID: llama, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: %s}, variantCost: "%s"}
`

const deploymentYAML = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %s}
spec:
  selector: {matchLabels: {set: %[1]s}}
  template:
    metadata: {labels: {app: engine, set: %[1]s}}
    spec: {containers: [{name: engine, image: engine}]}
`

const objectiveYAML = `
apiVersion: %s/v1alpha2
kind: InferenceObjective
metadata: {name: %s}
spec: {priority: %d, poolRef: {name: %s}}
`

// TestCluster does to one real API server what clusters go through. Its parts build on one another only where they say so.
func TestCluster(t *testing.T) {
	c := startCluster(t)
	t.Run("without CRDs", c.withoutCRDs)
	t.Run("CRDs come later", c.crdsComeLater) // and stay
	t.Run("a pool", c.aPool)
	t.Run("objects that the API server refuses", c.refusals)
	t.Run("a pod's way", c.aPodsWay)
	t.Run("the selector changes", c.selectorChanges)
	t.Run("a pool that is deleted", c.deletedPool)
	t.Run("a pool that cannot be used", c.unusablePool)
	t.Run("the older group", c.olderGroup)
	t.Run("policy", c.policy)
	t.Run("the older group's policy", c.olderPolicy)
	t.Run("churn", c.churn)
	t.Run("what is cached", c.cached)
	t.Run("deletion costs", c.deletionCosts)
	t.Run("variants", c.variants)
	t.Run("variants that may not be read", c.deniedVariants)
	t.Run("grants", c.grants)
	t.Run("outages", c.outages)
}

// withoutCRDs shows that selector mode needs no CRDs and no grant but for pods, and that pool mode says what is missing.
func (c *cluster) withoutCRDs(t *testing.T) {
	config := c.namespace(t, "bare")
	c.kubectl(t, `[{"op": "replace", "path": "/rules", "value": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]}]`,
		"patch", "role", "picker", "-n", "bare", "--type=json", "--patch-file=/dev/stdin")
	c.ready(t, "bare", "a", "10.0.0.1", labeled("tier", "gold"))
	c.ready(t, "bare", "other", "10.0.0.9", labeled("app", "web"))
	selector, err := labels.Parse("app in (engine, model), tier!=silver")
	if err != nil {
		t.Fatal(err)
	}
	p := follow(t, Options{Namespace: "bare", Selector: selector, TargetPorts: []int{8000, 8001}, Config: config})
	p.endpoints(t, "a-rank-0 10.0.0.1:8000", "a-rank-1 10.0.0.1:8001")
	c.ready(t, "bare", "b", "10.0.0.2", labeled("app", "model"))
	p.endpoints(t, "a-rank-0 10.0.0.1:8000", "a-rank-1 10.0.0.1:8001", "b-rank-0 10.0.0.2:8000", "b-rank-1 10.0.0.2:8001")
	p.trouble(t)
	p.sync(t)
	if p.Policy() != nil {
		t.Errorf("policy %v", p.Policy())
	}
	p.halt()

	denied := follow(t, Options{Namespace: "bare", Pool: "p", Config: config})
	denied.trouble(t, `inferencepools.inference.networking.k8s.io may not be read`, `cannot list resource "inferencepools"`,
		"grant the verbs list and watch on inferencepools.inference.networking.k8s.io in namespace bare")
	denied.halt()
	denied.unmet(t)
}

// crdsComeLater begins without any, and has them appear one by one.
func (c *cluster) crdsComeLater(t *testing.T) {
	config := c.namespace(t, "later")
	c.ready(t, "later", "a", "10.0.0.1")
	p := follow(t, Options{Namespace: "later", Pool: "p", Config: config})
	p.trouble(t, "the cluster does not have the kind InferencePool of inference.networking.k8s.io/v1: install its CRD")
	const crds = "testdata/crds/"
	c.InstallCRDs(crds + "inference.networking.k8s.io_*.yaml")
	p.trouble(t, "there is no InferencePool later/p in the group inference.networking.k8s.io: create it, or correct --pool-name")
	p.unmet(t)
	c.apply(t, "later", poolYAML)
	p.endpoints(t, "a-rank-0 10.0.0.1:8000")
	p.trouble(t)
	p.sync(t)
	objective := func(group string, priority int) string {
		return fmt.Sprintf(objectiveYAML, group, "chat", priority, "p, group: "+PoolGroup)
	}
	priority := func() int { n, _ := p.Policy().Priority("chat"); return n }
	c.InstallCRDs(crds + "inference.networking.x-k8s.io_*.yaml")
	c.apply(t, "later", objective(AlphaGroup, 1))
	p.until(t, "the older group's objective", func() bool { return priority() == 1 })
	c.InstallCRDs(crds + "llm-d.ai_*.yaml")
	c.apply(t, "later", objective(PolicyGroup, 2))
	p.until(t, "the newer group's objective", func() bool { return priority() == 2 })
	p.trouble(t, "InferenceObjective of inference.networking.x-k8s.io are not used, since the cluster has the kind in llm-d.ai too:",
		" move them there: chat")
	c.kubectl(t, "", "delete", "inferenceobjective.inference.networking.x-k8s.io", "chat", "-n", "later")
	p.trouble(t)
}

// aPool shows the objects of users' guides at work.
func (c *cluster) aPool(t *testing.T) {
	config := c.namespace(t, "guide")
	for _, file := range []string{"pool.yaml", "objectives-new.yaml", "rewrites-new.yaml"} {
		c.apply(t, "guide", strings.Join(documents(t, "objects/"+file), "\n---\n"))
	}
	member := func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "vllm-llama3-8b-instruct", "llm-d.ai/inference-serving": "true", "llm-d.ai/role": "prefill",
			"llm-d.ai/engine-type": "vllm"}
	}
	c.ready(t, "guide", "four", "10.0.0.4", member)
	c.ready(t, "guide", "six", "fd00::6", member, annotated(activePorts, "8001"))
	p := follow(t, Options{Namespace: "guide", Pool: "vllm-llama3-8b-instruct", Config: config})
	p.endpoints(t, "four-rank-0 10.0.0.4:8000", "four-rank-1 10.0.0.4:8001", "six-rank-1 [fd00::6]:8001")
	p.trouble(t)
	if s := p.last[0]; s.Labels["llm-d.ai/role"] != "prefill" || s.Labels["llm-d.ai/engine-type"] != "vllm" || s.Namespace != "guide" {
		t.Errorf("endpoint %+v", s)
	}
	if n, _ := p.Policy().Priority("chat"); n != 10 {
		t.Errorf("priority of chat: %d", n)
	}
	if model, _, _ := p.Policy().Target("x", rand.New(rand.NewPCG(1, 2))); model != "llama-base" {
		t.Errorf("x becomes %q", model)
	}
}

// refusals holds the CRDs of the tests to what the real ones refuse, so that the tests mean something.
func (c *cluster) refusals(t *testing.T) {
	c.kubectl(t, "", "create", "namespace", "refused")
	change := func(from, to string) string { return strings.Replace(poolYAML, from, to, 1) }
	cases := []struct{ name, object, want string }{
		{"nine ports", change("[{number: 8000}]", "["+strings.Repeat("{number: 1},", 9)+"]"), "at most 8"},
		{"a port twice", change("{number: 8000}", "{number: 1},{number: 1}"), "port numbers must differ"},
		{"port 0", change("8000", "0"), "greater than or equal to 1"},
		{"no ports", change("[{number: 8000}]", "[]"), "at least 1"},
		{"another protocol", change("targetPorts", "appProtocol: grpc\n  targetPorts"), "Unsupported value"},
		{"a label that is none", change("engine", "'a b'"), "should match"},
		{"a picker without a port", change("targetPorts", "endpointPickerRef: {name: e}\n  targetPorts"), "port is required"},
		{"weight 0", fmt.Sprintf(rewriteYAML, "r", "{modelRewrite: m, weight: 0}"), "greater than or equal to 1"},
		{"no targets", fmt.Sprintf(rewriteYAML, "r", ""), "at least 1"},
	}
	for _, r := range cases {
		t.Run(r.name, func(t *testing.T) {
			_, err := c.Kubectl(t.Context(), r.object, "create", "-n", "refused", "-f", "-")
			if err == nil || !strings.Contains(err.Error(), r.want) {
				t.Errorf("got %v, want %q", err, r.want)
			}
		})
	}
}

func (c *cluster) aPodsWay(t *testing.T) {
	config := c.namespace(t, "way")
	c.apply(t, "way", poolYAML)
	p := follow(t, Options{Namespace: "way", Pool: "p", Config: config})
	p.endpoints(t)
	c.ready(t, "way", "a", "10.0.0.1")
	p.endpoints(t, "a-rank-0 10.0.0.1:8000")
	c.status(t, "way", "a", "10.0.0.1", corev1.ConditionFalse)
	p.endpoints(t)
	c.status(t, "way", "a", "10.0.0.2", corev1.ConditionTrue)
	p.endpoints(t, "a-rank-0 10.0.0.2:8000")
	c.kubectl(t, "", "label", "pod", "a", "-n", "way", "llm-d.ai/role=prefill")
	p.until(t, "the role", func() bool { return p.last[0].Labels["llm-d.ai/role"] == "prefill" })
	c.kubectl(t, "", "annotate", "pod", "a", "-n", "way", activePorts+"=9")
	p.endpoints(t)
	p.trouble(t, `annotation llm-d.ai/active-ports of pod way/a names "9", want ports of the pool (8000)`)
	c.kubectl(t, "", "annotate", "pod", "a", "-n", "way", activePorts+"-")
	p.endpoints(t, "a-rank-0 10.0.0.2:8000")
	p.trouble(t)
	c.kubectl(t, "", "label", "pod", "a", "-n", "way", "app=other", "--overwrite")
	p.endpoints(t)
	c.kubectl(t, "", "label", "pod", "a", "-n", "way", "app=engine", "--overwrite")
	p.endpoints(t, "a-rank-0 10.0.0.2:8000")
	c.terminate(t, "way", "a")
	p.endpoints(t)
	c.kubectl(t, `{"metadata": {"finalizers": null}}`, "patch", "pod", "a", "-n", "way", "--type=merge", "--patch-file=/dev/stdin")
	c.ready(t, "way", "a", "10.0.0.3") // as a StatefulSet has it
	p.endpoints(t, "a-rank-0 10.0.0.3:8000")
}

// terminate begins to delete a pod, which a kubelet would end after its grace.
func (c *cluster) terminate(t *testing.T, namespace, name string) {
	t.Helper()
	// A pod that no node has goes at once: a finalizer has it stay.
	c.kubectl(t, `{"metadata": {"finalizers": ["test.tandem/stay"]}}`,
		"patch", "pod", name, "-n", namespace, "--type=merge", "--patch-file=/dev/stdin")
	if err := c.admin.CoreV1().Pods(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) selectorChanges(t *testing.T) {
	config := c.namespace(t, "choice")
	c.apply(t, "choice", poolYAML)
	c.ready(t, "choice", "a", "10.0.0.1")
	c.ready(t, "choice", "b", "10.0.0.2", labeled("app", "other"))
	p := follow(t, Options{Namespace: "choice", Pool: "p", Config: config})
	p.endpoints(t, "a-rank-0 10.0.0.1:8000")
	before := p.count
	c.apply(t, "choice", strings.Replace(poolYAML, "engine", "other", 1))
	p.endpoints(t, "b-rank-0 10.0.0.2:8000")
	if p.count != before+1 {
		t.Errorf("the pool was applied %d times on the way, want once: it never was empty", p.count-before)
	}
	c.apply(t, "choice", strings.Replace(poolYAML, "8000", "8001", 1))
	p.endpoints(t, "a-rank-0 10.0.0.1:8001")
	c.apply(t, "choice", strings.Replace(poolYAML, "{number: 8000}", "{number: 8001}, {number: 8000}", 1))
	p.endpoints(t, "a-rank-0 10.0.0.1:8001", "a-rank-1 10.0.0.1:8000")
	c.ready(t, "choice", "c", "10.0.0.3", labeled("app", "other"))
	c.ready(t, "choice", "d", "10.0.0.4")
	p.endpoints(t, "a-rank-0 10.0.0.1:8001", "a-rank-1 10.0.0.1:8000", "d-rank-0 10.0.0.4:8001", "d-rank-1 10.0.0.4:8000")
}

func (c *cluster) deletedPool(t *testing.T) {
	config := c.namespace(t, "deleted")
	c.apply(t, "deleted", poolYAML)
	c.ready(t, "deleted", "a", "10.0.0.1")
	p := follow(t, Options{Namespace: "deleted", Pool: "p", Config: config})
	p.endpoints(t, "a-rank-0 10.0.0.1:8000")
	for range 3 {
		c.kubectl(t, "", "delete", "inferencepool.inference.networking.k8s.io", "p", "-n", "deleted")
		p.endpoints(t)
		p.trouble(t, "InferencePool deleted/p was deleted: there are no endpoints until it is there again")
		c.apply(t, "deleted", poolYAML)
		p.endpoints(t, "a-rank-0 10.0.0.1:8000")
		p.trouble(t)
	}
}

func (c *cluster) unusablePool(t *testing.T) {
	config := c.namespace(t, "odd")
	c.apply(t, "odd", poolYAML)
	c.ready(t, "odd", "a", "10.0.0.1")
	p := follow(t, Options{Namespace: "odd", Pool: "p", Config: config})
	p.endpoints(t, "a-rank-0 10.0.0.1:8000")
	c.kubectl(t, `[{"op": "replace", "path": "/spec/selector/matchLabels", "value": {}}]`,
		"patch", "inferencepool.inference.networking.k8s.io", "p", "-n", "odd", "--type=json", "--patch-file=/dev/stdin")
	p.trouble(t, "InferencePool odd/p cannot be used: its selector is empty and would take every pod of the namespace")
	c.ready(t, "odd", "b", "10.0.0.2")
	p.endpoints(t, "a-rank-0 10.0.0.1:8000", "b-rank-0 10.0.0.2:8000") // by the last good selector
	c.apply(t, "odd", strings.Replace(poolYAML, "targetPorts", "appProtocol: kubernetes.io/h2c\n  targetPorts", 1))
	p.trouble(t) // gateways speak it to the pods; a picker routes them the same
	p.endpoints(t, "a-rank-0 10.0.0.1:8000", "b-rank-0 10.0.0.2:8000")
}

func (c *cluster) olderGroup(t *testing.T) {
	config := c.namespace(t, "older")
	c.apply(t, "older", documents(t, "objects/pool-alpha.yaml")[0])
	c.ready(t, "older", "a", "10.0.0.1", labeled("llm-d.ai/inferenceServing", "true"), labeled("llm-d.ai/model", "ms-sim"))
	p := follow(t, Options{Namespace: "older", Pool: "gaie-sim", Group: AlphaGroup, Config: config})
	p.endpoints(t, "a-rank-0 10.0.0.1:8000")
	c.kubectl(t, "", "delete", "inferencepool.inference.networking.x-k8s.io", "gaie-sim", "-n", "older")
	p.endpoints(t)
}

func (c *cluster) policy(t *testing.T) {
	config := c.namespace(t, "policy")
	c.apply(t, "policy", poolYAML)
	p := follow(t, Options{Namespace: "policy", Pool: "p", Config: config})
	p.endpoints(t)
	priority := func(name string) (int, bool) { return p.Policy().Priority(name) }
	c.apply(t, "policy", fmt.Sprintf(objectiveYAML, PolicyGroup, "chat", 3, "p")) // the CRD fills in a group without pools
	p.until(t, "the objective", func() bool { n, known := priority("chat"); return n == 3 && known })
	c.apply(t, "policy", fmt.Sprintf(objectiveYAML, PolicyGroup, "foreign", 9, "q"))
	c.apply(t, "policy", fmt.Sprintf(objectiveYAML, PolicyGroup, "chat", 4, "p"))
	p.until(t, "the changed objective", func() bool { n, _ := priority("chat"); return n == 4 })
	if _, known := priority("foreign"); known {
		t.Error("another pool's objective is known")
	}
	rewritten := func() string { model, _, _ := p.Policy().Target("m", rand.New(rand.NewPCG(1, 2))); return model }
	c.apply(t, "policy", fmt.Sprintf(rewriteYAML, "bad", "{modelRewrite: a, weight: 1}, {modelRewrite: b}"))
	p.trouble(t, "InferenceModelRewrite policy/bad is left out: spec.rules[0].targets[1].weight must be there on all targets or on none")
	c.apply(t, "policy", fmt.Sprintf(rewriteYAML, "good", "{modelRewrite: a}"))
	p.until(t, "the rewrite", func() bool { return rewritten() == "a" })
	c.kubectl(t, "", "delete", "-n", "policy", "inferencemodelrewrites.llm-d.ai", "bad", "good")
	p.until(t, "no rewrite", func() bool { return rewritten() == "" })
	c.kubectl(t, "", "delete", "-n", "policy", "inferenceobjectives.llm-d.ai", "chat")
	p.until(t, "no objective", func() bool { _, known := priority("chat"); return !known })
	p.trouble(t)
}

// olderPolicy shows that a role which grants only the newer group is enough.
func (c *cluster) olderPolicy(t *testing.T) {
	config := c.namespace(t, "halfgranted")
	c.kubectl(t, `[{"op": "replace", "path": "/rules/2/apiGroups", "value": ["llm-d.ai"]}]`,
		"patch", "role", "picker", "-n", "halfgranted", "--type=json", "--patch-file=/dev/stdin")
	c.apply(t, "halfgranted", poolYAML)
	p := follow(t, Options{Namespace: "halfgranted", Pool: "p", Config: config})
	p.endpoints(t)
	p.trouble(t) // a group that the role does not grant is no trouble
	p.sync(t)
}

// churn has pods come and go as fast as the API server takes it.
func (c *cluster) churn(t *testing.T) {
	const writers, pods = 8, 25
	config := c.namespace(t, "churn")
	c.apply(t, "churn", poolYAML)
	p := follow(t, Options{Namespace: "churn", Pool: "p", Config: config})
	var work sync.WaitGroup
	for w := range writers {
		work.Go(func() {
			for i := range pods {
				name := fmt.Sprintf("pod-%d-%d", w, i)
				c.ready(t, "churn", name, fmt.Sprintf("10.1.%d.%d", w, i+1))
				if i%2 == 1 {
					c.remove(t, "churn", name)
				}
			}
		})
	}
	work.Wait()
	want := map[string]bool{}
	for w := range writers {
		for i := 0; i < pods; i += 2 {
			want[fmt.Sprintf("pod-%d-%d-rank-0 10.1.%d.%d:8000", w, i, w, i+1)] = true
		}
	}
	p.endpoints(t, slices.Sorted(maps.Keys(want))...)
	if changes := writers * pods * 3 / 2; p.count > changes {
		t.Errorf("applied %d times for %d changes", p.count, changes)
	}
	p.expectMetrics(t, map[string]float64{
		`tandem_kube_synced{}`:                       1,
		`tandem_kube_pods{state="serving"}`:          float64(len(want)),
		`tandem_kube_pods{state="waiting"}`:          0,
		`some tandem_kube_events_total{kind="pod"}`:  float64(len(want)),
		`some tandem_kube_events_total{kind="pool"}`: 1,
	})
}

// cached checks what the watch keeps of a namespace with many other objects.
func (c *cluster) cached(t *testing.T) {
	config := c.namespace(t, "big")
	c.apply(t, "big", poolYAML)
	c.apply(t, "big", strings.Replace(poolYAML, "name: p", "name: q", 1))
	c.ready(t, "big", "mine", "10.0.0.1", annotated("note", strings.Repeat("x", 10_000)))
	c.ready(t, "big", "other", "10.0.0.2", labeled("app", "web"))
	p := follow(t, Options{Namespace: "big", Pool: "p", Config: config})
	p.endpoints(t, "mine-rank-0 10.0.0.1:8000")
	p.expectMetrics(t, map[string]float64{
		`tandem_kube_events_total{kind="pod"}`:  1,
		`tandem_kube_events_total{kind="pool"}`: 1,
	})
	r := p.Watch.podSet.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := r.pods["mine"].pod
	if len(r.pods) != 1 || len(kept.Annotations)+len(kept.Spec.Containers)+len(kept.ManagedFields) > 0 {
		t.Errorf("kept: %+v", r.pods)
	}
}

// deletionCosts annotates a pod, and sees its annotation and that of others, which change no endpoint. Without the right to patch pods the error says so.
func (c *cluster) deletionCosts(t *testing.T) {
	config := c.namespace(t, "costs")
	c.ready(t, "costs", "a", "10.0.0.1", annotated("note", "stays"))
	c.ready(t, "costs", "b", "10.0.0.2", annotated(corev1.PodDeletionCost, "7"))
	p := follow(t, Options{Namespace: "costs", Selector: labels.SelectorFromSet(labels.Set{"app": "engine"}), TargetPorts: []int{8000}, Config: config})
	p.endpoints(t, "a-rank-0 10.0.0.1:8000", "b-rank-0 10.0.0.2:8000")
	if err := p.Watch.SetDeletionCost(t.Context(), "a", "-5"); !apierrors.IsForbidden(err) {
		t.Errorf("without the right: %v, want that it is forbidden", err)
	}
	c.kubectl(t, `[{"op": "replace", "path": "/rules/0/verbs", "value": ["list", "watch", "patch"]}]`,
		"patch", "role", "picker", "-n", "costs", "--type=json", "--patch-file=/dev/stdin")
	for _, step := range []struct {
		cost string
		want map[string]string
	}{{"-5", map[string]string{"a": "-5", "b": "7"}}, {"", map[string]string{"b": "7"}}} {
		// RBAC takes a moment to know the new right.
		p.until(t, fmt.Sprintf("the deletion costs %v", step.want), func() bool {
			err := p.Watch.SetDeletionCost(t.Context(), "a", step.cost)
			return err == nil && maps.Equal(p.Watch.DeletionCosts(), step.want)
		})
	}
	pod, err := c.admin.CoreV1().Pods("costs").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || pod.Annotations["note"] != "stays" {
		t.Errorf("%v, %v: another annotation is changed", pod.Annotations, err)
	}
}

// variants has Kubernetes' controller make the pods of Deployments, and an object tell their variant and cost: before the picker may know
// of the kind, when it is changed, and when it is gone.
func (c *cluster) variants(t *testing.T) {
	c.StartControllers(t, "--controllers=deployment-controller,replicaset-controller")
	config := c.namespace(t, "variants")
	c.apply(t, "variants", poolYAML)
	names := map[string]string{} // of Deployments' pods
	for i, name := range []string{"cheap", "dear"} {
		c.apply(t, "variants", fmt.Sprintf(deploymentYAML, name))
		pod := c.onlyPod(t, "variants", "set="+name)
		names[pod] = name
		c.status(t, "variants", pod, fmt.Sprintf("10.0.0.%d", i+1), corev1.ConditionTrue)
	}
	p := follow(t, Options{Namespace: "variants", Pool: "p", Config: config})
	variants := func(want ...string) {
		t.Helper()
		p.until(t, fmt.Sprintf("the variants %q", want), func() bool {
			var got []string
			for _, s := range p.last {
				got = append(got, strings.TrimSpace(names[s.Pod]+" "+s.Labels[epp.VariantLabel]+" "+s.Labels[epp.VariantCostLabel]))
			}
			slices.Sort(got)
			return slices.Equal(got, want)
		})
	}
	variants("cheap", "dear") // without the CRD
	p.trouble(t)
	c.InstallCRDs("testdata/crds/llmd.ai_*.yaml")
	c.apply(t, "variants", fmt.Sprintf(variantYAML, "l40s", "cheap", "1.5"))
	variants("cheap l40s 1.5", "dear")
	c.apply(t, "variants", fmt.Sprintf(variantYAML, "h100", "dear", "4"))
	variants("cheap l40s 1.5", "dear h100 4")
	c.apply(t, "variants", fmt.Sprintf(variantYAML, "l40s", "cheap", "2"))
	variants("cheap l40s 2", "dear h100 4")
	c.apply(t, "variants", fmt.Sprintf(variantYAML, "l40s", "cheap", strings.Repeat("9", 400))) // the CRD refuses what has other than digits
	variants("cheap l40s", "dear h100 4")
	p.trouble(t, `VariantAutoscaling variants/l40s has no cost: its spec.variantCost is "999`)
	c.apply(t, "variants", fmt.Sprintf(variantYAML, "l40s", "of-another-pool", strings.Repeat("9", 400)))
	variants("cheap", "dear h100 4")
	p.trouble(t)
	c.apply(t, "variants", fmt.Sprintf(variantYAML, "l40s", "dear", "2"))
	variants("cheap", "dear h100 4")
	p.trouble(t, "VariantAutoscaling variants/l40s is left out: h100 also has Deployment dear as its scaleTargetRef")
	c.kubectl(t, "", "delete", "-n", "variants", "variantautoscalings.llmd.ai", "h100")
	variants("cheap", "dear l40s 2")
	p.trouble(t)
	c.kubectl(t, "", "delete", "-n", "variants", "variantautoscalings.llmd.ai", "l40s")
	variants("cheap", "dear")
}

// onlyPod waits for the pod that labels select, and returns its name.
func (c *cluster) onlyPod(t *testing.T, namespace, selector string) string {
	t.Helper()
	c.kubectl(t, "", "wait", "--for=create", "pod", "-l", selector, "-n", namespace, "--timeout="+patience.String())
	return c.kubectl(t, "", "get", "pods", "-l", selector, "-n", namespace, "-o", "jsonpath={.items[0].metadata.name}")
}

// deniedVariants shows that a role of before, which does not grant the kind, is enough, and that the picker says so once.
func (c *cluster) deniedVariants(t *testing.T) {
	config := c.namespace(t, "novariants")
	c.kubectl(t, `[{"op": "remove", "path": "/rules/3"}]`,
		"patch", "role", "picker", "-n", "novariants", "--type=json", "--patch-file=/dev/stdin")
	c.apply(t, "novariants", poolYAML)
	yes := true
	c.ready(t, "novariants", "a-0", "10.0.0.1", func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "a", UID: "u", Controller: &yes}}
	})
	c.apply(t, "novariants", strings.Replace(fmt.Sprintf(variantYAML, "l40s", "a", "1"), "Deployment", "StatefulSet", 1))
	p := follow(t, Options{Namespace: "novariants", Pool: "p", Config: config})
	var lines []string
	p.heard = func(line string) {
		if strings.Contains(line, "VariantAutoscalings") {
			lines = append(lines, line)
		}
	}
	p.endpoints(t, "a-0-rank-0 10.0.0.1:8000")
	p.trouble(t)
	p.expectMetrics(t, map[string]float64{`tandem_kube_synced{}`: 1})
	if len(p.last[0].Labels[epp.VariantLabel]) > 0 {
		t.Errorf("labels %v", p.last[0].Labels)
	}
	c.kubectl(t, "", "apply", "-n", "novariants", "-f", "testdata/role.yaml")
	p.until(t, "the variant", func() bool { return p.last[0].Labels[epp.VariantLabel] == "l40s" })
	if want := "VariantAutoscalings are not read, so variants and their costs are those of pod labels: to have them read, grant the verbs" +
		" list and watch on variantautoscalings.llmd.ai namespace=novariants"; len(lines) != 1 || !strings.HasPrefix(lines[0], want) {
		t.Errorf("logged %q, want once %q", lines, want)
	}
}

// grants leaves out one verb after the other, and then grants it.
func (c *cluster) grants(t *testing.T) {
	for i, want := range [][]string{
		{`pods may not be read`, `cannot watch resource "pods"`, "grant the verbs list and watch on pods in namespace grants-0"},
		{`cannot watch resource "inferencepools"`, "grant the verbs list and watch on inferencepools.inference.networking.k8s.io"},
		{`cannot watch resource "inferenceobjectives" in API group "llm-d.ai"`, `cannot watch resource "inferencemodelrewrites"`},
	} {
		namespace := fmt.Sprintf("grants-%d", i)
		t.Run(want[0], func(t *testing.T) {
			config := c.namespace(t, namespace)
			c.kubectl(t, fmt.Sprintf(`[{"op": "replace", "path": "/rules/%d/verbs", "value": ["list"]}]`, i),
				"patch", "role", "picker", "-n", namespace, "--type=json", "--patch-file=/dev/stdin")
			c.apply(t, namespace, poolYAML)
			p := follow(t, Options{Namespace: namespace, Pool: "p", Config: config})
			p.trouble(t, want...)
			p.expectMetrics(t, map[string]float64{`tandem_kube_synced{}`: 0})
			c.kubectl(t, "", "apply", "-n", namespace, "-f", "testdata/role.yaml")
			p.trouble(t)
			p.endpoints(t)
			c.ready(t, namespace, "a", "10.0.0.1")
			p.endpoints(t, "a-rank-0 10.0.0.1:8000")
		})
	}
}

// outages removes the API server, the grants and the history while a watch runs, and restores them.
func (c *cluster) outages(t *testing.T) {
	config := c.namespace(t, "outage")
	c.apply(t, "outage", poolYAML)
	c.ready(t, "outage", "a", "10.0.0.1")
	c.ready(t, "outage", "b", "10.0.0.2")
	options := Options{Namespace: "outage", Pool: "p", Config: config}
	p, short := follow(t, options), follow(t, options)
	both := []string{"a-rank-0 10.0.0.1:8000", "b-rank-0 10.0.0.2:8000"}
	p.endpoints(t, both...)
	short.endpoints(t, both...)
	restart := func(t *testing.T) {
		t.Helper()
		c.StopAPIServer()
		if err := c.StartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	c.StopAPIServer()
	p.trouble(t, "the API server cannot be reached: ", "connection refused; what it told before stays in use")
	p.expectMetrics(t, map[string]float64{`tandem_kube_synced{}`: 0, `tandem_kube_pods{state="serving"}`: 2})
	short.halt() // does not wait for the server
	unmet := follow(t, options)
	unmet.trouble(t, "the API server cannot be reached: ")
	unmet.halt()
	unmet.unmet(t)
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.trouble(t)
	p.expectMetrics(t, map[string]float64{`tandem_kube_synced{}`: 1})
	c.ready(t, "outage", "c", "10.0.0.3")
	p.endpoints(t, append(both, "c-rank-0 10.0.0.3:8000")...)

	count := p.count
	c.kubectl(t, "", "delete", "rolebinding", "picker", "-n", "outage")
	restart(t)
	p.trouble(t, "pods may not be read", `what it told before stays in use`)
	c.remove(t, "outage", "a")
	c.ready(t, "outage", "d", "10.0.0.4")
	if err := c.CompactEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	restart(t) // it remembers the history that etcd has no more
	if p.count != count {
		t.Errorf("the pool was applied %d times in the meantime", p.count-count)
	}
	c.kubectl(t, "", "apply", "-n", "outage", "-f", "testdata/role.yaml")
	p.endpoints(t, "b-rank-0 10.0.0.2:8000", "c-rank-0 10.0.0.3:8000", "d-rank-0 10.0.0.4:8000")
	p.trouble(t)
	if p.told > 60 {
		t.Errorf("%d lines were logged", p.told)
	}
}
