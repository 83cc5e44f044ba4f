package release_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/programs"
)

// repository is the root of the repository.
const repository = "../.."

// version is that of the release that the tests make.
const version = "v1.2.3-test"

// tools are what the script needs besides Go and git.
var tools = []string{"helm", "cyclonedx-gomod"}

// script runs a script of .ci in the repository.
func script(t *testing.T, name string, env []string, args ...string) (out string, err error) {
	t.Helper()
	dir, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, ".ci", name), args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	text, err := cmd.CombinedOutput()
	return string(text), err
}

func requireTools(t *testing.T) {
	t.Helper()
	for _, tool := range tools {
		if _, err := os.Stat(filepath.Join(repository, ".tools", tool)); err == nil {
			continue
		} else if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("%s is missing: make .tools/%s builds it", tool, tool)
	}
}

func TestReleaseIsRefused(t *testing.T) {
	there := t.TempDir()
	for _, c := range []struct {
		name string
		env  []string
		want string
	}{
		{"no version", []string{"VERSION="}, "name the version"},
		{"no version of Go's form", []string{"VERSION=1.2.3"}, "name the version"},
		{"a folder that exists", []string{"VERSION=" + version, "DIRTY=allow", "DIST=" + there}, there + " exists"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if out, err := script(t, "release", c.env); err == nil || !strings.Contains(out, c.want) {
				t.Errorf("%v, it says %q, want %q", err, out, c.want)
			}
		})
	}
}

// TestRelease makes a release for this platform and looks into every file.
func TestRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("links every program again: make test-all does")
	}
	requireTools(t)
	dist := filepath.Join(t.TempDir(), "dist")
	out, err := script(t, "release", []string{"VERSION=" + version, "DIRTY=allow", "DIST=" + dist, "PLATFORMS=linux/" + runtime.GOARCH})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	platform := "-" + version + "-linux-" + runtime.GOARCH
	chart, images, binaries := "tandem-"+version[1:]+".tgz", "tandem-"+version+"-images.tar.gz", "tandem"+platform+".tar.gz"
	want := []string{"SHA256SUMS", chart, images, binaries}
	for _, program := range programs.All() {
		want = append(want, program+platform+".cdx.json")
	}
	t.Run("files", func(t *testing.T) { mustHaveFiles(t, dist, want) })
	t.Run("checksums", func(t *testing.T) { mustHaveSums(t, dist) })
	for _, name := range []string{chart, images, binaries} {
		t.Run("no trace of the builder in "+name, func(t *testing.T) { mustBeAnonymous(t, filepath.Join(dist, name)) })
	}
	unpacked := unpack(t, filepath.Join(dist, binaries))
	for _, program := range programs.All() {
		file := filepath.Join(unpacked, "tandem"+platform, program)
		t.Run(program, func(t *testing.T) { mustHaveVersion(t, file) })
		t.Run("modules of "+program, func(t *testing.T) { mustListModules(t, file, filepath.Join(dist, program+platform+".cdx.json")) })
	}
	t.Run("licence", func(t *testing.T) {
		if _, err := os.Stat(filepath.Join(unpacked, "tandem"+platform, "LICENSE")); err != nil {
			t.Error(err)
		}
	})
	t.Run("chart", func(t *testing.T) { mustInstallVersion(t, filepath.Join(dist, chart)) })
	t.Run("images", func(t *testing.T) { mustBuild(t, unpack(t, filepath.Join(dist, images))) })
}

func mustHaveFiles(t *testing.T, dist string, want []string) {
	t.Helper()
	entries, err := os.ReadDir(dist)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the release has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// mustHaveSums compares each line of SHA256SUMS with the file, and the lines with the files.
func mustHaveSums(t *testing.T, dist string) {
	t.Helper()
	entries, err := os.ReadDir(dist)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, e := range entries {
		if e.Name() != "SHA256SUMS" {
			fmt.Fprintf(&want, "%x  %s\n", sha256.Sum256(read(t, filepath.Join(dist, e.Name()))), e.Name())
		}
	}
	if got := string(read(t, filepath.Join(dist, "SHA256SUMS"))); got != want.String() {
		t.Errorf("SHA256SUMS says\n%s\nand the files have\n%s", got, want.String())
	}
}

// mustBeAnonymous finds what would make the archive another one on another machine, or at another time.
func mustBeAnonymous(t *testing.T, file string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "log", "-1", "--format=%ct")
	cmd.Dir = repository
	commit, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	eachEntry(t, file, func(h *tar.Header, _ io.Reader) {
		if got := fmt.Sprint(h.ModTime.Unix()); got != strings.TrimSpace(string(commit)) || h.Uid != 0 || h.Gid != 0 || h.Uname+h.Gname != "" {
			t.Errorf("%s: time %s, user %d %q, group %d %q; want the time of the commit, %s, and user and group 0 without names",
				h.Name, got, h.Uid, h.Uname, h.Gid, h.Gname, commit)
		}
		if h.FileInfo().Mode().Perm()&0o022 != 0 {
			t.Errorf("%s: mode %v: others could change it", h.Name, h.FileInfo().Mode())
		}
		if path.Dir(h.Name) == path.Dir(last) && h.Name < last {
			t.Errorf("%s comes after %s", h.Name, last)
		}
		last = h.Name
	})
}

func mustHaveVersion(t *testing.T, program string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), version) {
		t.Errorf("%v: it says %q, and not its version %s", err, out, version)
	}
}

// mustListModules compares a program's SBOM with what the linker wrote into the program. Every direct dependency in it must be
// named with its version.
func mustListModules(t *testing.T, program, file string) {
	t.Helper()
	var list struct {
		BOMFormat, SpecVersion string
		Metadata               struct {
			Component struct{ Name, Version string }
		}
		Components []struct{ Name, Version, PURL string }
	}
	if err := json.Unmarshal(read(t, file), &list); err != nil {
		t.Fatal(err)
	}
	if of := list.Metadata.Component; list.BOMFormat != "CycloneDX" || list.SpecVersion == "" || of.Version != version {
		t.Errorf("it is a %s %s of %s %s", list.BOMFormat, list.SpecVersion, of.Name, of.Version)
	}
	listed := map[string]string{}
	for _, c := range list.Components {
		listed[c.Name] = c.Version
	}
	built, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	direct, found := directDependencies(t), 0
	for _, d := range built.Deps {
		if listed[d.Path] != d.Version {
			t.Errorf("it has %s in version %q, and the program has %s", d.Path, listed[d.Path], d.Version)
		}
		if slices.Contains(direct, d.Path) {
			found++
		}
	}
	if found == 0 {
		t.Errorf("the program is linked with none of %v", direct)
	}
}

// directDependencies are the modules that this one requires by its own imports.
func directDependencies(t *testing.T) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{if not (or .Main .Indirect)}}{{.Path}}{{end}}", "all")
	cmd.Dir = repository
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// mustInstallVersion checks that the chart asks for images of its own version.
func mustInstallVersion(t *testing.T, chart string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(repository, ".tools", "helm"), "template", "x", chart, "--kube-version", "1.34.0",
		"--set", "images.registry=registry.example.com/tandem", "--set", "model.name=acme/model")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	for _, image := range []string{"epp", "sidecar", "tandem"} {
		if want := "image: registry.example.com/tandem/" + image + ":" + version + "\n"; !strings.Contains(strings.ReplaceAll(string(out), `"`, ""), want) {
			t.Errorf("no pod has %q", want)
		}
	}
}

// mustBuild has Go look for all that the images' programs are compiled from.
func mustBuild(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "Dockerfile")); err != nil {
		t.Error(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", "nixl", "./cmd/...")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// unpack writes what an archive has into a folder.
func unpack(t *testing.T, file string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	eachEntry(t, file, func(h *tar.Header, content io.Reader) {
		to := filepath.Join(dir, filepath.FromSlash(path.Clean("/"+h.Name)))
		if h.FileInfo().IsDir() {
			if err := os.MkdirAll(to, 0o755); err != nil {
				t.Fatal(err)
			}
			return
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, h.FileInfo().Mode().Perm())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(f, content); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	})
	return dir
}

// eachEntry calls do for every entry of an archive.
func eachEntry(t *testing.T, file string, do func(h *tar.Header, content io.Reader)) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	plain, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	entries := 0
	for archive := tar.NewReader(plain); ; entries++ {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		do(h, archive)
	}
	if entries == 0 {
		t.Errorf("%s is empty", file)
	}
}
