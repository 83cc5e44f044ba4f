package charts_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	// chart is the folder of the chart, as helm is told.
	chart = "tandem"
	// base are the values without which the chart renders nothing.
	base = "testdata/base.yaml"
	// release and namespace are what objects are rendered for, unless a test needs others.
	release   = "demo"
	namespace = "models"
	// kubeVersion is that of the control plane in e2e/kube; without one helm takes its own.
	kubeVersion = "1.36.3"
)

// helm runs the real helm, without anything of the user's who runs the test, and gives what it printed. The error is what
// helm complained of.
func helm(tb testing.TB, args ...string) (string, error) {
	tb.Helper()
	if err := touch(); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.CommandContext(tb.Context(), requireHelm(tb), args...)
	home := filepath.Join(tb.TempDir(), "home")
	cmd.Env = []string{"HOME=" + home, "HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home}
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		if _, failed := errors.AsType[*exec.ExitError](err); !failed {
			tb.Fatal(err)
		}
		return out.String(), errors.New(strings.TrimSpace(complaints.String()))
	}
	return out.String(), nil
}

func requireHelm(tb testing.TB) string {
	tb.Helper()
	path, err := filepath.Abs("../.tools/helm")
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		missing(tb, "there is no helm (make .tools/helm fetches it)")
	}
	return path
}

// missing ends a test that lacks a part: it fails where all parts have to be there, else it is skipped.
func missing(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv("CI") == "true" {
		tb.Fatal(what)
	}
	tb.Skip(what)
}

// template renders the chart with the values that have no default and those of the arguments. The error is what helm
// complained of.
func template(tb testing.TB, args ...string) (string, error) {
	tb.Helper()
	return templateOf(tb, append([]string{"-f", base}, args...)...)
}

// templateOf renders the chart with the values of the arguments alone.
func templateOf(tb testing.TB, args ...string) (string, error) {
	tb.Helper()
	return helm(tb, append([]string{"template", release, chart, "--namespace", namespace, "--kube-version", kubeVersion}, args...)...)
}

// render renders the chart into objects.
func render(tb testing.TB, args ...string) objects {
	tb.Helper()
	text, err := template(tb, args...)
	if err != nil {
		tb.Fatal(err)
	}
	return parse(tb, text)
}

// objects are what a release is made of.
type objects []*unstructured.Unstructured

// parse reads a stream of YAML documents.
func parse(tb testing.TB, text string) (all objects) {
	tb.Helper()
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		text, err := yaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			tb.Fatalf("%v in:\n%s", err, document)
		}
		if string(text) == "null" {
			continue // nothing but comments
		}
		var o unstructured.Unstructured
		if err := o.UnmarshalJSON(text); err != nil {
			tb.Fatalf("%v in:\n%s", err, document)
		}
		all = append(all, &o)
	}
	return all
}

// of returns the objects of a kind.
func (all objects) of(kind string) (some objects) {
	for _, o := range all {
		if o.GetKind() == kind {
			some = append(some, o)
		}
	}
	return some
}

// named returns the one object of a kind whose name ends so.
func (all objects) named(tb testing.TB, kind, suffix string) *unstructured.Unstructured {
	tb.Helper()
	for _, o := range all.of(kind) {
		if strings.HasSuffix(o.GetName(), suffix) {
			return o
		}
	}
	tb.Fatalf("there is no %s …%s among %v", kind, suffix, all.names())
	return nil
}

// names returns the objects as people name them.
func (all objects) names() (names []string) {
	for _, o := range all {
		names = append(names, o.GetKind()+"/"+o.GetName())
	}
	return names
}
