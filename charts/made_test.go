package charts_test

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// flagName is the name of a flag, which may stand alone or have a value.
var flagName = regexp.MustCompile(`^--([a-z0-9_-]+)`)

// free are the flags that do no harm if given twice, and those that the cases give themselves.
var free = []string{"log-format", "disable-uvicorn-access-log", "refresh-metrics-interval", "quantization",
	"enable-expert-parallel", "max-num-batched-tokens", "chunked-prefill-size", "retention", "tenant-max-bytes"}

// TestMadeFlags holds that a user's arguments cannot undo those that the chart makes: each of them, in whatever values made
// it, is refused among the arguments of that container.
func TestMadeFlags(t *testing.T) {
	sets := map[string]string{"engine sim": "sim.args", "engine vllm": "prefill.args", "engine vllm with files": "prefill.args",
		"engine sglang": "prefill.args", "engine trtllm": "prefill.args", "sidecar": "sidecar.extraArgs", "epp": "epp.extraArgs", "batch": "batch.extraArgs"}
	made := map[string]map[string]bool{}
	for container := range sets {
		made[container] = map[string]bool{}
	}
	for _, args := range cases(t) {
		all := render(t, args...)
		for _, pod := range all.pods(t) {
			for name, flags := range flagsOf(t, pod) {
				if made[name] != nil {
					maps.Copy(made[name], flags)
				}
			}
		}
	}
	for container, flags := range made {
		t.Run(container, func(t *testing.T) {
			if len(flags) == 0 {
				t.Fatal("no container of this name has a flag")
			}
			maps.DeleteFunc(flags, func(flag string, _ bool) bool { return slices.Contains(free, flag) })
			args := "--set=" + sets[container] + "={--" + strings.Join(slices.Sorted(maps.Keys(flags)), "=x,--") + "=x}"
			engine, _ := strings.CutPrefix(container, "engine ")
			if engine == container {
				engine = "vllm"
			}
			more := "--set=engine.type=" + engine
			if engine == "vllm with files" {
				more = "--set=engine.type=vllm,engine.sharedStorage.claimName=kv,engine.maxModelLen=4096"
			}
			_, err := template(t, args, more)
			if err == nil {
				t.Fatal("the chart takes them all")
			}
			for flag := range flags {
				if !strings.Contains(err.Error(), sets[container]+": --"+flag+" is the chart's to make") {
					t.Errorf("%s may be given beside the chart's own", flag)
				}
			}
		})
	}
}

// flagsOf returns the flags of each container of a pod, by the container's name; that of an engine tells which engine.
func flagsOf(t *testing.T, pod *unstructured.Unstructured) map[string]map[string]bool {
	t.Helper()
	found := map[string]map[string]bool{}
	for _, c := range containers(t, pod) {
		name := c["name"].(string)
		if name == "engine" {
			name = "engine sim"
			if command, _, _ := unstructured.NestedStringSlice(c, "command"); slices.Contains(command, "vllm") {
				name = "engine vllm"
			} else if slices.Contains(command, "trtllm-serve") {
				name = "engine trtllm"
			} else if len(command) > 0 {
				name = "engine sglang"
			}
		}
		args, _, err := unstructured.NestedStringSlice(c, "args")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(strings.Join(args, " "), "ExampleConnector") {
			name += " with files"
		}
		for _, arg := range args {
			if m := flagName.FindStringSubmatch(arg); m != nil {
				if found[name] == nil {
					found[name] = map[string]bool{}
				}
				found[name][m[1]] = true
			}
		}
	}
	return found
}

// containers are those of a pod, the initial ones included.
func containers(t *testing.T, pod *unstructured.Unstructured) (all []map[string]any) {
	t.Helper()
	for _, list := range []string{"initContainers", "containers"} {
		found, _, err := unstructured.NestedSlice(pod.Object, "spec", list)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range found {
			all = append(all, c.(map[string]any))
		}
	}
	return all
}

// TestVariablesOnce holds that no container has a variable twice, which the API server refuses to apply.
func TestVariablesOnce(t *testing.T) {
	for name, args := range cases(t) {
		for _, pod := range render(t, args...).pods(t) {
			for _, c := range containers(t, pod) {
				seen := map[any]bool{}
				env, _, err := unstructured.NestedSlice(c, "env")
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range env {
					variable := e.(map[string]any)["name"]
					if seen[variable] {
						t.Errorf("%s: the container %s of %s has %s twice", name, c["name"], pod.GetName(), variable)
					}
					seen[variable] = true
				}
			}
		}
	}
}

// TestMountsHideNoProgram: a volume that is mounted where a program of the container's image is hides it, and a folder on a
// file cannot be mounted at all.
func TestMountsHideNoProgram(t *testing.T) {
	for name, args := range cases(t) {
		for _, pod := range render(t, args...).pods(t) {
			for _, c := range containers(t, pod) {
				mounts, _, err := unstructured.NestedSlice(c, "volumeMounts")
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range mounts {
					at := strings.TrimSuffix(m.(map[string]any)["mountPath"].(string), "/")
					for _, file := range ownPrograms(t, c) {
						if strings.HasPrefix(file+"/", at+"/") {
							t.Errorf("%s: %s/%s mounts a volume at %s, where its image has %s", name, pod.GetName(), c["name"], at, file)
						}
					}
				}
			}
		}
	}
}

// ownPrograms returns the files that a container's image is for: ours are at the root by their names, Envoy's where its command says.
func ownPrograms(t *testing.T, container map[string]any) []string {
	t.Helper()
	image, _, _ := strings.Cut(path.Base(container["image"].(string)), ":")
	switch binary := strings.TrimSuffix(image, "-nixl"); {
	case binary != image:
		return []string{"/" + binary, "/keeper"}
	case slices.Contains(programs, binary):
		return []string{"/" + binary}
	case image == "envoy":
		command, _, err := unstructured.NestedStringSlice(container, "command")
		if err != nil || len(command) == 0 {
			t.Fatalf("Envoy has command %q, %v", command, err)
		}
		return command[:1]
	}
	return nil
}
