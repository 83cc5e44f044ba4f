package charts_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tandem-serving/tandem/e2e/controlplane"
	"github.com/tandem-serving/tandem/stack"
)

// patience bounds what a running picker is waited for.
const patience = 30 * time.Second

// TestRole holds the chart's Role to the one that the watching of pods and pools is tested with, of which it grants what the
// mode needs.
func TestRole(t *testing.T) {
	text, err := os.ReadFile("../epp/kube/testdata/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	needed := grants(t, parse(t, string(text)).of("Role")[0])
	for name, wanted := range map[string]func(grant string) bool{
		"sim": func(grant string) bool { return strings.HasPrefix(grant, "/pods ") },
		"pool": func(grant string) bool {
			return !strings.HasPrefix(grant, "inference.networking.x-k8s.io/inferencepools ")
		},
	} {
		want := slices.DeleteFunc(slices.Clone(needed), func(grant string) bool { return !wanted(grant) })
		if got := grants(t, render(t, cases(t)[name]...).named(t, "Role", "-epp")); !slices.Equal(got, want) {
			t.Errorf("%s: the role grants\n%v\nwant\n%v", name, got, want)
		}
	}
}

// grants are what a role grants, one by one.
func grants(t *testing.T, role *unstructured.Unstructured) (all []string) {
	t.Helper()
	rules, _, err := unstructured.NestedSlice(role.Object, "rules")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		rule := r.(map[string]any)
		groups, _, _ := unstructured.NestedStringSlice(rule, "apiGroups")
		resources, _, _ := unstructured.NestedStringSlice(rule, "resources")
		verbs, _, _ := unstructured.NestedStringSlice(rule, "verbs")
		for _, group := range groups {
			for _, resource := range resources {
				for _, verb := range verbs {
					all = append(all, group+"/"+resource+" "+verb)
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

// rightsSuffice installs a release and runs its picker with its arguments and the rights of its service account: it must
// find everything. Where it may not watch something, it must say so. The verb list it needs before Kubernetes 1.32 only:
// from there on a watch begins with what there is.
func rightsSuffice(t *testing.T, plane *controlplane.Plane, name string, args ...string) {
	in := "rights-" + name
	makeNamespace(t, plane, in)
	at := append([]string{release, chart, "--namespace", in}, args...)
	if _, err := helm(t, append([]string{"install", "--kubeconfig", plane.Kubeconfig()}, at...)...); err != nil {
		t.Fatal(err)
	}
	text, err := helm(t, append([]string{"template"}, at...)...)
	if err != nil {
		t.Fatal(err)
	}
	all := parse(t, text)
	picker := pickerOf(t, plane, all)
	picker.answers(t, func(status int, page string) bool {
		return status == http.StatusOK && !strings.Contains(page, "cannot")
	})

	role := all.named(t, "Role", "-epp")
	rules, _, err := unstructured.NestedSlice(role.Object, "rules")
	if err != nil || len(rules) == 0 {
		t.Fatalf("the role has no rules: %v", err)
	}
	for i, rule := range rules {
		resources, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "resources")
		if resources[0] == "variantautoscalings" {
			continue // the picker does without it: TestCluster of epp/kube
		}
		t.Run("no watch of "+resources[0], func(t *testing.T) {
			apply(t, plane, without(t, role, i, "watch"))
			defer apply(t, plane, role)
			pickerOf(t, plane, all).answers(t, func(_ int, page string) bool {
				return strings.Contains(page, fmt.Sprintf("cannot watch resource %q", resources[0]))
			})
		})
	}
}

// without returns a role that lacks one verb in one rule.
func without(t *testing.T, role *unstructured.Unstructured, rule int, verb string) *unstructured.Unstructured {
	t.Helper()
	less := role.DeepCopy()
	rules, _, _ := unstructured.NestedSlice(less.Object, "rules")
	verbs, _, _ := unstructured.NestedStringSlice(rules[rule].(map[string]any), "verbs")
	kept := slices.DeleteFunc(verbs, func(v string) bool { return v == verb })
	if err := unstructured.SetNestedStringSlice(rules[rule].(map[string]any), kept, "verbs"); err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedSlice(less.Object, rules, "rules"); err != nil {
		t.Fatal(err)
	}
	return less
}

// apply makes a role as it is given.
func apply(t *testing.T, plane *controlplane.Plane, role *unstructured.Unstructured) {
	t.Helper()
	text, err := json.Marshal(role)
	if err != nil {
		t.Fatal(err)
	}
	kubectl(t, plane, string(text), "replace", "-f", "-")
}

// picker is a running picker.
type picker struct{ process *stack.Process }

// pickerOf starts the picker of a release as its pod would, but on free ports of loopback.
func pickerOf(t *testing.T, plane *controlplane.Plane, all objects) picker {
	t.Helper()
	for _, pod := range all.pods(t) {
		for _, c := range containers(t, pod) {
			if c["name"] != "epp" {
				continue
			}
			args, _, err := unstructured.NestedStringSlice(c, "args")
			if err != nil {
				t.Fatal(err)
			}
			files := mount(t, all, pod, c)
			for i := range args {
				args[i] = files.Replace(args[i])
			}
			account, _, _ := unstructured.NestedString(pod.Object, "spec", "serviceAccountName")
			_, kubeconfig := plane.As(t.Context(), pod.GetNamespace(), account)
			args = append(args, "--kubeconfig="+kubeconfig, "--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0",
				"--metrics-port=0", "--admin-address=127.0.0.1:0", "--share-address=127.0.0.1:0")
			process, err := stack.Start(t.Context(), stack.Program{Name: "epp", Path: program(t, "epp"), Args: args,
				ReadyTimeout: patience})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = process.Stop() })
			return picker{process}
		}
	}
	t.Fatal("no container is named epp")
	return picker{}
}

// answers asks /readyz until it answers as wanted.
func (p picker) answers(t *testing.T, wanted func(status int, page string) bool) {
	t.Helper()
	address, err := p.process.Address("metrics")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		status, page := readyz(ctx, t, address)
		if wanted(status, page) {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("/readyz goes on answering %d: %s\nthe picker said:\n%s", status, page, strings.Join(p.process.Output(), "\n"))
		}
	}
}

func readyz(ctx context.Context, t *testing.T, address string) (status int, page string) {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}
