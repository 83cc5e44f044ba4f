package charts_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tandem-serving/tandem/e2e/controlplane"
)

// monitors makes the chart render what it renders only where the Prometheus operator is.
var monitors = []string{"--api-versions=monitoring.coreos.com/v1/PodMonitor",
	"--api-versions=monitoring.coreos.com/v1/PrometheusRule"}

// selectors are where objects have one.
var selectors = [][]string{{"spec", "selector"}, {"spec", "selector", "matchLabels"}, {"spec", "podSelector", "matchLabels"}}

// TestCluster sends everything to a real API server, into a namespace that admits only pods of the level restricted.
func TestCluster(t *testing.T) {
	requireHelm(t)
	plane := controlplane.Start(t)
	plane.InstallCRDs("../.tools/crds/*.yaml", "../epp/kube/testdata/crds/*.yaml")
	makeNamespace(t, plane, namespace)
	for name, args := range cases(t) {
		t.Run("objects of "+name, func(t *testing.T) { objectsAreAccepted(t, plane, render(t, append(args, monitors...)...)) })
		if !slices.Contains(args, "-f=tandem/values-"+name+".yaml") {
			continue // not a preset
		}
		t.Run("dry run of "+name, func(t *testing.T) {
			all := append([]string{"install", release, chart, "--namespace", namespace, "--dry-run=server",
				"--kubeconfig", plane.Kubeconfig()}, withoutVersions(args)...)
			if _, err := helm(t, all...); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("privileges are refused", func(t *testing.T) { privilegesAreRefused(t, plane) })
	t.Run("install, upgrade, uninstall", func(t *testing.T) { installs(t, plane) })
	t.Run("rights in mode selector", func(t *testing.T) { rightsSuffice(t, plane, "selector", cases(t)["sim"]...) })
	t.Run("rights in mode pool", func(t *testing.T) { rightsSuffice(t, plane, "pool", cases(t)["pool"]...) })
	t.Run("groups are scaled", func(t *testing.T) { groupsAreScaled(t, plane) })
	t.Run("two releases", func(t *testing.T) { releasesAreApart(t, plane) })
}

// makeNamespace makes a namespace that enforces the level restricted of pod security.
func makeNamespace(t *testing.T, plane *controlplane.Plane, name string) {
	t.Helper()
	kubectl(t, plane, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,
		"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`, name), "create", "-f", "-")
}

func kubectl(t *testing.T, plane *controlplane.Plane, stdin string, args ...string) string {
	t.Helper()
	out, err := plane.Kubectl(t.Context(), stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// withoutVersions leaves out what only helm template takes: with a cluster, helm asks that.
func withoutVersions(args []string) []string {
	return slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return strings.HasPrefix(arg, "--api-versions=") })
}

// objectsAreAccepted applies objects, and a pod of each template: of a Deployment with bad pods the API server only warns, and of
// groups with bad pods it says nothing.
func objectsAreAccepted(t *testing.T, plane *controlplane.Plane, all objects) {
	all = slices.Concat(all, all.pods(t))
	if _, err := plane.Kubectl(t.Context(), list(t, all), "apply", "--server-side", "--dry-run=server", "-f", "-"); err != nil {
		t.Error(err)
	}
}

// list writes objects as one that kubectl takes.
func list(t *testing.T, all objects) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": all})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pods returns the pods, and one of every pod template.
func (all objects) pods(t *testing.T) (pods objects) {
	t.Helper()
	pods = all.of("Pod")
	for _, o := range all.of("Deployment") {
		pods = append(pods, podOfTemplate(t, o, "-pod", "spec", "template"))
	}
	for _, o := range all.of("LeaderWorkerSet") {
		pods = append(pods, podOfTemplate(t, o, "-pod", "spec", "leaderWorkerTemplate", "leaderTemplate"),
			podOfTemplate(t, o, workerSuffix, "spec", "leaderWorkerTemplate", "workerTemplate"))
	}
	if len(pods) == 0 {
		t.Fatal("there is no pod template")
	}
	return pods
}

// workerSuffix ends the names of pods that pods makes of workers' templates.
const workerSuffix = "-worker"

// podOfTemplate returns a pod as the template at a path of an object makes it.
func podOfTemplate(t *testing.T, o *unstructured.Unstructured, suffix string, path ...string) *unstructured.Unstructured {
	t.Helper()
	template, found, err := unstructured.NestedMap(o.Object, path...)
	if err != nil || !found {
		t.Fatalf("%s has no pod template: %v", o.GetName(), err)
	}
	pod := &unstructured.Unstructured{Object: template}
	pod.SetAPIVersion("v1")
	pod.SetKind("Pod")
	pod.SetName(o.GetName() + suffix)
	pod.SetNamespace(o.GetNamespace())
	return pod
}

// privilegesAreRefused holds that the namespace judges pods at all, in each of the ways that the chart's pods pass.
func privilegesAreRefused(t *testing.T, plane *controlplane.Plane) {
	for _, pod := range render(t, cases(t)["sim"]...).pods(t) {
		containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
		container := containers[0].(map[string]any)
		container["securityContext"] = map[string]any{"allowPrivilegeEscalation": true}
		if err := unstructured.SetNestedSlice(pod.Object, containers, "spec", "containers"); err != nil {
			t.Fatal(err)
		}
		_, err := plane.Kubectl(t.Context(), list(t, objects{pod}), "create", "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
			t.Errorf("the privileged pod %s is not refused: %v", pod.GetName(), err)
		}
	}
	ipcLock := render(t, append(cases(t)["vllm-1p1d"], "--set=decode.rdma.ipcLock=true")...).pods(t)
	_, err := plane.Kubectl(t.Context(), list(t, ipcLock), "create", "--dry-run=server", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
		t.Errorf("values.yaml says that restricted refuses rdma.ipcLock, but: %v", err)
	}
}

// installs takes a release through its life, of which no object must be left.
func installs(t *testing.T, plane *controlplane.Plane) {
	makeNamespace(t, plane, "life")
	at := []string{"--namespace", "life", "--kubeconfig", plane.Kubeconfig()}
	before := leftovers(t, plane, "life")
	for _, step := range [][]string{
		{"install", release, chart, "-f", base, "-f", chart + "/values-sim.yaml"},
		{"upgrade", release, chart, "-f", base, "-f", chart + "/values-sim.yaml", "--set=epp.threshold=1024", "--set=decode.replicas=3"},
		{"upgrade", release, chart, "-f", base, "-f", chart + "/values-sim.yaml", "--set=mode=gateway", "--set=gateway.name=front"},
		{"rollback", release, "1"},
	} {
		if _, err := helm(t, append(step, at...)...); err != nil {
			t.Fatalf("helm %s: %v", step[0], err)
		}
	}
	if rest := leftovers(t, plane, "life"); len(rest) <= len(before) {
		t.Fatalf("after the installation the namespace has only %v", rest)
	}
	if _, err := helm(t, append([]string{"uninstall", release}, at...)...); err != nil {
		t.Fatal(err)
	}
	if rest := leftovers(t, plane, "life"); !slices.Equal(rest, before) {
		t.Errorf("after the uninstallation there is\n%v\nwhere before was\n%v", rest, before)
	}
}

// leftovers lists what is in a namespace, of every kind.
func leftovers(t *testing.T, plane *controlplane.Plane, in string) []string {
	t.Helper()
	kinds := strings.Fields(kubectl(t, plane, "", "api-resources", "--namespaced", "--verbs=list", "-o", "name"))
	kinds = slices.DeleteFunc(kinds, func(kind string) bool { return strings.HasPrefix(kind, "events") })
	found := strings.Fields(kubectl(t, plane, "", "get", strings.Join(kinds, ","), "--namespace", in, "-o", "name"))
	slices.Sort(found)
	return slices.Compact(found)
}

// groupsAreScaled holds that the role of groups has the subresource by which autoscalers and kubectl set how many there are, and that an upgrade leaves
// what they have set.
func groupsAreScaled(t *testing.T, plane *controlplane.Plane) {
	makeNamespace(t, plane, "groups")
	at := []string{"--namespace", "groups", "--kubeconfig", plane.Kubeconfig()}
	install := append([]string{"install", release, chart}, withoutVersions(cases(t)["groups"])...)
	if _, err := helm(t, append(install, at...)...); err != nil {
		t.Fatal(err)
	}
	const decode = "leaderworkerset/demo-tandem-decode"
	kubectl(t, plane, "", "scale", decode, "--namespace=groups", "--replicas=3")
	upgrade := append([]string{"upgrade", release, chart, "--set=epp.threshold=1024"}, withoutVersions(cases(t)["groups"])...)
	if _, err := helm(t, append(upgrade, at...)...); err != nil {
		t.Fatal(err)
	}
	if got := kubectl(t, plane, "", "get", decode, "--namespace=groups", "--output=jsonpath={.spec.replicas} {.spec.leaderWorkerTemplate.size}"); got != "3 4" {
		t.Errorf("groups and pods of each are %q, want 3 and 4", got)
	}
}

// releasesAreApart installs two releases into one namespace, of different modes: no object belongs to both, and no selector
// finds pods of the other.
func releasesAreApart(t *testing.T, plane *controlplane.Plane) {
	makeNamespace(t, plane, "shared")
	values := map[string][]string{"one": cases(t)["sim"], "two": cases(t)["pool"]}
	rendered := map[string]objects{}
	for name, args := range values {
		at := append([]string{name, chart, "--namespace", "shared"}, args...)
		if _, err := helm(t, append([]string{"install", "--kubeconfig", plane.Kubeconfig()}, at...)...); err != nil {
			t.Fatal(err)
		}
		text, err := helm(t, append([]string{"template"}, at...)...)
		if err != nil {
			t.Fatal(err)
		}
		rendered[name] = parse(t, text)
	}
	for _, name := range rendered["one"].names() {
		if slices.Contains(rendered["two"].names(), name) {
			t.Errorf("both releases have %s", name)
		}
	}
	selectsOnly(t, rendered["one"], rendered["two"])
	selectsOnly(t, rendered["two"], rendered["one"])
}

// selectsOnly holds that every selector of a release finds pods of it, and none of the other.
func selectsOnly(t *testing.T, own, other objects) {
	t.Helper()
	for _, o := range own {
		for _, path := range selectors {
			selector, found, err := unstructured.NestedStringMap(o.Object, path...)
			if err != nil || !found {
				continue // not a selector, or none at this place
			}
			if !own.selects(t, selector) {
				t.Errorf("%s/%s selects no pod: %v", o.GetKind(), o.GetName(), selector)
			}
			if other.selects(t, selector) {
				t.Errorf("%s/%s selects pods of the other release: %v", o.GetKind(), o.GetName(), selector)
			}
		}
	}
}

// selects reports whether a selector finds a pod among those that objects make.
func (all objects) selects(t *testing.T, selector map[string]string) bool {
	t.Helper()
	return slices.ContainsFunc(all.pods(t), func(pod *unstructured.Unstructured) bool {
		labels := pod.GetLabels()
		for key, value := range selector {
			if labels[key] != value {
				return false
			}
		}
		return true
	})
}
