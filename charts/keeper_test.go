package charts_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// sidecarOf returns the sidecar of rank 0.
func sidecarOf(t *testing.T, all objects) corev1.Container {
	t.Helper()
	for _, c := range podOf(t, all, "-decode").Spec.InitContainers {
		if c.Name == "sidecar" {
			return c
		}
	}
	t.Fatal("the decode pod has no sidecar")
	return corev1.Container{}
}

// discovery reports whether the Service is there by which sidecars find prefill pods.
func (all objects) discovery() bool {
	return slices.Contains(all.names(), "Service/"+release+"-tandem-prefill")
}

// A keeper is told what the engines speak, and where; the sidecar has the image with it, and as much memory as before.
func TestKeeper(t *testing.T) {
	before := sidecarOf(t, render(t))
	for name, test := range map[string]struct {
		args    []string
		flags   []string
		without []string
	}{
		"vLLM": {[]string{"--set=engine.sideChannelPort=5700"},
			[]string{"--keeper=/keeper", "--keeper-transport=nixl", "--side-channel-port=5700", "--prefill-discovery="},
			[]string{"--keeper-library=", "--warm-up"}},
		"simulated": {cases(t)["sim"],
			[]string{"--keeper=/keeper-sim", "--keeper-transport=tcp", "--side-channel-port=5600"}, []string{"--keeper-library="}},
		"an engine with a key":    {[]string{"--set=engine.apiKeySecret=key"}, []string{"--prefill-discovery="}, nil},
		"a library of one's own":  {[]string{"--set=sidecar.keeper.library=/opt/nixl"}, []string{"--keeper-library=/opt/nixl"}, nil},
		"with a warm-up":          {[]string{"--set=sidecar.warmUp=true"}, []string{"--warm-up", "--keeper="}, nil},
		"an image that was built": {[]string{"--set=sidecar.keeper.image.tag=v9"}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			all := render(t, append(test.args, "--set=sidecar.keeper.enabled=true")...)
			sidecar := sidecarOf(t, all)
			if !all.discovery() {
				t.Error("the sidecars look for prefill pods where there is no Service")
			}
			if image := sidecar.Image; !strings.HasPrefix(image, "registry.example.com/tandem/sidecar-nixl:") {
				t.Errorf("the image is %s, which has no keeper", image)
			}
			for _, flag := range test.flags {
				if !has(sidecar.Args, flag) {
					t.Errorf("no %s in %q", flag, sidecar.Args)
				}
			}
			for _, flag := range test.without {
				if has(sidecar.Args, flag) {
					t.Errorf("%s in %q", flag, sidecar.Args)
				}
			}
		})
	}
	with := sidecarOf(t, render(t, "--set=sidecar.keeper.enabled=true"))
	for kind, sizes := range map[string][2]string{
		"requests": {before.Resources.Requests.Memory().String(), with.Resources.Requests.Memory().String()},
		"limits":   {before.Resources.Limits.Memory().String(), with.Resources.Limits.Memory().String()},
	} {
		if want := map[string][2]string{"requests": {"256Mi", "320Mi"}, "limits": {"2Gi", "2112Mi"}}[kind]; sizes != want {
			t.Errorf("memory of %s without and with a keeper is %v, want %v", kind, sizes, want)
		}
	}
	if before, with := valueIn(before.Env, "GOMEMLIMIT"), valueIn(with.Env, "GOMEMLIMIT"); before == "" || before != with {
		t.Errorf("the sidecar's own limit is %q without and %q with a keeper", before, with)
	}
	unsized := sidecarOf(t, render(t, "--set=sidecar.keeper.enabled=true",
		"--set=sidecar.resources.limits=null,sidecar.resources.requests=null"))
	if len(unsized.Resources.Limits)+len(unsized.Resources.Requests) != 0 {
		t.Errorf("no value requests %v", unsized.Resources)
	}
}

// Without the value, the chart renders nothing of a keeper.
func TestNoKeeper(t *testing.T) {
	all := render(t)
	for _, flag := range []string{"--keeper", "--warm-up", "--side-channel-port", "--prefill-discovery"} {
		if has(sidecarOf(t, all).Args, flag) {
			t.Errorf("the sidecar has %s", flag)
		}
	}
	if all.discovery() {
		t.Error("a Service has no use")
	}
	warm := render(t, "--set=sidecar.warmUp=true")
	sidecar := sidecarOf(t, warm)
	found := has(sidecar.Args, "--prefill-discovery=dns://demo-tandem-prefill:8000") && warm.discovery()
	if !has(sidecar.Args, "--warm-up") || !found {
		t.Errorf("the warm-up finds no prefill pods: %q", sidecar.Args)
	}
	if has(sidecar.Args, "--keeper") || strings.Contains(sidecar.Image, "nixl") {
		t.Errorf("a warm-up needs no keeper: %s %q", sidecar.Image, sidecar.Args)
	}
}

// has reports whether one of the arguments begins so.
func has(args []string, beginning string) bool {
	return slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, beginning) })
}

func valueIn(env []corev1.EnvVar, name string) string {
	for _, e := range env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}
