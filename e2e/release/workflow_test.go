package release_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNotes: what the changelog says about a version is the text of its release.
func TestNotes(t *testing.T) {
	changelog := filepath.Join(t.TempDir(), "CHANGELOG.md")
	text := "# Changelog\n\n## Unreleased\n\n- next\n\n## 1.2.3 - 2027-01-31\n\n### Added\n\n- this\n\n## 1.2.3-rc.1\n\n- candidate\n\n## 1.2\n\n"
	if err := os.WriteFile(changelog, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ version, want string }{
		{"v1.2.3", "### Added\n\n- this"},
		{"v1.2.3-rc.1", "- candidate"},
		{"v1.2", ""}, // has nothing to say
		{"v1.2.4", ""},
	} {
		t.Run(c.version, func(t *testing.T) {
			out, err := script(t, "notes", []string{"CHANGELOG=" + changelog}, c.version)
			if (err == nil) != (c.want != "") || c.want != "" && strings.TrimSpace(out) != c.want {
				t.Errorf("%v, it prints %q, want %q", err, out, c.want)
			}
		})
	}
}

// TestWorkflowsUseTheDockerfilesGo: the programs of a release, those of the images and those that were tested are built by the same Go.
func TestWorkflowsUseTheDockerfilesGo(t *testing.T) {
	wanted := regexp.MustCompile(`ARG GO_VERSION=(\S+)`).FindSubmatch(read(t, filepath.Join(repository, "Dockerfile")))
	if wanted == nil {
		t.Fatal("the Dockerfile names no version of Go")
	}
	for file, pattern := range map[string]string{"check.yml": `image: golang:([0-9.]+)`, "release.yml": `go-version: (\S+)`} {
		found := regexp.MustCompile(pattern).FindSubmatch(read(t, filepath.Join(repository, ".github", "workflows", file)))
		if found == nil || string(found[1]) != string(wanted[1]) {
			t.Errorf("%s: %q, want Go %s", file, found, wanted[1])
		}
	}
}
