package charts_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestImagesAreBuilt holds that make push builds and pushes every image of this project that the chart asks for, under the
// name and tag that it asks for.
func TestImagesAreBuilt(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	const registry = "registry.example.com/tandem" // that of the base values
	out, err := exec.CommandContext(t.Context(), "make", "--no-print-directory", "-C", root, "--dry-run", "push", "DOCKER=docker",
		"VERSION=", "REGISTRY="+registry).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	built, pushed := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if m := regexp.MustCompile(`^docker build --target (\S+) .*--tag (\S+) \.$`).FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			if want := registry + "/" + m[1] + ":"; !strings.HasPrefix(m[2], want) {
				t.Errorf("target %s is tagged %s", m[1], m[2])
			}
			built[m[2]] = true
		}
		if image, ok := strings.CutPrefix(strings.TrimSpace(line), "docker push "); ok {
			pushed[image] = true
		}
	}
	wanted := map[string]bool{}
	for _, args := range cases(t) {
		for _, image := range images(t, args...) {
			if strings.HasPrefix(image, registry) {
				wanted[image] = true
			}
		}
	}
	if len(wanted) != 6 { // batch, epp, sidecar, sidecar-nixl, sim, tandem
		t.Errorf("the chart asks for %v", wanted)
	}
	for image := range wanted {
		if !built[image] || !pushed[image] {
			t.Errorf("%s is asked for; built: %t, pushed: %t", image, built[image], pushed[image])
		}
	}
}

// TestRegistryIsNamed holds that make says what is missing before it builds.
func TestRegistryIsNamed(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "make", "--no-print-directory", "-C", "..", "images", "DOCKER=false", "REGISTRY=").CombinedOutput()
	if want := "make images REGISTRY=registry.example.com/tandem"; err == nil || !strings.Contains(string(out), want) {
		t.Errorf("%v, %s, want %q", err, out, want)
	}
}

// TestImageNames: where each image of a release comes from, by values.
func TestImageNames(t *testing.T) {
	const digest = "@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	for name, test := range map[string]struct {
		set  string
		want []string
	}{
		"the registry": {"images.registry=a.example/b/",
			[]string{"a.example/b/epp:v0.1.0", "a.example/b/sidecar:v0.1.0", "a.example/b/tandem:v0.1.0", "envoyproxy/envoy:e", "vllm/vllm-openai:v0.32.0"}},
		"a tag for all": {"images.registry=a,images.tag=v2",
			[]string{"a/epp:v2", "a/sidecar:v2", "a/tandem:v2", "envoyproxy/envoy:e", "vllm/vllm-openai:v0.32.0"}},
		"a tag and a digest of one": {"images.registry=a,images.tag=v2,epp.image.tag=v3,sidecar.image.digest=" + digest[1:],
			[]string{"a/epp:v3", "a/sidecar" + digest, "a/tandem:v2", "envoyproxy/envoy:e", "vllm/vllm-openai:v0.32.0"}},
		"a repository of one": {"images.registry=a,epp.image.repository=c/picker",
			[]string{"a/sidecar:v0.1.0", "a/tandem:v0.1.0", "c/picker:v0.1.0", "envoyproxy/envoy:e", "vllm/vllm-openai:v0.32.0"}},
		"a mirror": {"images.registry=a,images.mirror=m.example/hub/",
			[]string{"a/epp:v0.1.0", "a/sidecar:v0.1.0", "a/tandem:v0.1.0", "m.example/hub/envoyproxy/envoy:e", "m.example/hub/vllm/vllm-openai:v0.32.0"}},
		"a mirror and a registry of one": {"images.registry=a,images.mirror=m,engine.image.repository=ghcr.io/acme/vllm",
			[]string{"a/epp:v0.1.0", "a/sidecar:v0.1.0", "a/tandem:v0.1.0", "ghcr.io/acme/vllm:v0.32.0", "m/envoyproxy/envoy:e"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := images(t, "--set=proxy.image.tag=e,"+test.set); !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// images are those of all containers of a release, sorted.
func images(t *testing.T, args ...string) (names []string) {
	t.Helper()
	for _, pod := range render(t, args...).pods(t) {
		for _, c := range containers(t, pod) {
			names = append(names, c["image"].(string))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
