package charts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tandem-serving/tandem/stack/envoy"
)

// TestEnvoyBootstrap holds the chart's copy of Envoy's configuration to what tandem envoy-config writes for the same choices,
// and has the real Envoy validate it.
func TestEnvoyBootstrap(t *testing.T) {
	all := []string{"--listen=0.0.0.0:8080", "--operations-address=0.0.0.0:9902", "--idle-timeout=240s", "--body-limit=64MiB",
		"--epp=demo-tandem-epp-replicas.models.svc:9002"}
	// 85 % of 2 GiB, the default, and of 1 GiB.
	common, small := append(slices.Clone(all), "--max-heap=1825361100"), append(slices.Clone(all), "--max-heap=912680550")
	choices := map[string][]string{
		"sim":                     small,
		"vllm-1p1d":               common,
		"sglang-1p1d":             common,
		"trtllm-1p1d":             common,
		"trtllm-generation-first": append(slices.Clone(common), "--otlp=collector:4317", "--trace-ratio=0.1"),
		"pool":                    small,
		"policy":                  small,
		"autoscaling":             common,
		"ranks":                   common,
		"keeper":                  common,
		"keda":                    common,
		"sized":                   common,
		"elastic":                 common,
		"variants":                common,
		"variants-of-both":        common,
		"shared":                  common,
		"nixl-push":               common,
		"mooncake":                common,
		"moriio":                  common,
		"offloading":              common,
		"shared-storage":          common,
		"multi":                   common,
		"vllm-lws":                common,
		"groups":                  common,
		"groups-sglang":           append(slices.Clone(common), "--pool-tls", "--pool-ca=/etc/envoy-pool/ca.crt"),
		"encoders":                append(slices.Clone(common), "--pool-tls", "--pool-ca=/etc/envoy-pool/ca.crt"),
		"batch":                   append(slices.Clone(common), "--cert-path=/etc/envoy-tls", "--cert-file=/etc/envoy/certificate.yaml", "--otlp=collector:4317", "--trace-ratio=0.1"),
		"canary":                  append(slices.Clone(small), "--canary=next-tandem-proxy.models.svc:80", "--canary-percent=2"),
		"mtls": append(slices.Clone(common), "--epp-ca=/etc/envoy-epp/ca.crt", "--epp-server-name=demo-tandem-epp.models.svc", "--pool-tls",
			"--pool-ca=/etc/envoy-pool/ca.crt", "--client-cert-path=/etc/envoy-client", "--client-cert-file=/etc/envoy/client-certificate.yaml"),
		"tls": append(slices.Clone(common), "--cert-path=/etc/envoy-tls", "--cert-file=/etc/envoy/certificate.yaml",
			"--epp-ca=/etc/envoy-epp/ca.crt", "--epp-server-name=demo-tandem-epp.models.svc", "--pool-tls",
			"--pool-ca=/etc/envoy-pool/ca.crt", "--otlp=collector:4317", "--trace-ratio=0.1", "--http-filters=testdata/http-filters.yaml"),
	}
	for name, args := range cases(t) {
		t.Run(name, func(t *testing.T) {
			all := render(t, args...)
			flags, standalone := choices[name]
			if !standalone {
				if strings.Contains(strings.Join(all.names(), "\n"), "Deployment/demo-tandem-proxy") {
					t.Fatal("there is a proxy, whose configuration is not tested")
				}
				return
			}
			bootstrap := data(t, all.named(t, "ConfigMap", "-proxy"), "envoy.yaml")
			sameYAML(t, bootstrap, envoyConfig(t, flags...))
			for of, what := range map[string][2]string{"tls": {"certificate.yaml", "certificate"}, "mtls": {"client-certificate.yaml", "client-certificate"}} {
				if name == of {
					sameYAML(t, data(t, all.named(t, "ConfigMap", "-proxy"), what[0]), envoyConfig(t, append(flags, "--write="+what[1])...))
				}
			}
			validate(t, all, bootstrap)
		})
	}
}

func envoyConfig(t *testing.T, flags ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program(t, "tandem"), append([]string{"envoy-config"}, flags...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func sameYAML(t *testing.T, got, want string) {
	t.Helper()
	var a, b any
	if err := yaml.Unmarshal([]byte(got), &a); err != nil {
		t.Fatalf("the chart's: %v", err)
	}
	if err := yaml.Unmarshal([]byte(want), &b); err != nil {
		t.Fatalf("that of tandem envoy-config: %v", err)
	}
	x, y := canonical(t, a), canonical(t, b)
	if x != y {
		t.Errorf("the chart's Envoy configuration is not that of tandem envoy-config: %s", firstDifference(x, y))
	}
}

func canonical(t *testing.T, parsed any) string {
	t.Helper()
	text, err := yaml.Marshal(parsed)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// firstDifference quotes the first lines that differ.
func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return "line " + x[i] + " is there " + y[i]
		}
	}
	return "one of them is longer"
}

// validate has the real Envoy read a configuration, with the files that the pod would have.
func validate(t *testing.T, all objects, bootstrap string) {
	t.Helper()
	envoy.Require(t)
	program, err := envoy.Find()
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range all.pods(t) {
		for _, c := range containers(t, pod) {
			if c["name"] != "envoy" {
				continue
			}
			file := filepath.Join(t.TempDir(), "envoy.yaml")
			if err := os.WriteFile(file, []byte(mount(t, all, pod, c).Replace(bootstrap)), 0o600); err != nil {
				t.Fatal(err)
			}
			args, _, err := unstructured.NestedStringSlice(c, "args") // Envoy is particular about how they are written
			if i := slices.Index(args, "/etc/envoy/envoy.yaml"); err != nil || i < 0 {
				t.Fatalf("arguments %q, error %v", args, err)
			} else {
				args[i] = file
			}
			cmd := exec.CommandContext(t.Context(), program, append(args, "--mode", "validate")...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("Envoy refuses its configuration: %v\n%s", err, out)
			}
			return
		}
	}
	t.Error("no container is named envoy")
}
