package tandem_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/epp/pool"
)

// TestReadme runs what README.md tells users to write, so that it cannot rot:
// start lines go through the program's own --check, the table of
// flags is compared with its defaults, and the endpoints file is read.
func TestReadme(t *testing.T) {
	data, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := string(data)
	bin := t.TempDir()
	output(t, "go", "build", "-o", bin, "./cmd/sidecar", "./cmd/epp", "./cmd/tandem")

	for program, heading := range map[string]string{"epp": "## The picker behind Envoy", "sidecar": "## The sidecar beside vLLM"} {
		path, section := filepath.Join(bin, program), sectionOf(t, readme, heading)
		t.Run(program+" start lines", func(t *testing.T) {
			lines := regexp.MustCompile(`(?m)^(?:bin/)?`+program+` (--.*?)(?: &)?$`).FindAllStringSubmatch(section, -1)
			if len(lines) == 0 {
				t.Fatal("README.md has no start line")
			}
			for _, line := range lines {
				checked(t, path, strings.Fields(line[1]))
			}
		})
		t.Run(program+" flags", func(t *testing.T) { checkFlagTable(t, section, checked(t, path, nil)) })
	}
	t.Run("envoy-config", func(t *testing.T) {
		line := regexp.MustCompile(`(?m)^bin/tandem (envoy-config .*?) >`).FindStringSubmatch(readme)
		if line == nil {
			t.Fatal("README.md has no line that writes Envoy's configuration")
		}
		output(t, filepath.Join(bin, "tandem"), strings.Fields(line[1])...)
	})
	t.Run("endpoints", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "endpoints.yaml")
		block := regexp.MustCompile("(?s)```yaml\n(endpoints:.*?)```").FindStringSubmatch(readme)
		if block == nil {
			t.Fatal("README.md has no endpoints file")
		}
		if err := os.WriteFile(file, []byte(block[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		if found, err := (&pool.File{Path: file}).Load(); err != nil || len(found) == 0 {
			t.Errorf("%d endpoints, %v", len(found), err)
		}
	})
}

// sectionOf is the text from a heading to the next of its level.
func sectionOf(t *testing.T, readme, heading string) string {
	t.Helper()
	_, section, ok := strings.Cut(readme, heading+"\n")
	if !ok {
		t.Fatalf("README.md has no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

// checkFlagTable compares a section's table of flags with the program's defaults.
func checkFlagTable(t *testing.T, section string, defaults map[string]any) {
	t.Helper()
	rows := regexp.MustCompile("(?m)^\\| `--([a-z-]+)`(?:, `--([a-z-]+)`)? \\| ([^|]*) ?\\|").FindAllStringSubmatch(section, -1)
	if len(rows) == 0 {
		t.Fatal("there is no table of flags")
	}
	for _, row := range rows {
		texts := strings.Split(strings.TrimSpace(row[3]), ", ")
		for i, flag := range row[1:3] {
			if flag != "" && !sameDefault(defaults[flag], texts[i]) {
				t.Errorf("--%s: README.md says %q, the program %v", flag, texts[i], defaults[flag])
			}
		}
	}
}

// sameDefault compares a default as the table writes it with the program's;
// words instead of a value stand for an empty list.
func sameDefault(got any, text string) bool {
	if list, ok := got.([]any); ok {
		return len(list) == 0 && strings.Contains(text, " ")
	}
	if text == "" {
		return got == ""
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
