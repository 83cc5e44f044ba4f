package cluster

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"
)

// scenarioUninstall: nothing of a release is left, but the pod of helm test, as the chart's README says.
var scenarioUninstall = scenario{name: "uninstall", ci: true, run: func(t *testing.T, r *run) {
	if _, err := r.helm(r.ctx, t, "status", r.llm.name, "-n", namespace); err != nil {
		r.llm.install(t, r)
	}
	r.mustKubectl(t, "create", "namespace", namespace+"-empty")
	defer r.mustKubectl(t, "delete", "namespace", namespace+"-empty", "--wait=false")
	began := time.Now()
	r.llm.uninstall(t, r)
	took := time.Since(began)
	r.mustKubectl(t, "delete", "pod", r.llm.object("test"), "-n", namespace, "--ignore-not-found")
	r.await(t, "nothing is left", 30*time.Second, func(ctx context.Context) (string, bool) {
		left, empty := r.objects(ctx, t, namespace), r.objects(ctx, t, namespace+"-empty")
		rest := slices.DeleteFunc(left, func(o string) bool { return slices.Contains(empty, o) })
		return strings.Join(rest, ", "), len(rest) == 0 && len(empty) > 0
	})
	if rest := r.clusterWide(t); len(rest) > 0 {
		t.Errorf("outside of namespaces there is left %v", rest)
	}
	r.mustKubectl(t, "delete", "namespace", namespace, "--timeout=60s")
	r.saw("pods gone %.1f s after helm uninstall; no object of any kind left; the namespace could be deleted", took.Seconds())
}}

// objects lists what is in a namespace, of every kind but events.
func (r *run) objects(ctx context.Context, t *testing.T, in string) []string {
	t.Helper()
	kinds, err := r.kubectl(ctx, "", "api-resources", "--namespaced", "--verbs=list", "-o", "name")
	if err != nil {
		t.Fatal(err)
	}
	names := slices.DeleteFunc(strings.Fields(kinds), func(kind string) bool { return strings.HasPrefix(kind, "events") })
	found, err := r.kubectl(ctx, "", "get", strings.Join(names, ","), "-n", in, "-o", "name")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(found)
}

// clusterWide lists what is in no namespace and says that it belongs to the release.
func (r *run) clusterWide(t *testing.T) []string {
	t.Helper()
	kinds := strings.Fields(r.mustKubectl(t, "api-resources", "--namespaced=false", "--verbs=list", "-o", "name"))
	return strings.Fields(r.mustKubectl(t, "get", strings.Join(kinds, ","), "-l", "app.kubernetes.io/instance="+r.llm.name, "-o", "name"))
}
