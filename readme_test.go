package tandem_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestReadme runs what README.md tells users to write, so that it cannot rot:
// start lines and manifests go through the sidecar's own --check, and the table
// of flags is compared with its defaults.
func TestReadme(t *testing.T) {
	data, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := string(data)
	sidecar := filepath.Join(t.TempDir(), "sidecar")
	output(t, "go", "build", "-o", sidecar, "./cmd/sidecar")

	t.Run("start lines", func(t *testing.T) {
		lines := regexp.MustCompile(`(?m)^sidecar (--.*)$`).FindAllStringSubmatch(readme, -1)
		if len(lines) == 0 {
			t.Fatal("README.md has no start line")
		}
		for _, line := range lines {
			checked(t, sidecar, strings.Fields(line[1]))
		}
	})
	t.Run("manifests", func(t *testing.T) {
		for _, args := range containerArgs(t, readme, "sidecar") {
			checked(t, sidecar, args)
		}
	})
	t.Run("flags", func(t *testing.T) {
		defaults := checked(t, sidecar, nil)
		rows := regexp.MustCompile("(?m)^\\| `--([a-z-]+)`(?:, `--([a-z-]+)`)? \\| ([^|]+) \\|").FindAllStringSubmatch(readme, -1)
		if len(rows) == 0 {
			t.Fatal("README.md has no table of flags")
		}
		for _, row := range rows {
			texts := strings.Split(row[3], ", ")
			for i, flag := range row[1:3] {
				if flag != "" && !sameDefault(defaults[flag], texts[i]) {
					t.Errorf("--%s: README.md says %s, the program %v", flag, texts[i], defaults[flag])
				}
			}
		}
	})
}

// sameDefault compares a default as the table writes it with the program's;
// words instead of a value stand for an empty list.
func sameDefault(got any, text string) bool {
	if list, ok := got.([]any); ok {
		return len(list) == 0 && strings.Contains(text, " ")
	}
	var want any
	err := yaml.Unmarshal([]byte(text), &want)
	return err == nil && got == want
}

// checked gives the effective configuration for the given flags.
func checked(t *testing.T, program string, args []string) map[string]any {
	t.Helper()
	out, err := exec.Command(program, append(args, "--check")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", filepath.Base(program), args, err, out)
	}
	config := map[string]any{}
	if err := yaml.Unmarshal(out, &config); err != nil {
		t.Fatal(err)
	}
	return config
}

// containerArgs finds the args of the containers with the given name in the
// manifests of a text.
func containerArgs(t *testing.T, text, name string) (found [][]string) {
	t.Helper()
	type container struct {
		Name string
		Args []string
	}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(text, -1) {
		var manifest struct {
			Spec struct {
				Template struct {
					Spec struct {
						InitContainers []container `yaml:"initContainers"`
						Containers     []container
					}
				}
			}
		}
		if err := yaml.Unmarshal([]byte(block[1]), &manifest); err != nil {
			t.Fatalf("manifest: %v\n%s", err, block[1])
		}
		pod := manifest.Spec.Template.Spec
		for _, c := range append(pod.InitContainers, pod.Containers...) {
			if c.Name == name {
				found = append(found, c.Args)
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("no manifest has a container called %s", name)
	}
	return found
}
