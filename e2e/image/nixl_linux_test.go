package image_test

import (
	"archive/zip"
	"bufio"
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// fetchedNIXL is what make fetched of NIXL's wheel: all that an image takes of it but the licences.
const fetchedNIXL = repository + "/.tools/nixl"

// nixlFetched reports whether it is there.
func nixlFetched(t *testing.T) bool {
	t.Helper()
	_, err := os.Stat(fetchedNIXL)
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("%v: make .tools/nixl", err)
	}
	return err == nil
}

// packWheel makes a wheel of what make fetched, by the same pins, in place of the download.
func packWheel(t *testing.T, dir string) {
	t.Helper()
	pins, err := os.ReadFile(filepath.Join(dir, "nixl.txt"))
	if err != nil || strings.Count(string(pins), "--hash=sha256:") != 2 {
		t.Fatalf("the pins of the wheel are not there, or not for two architectures: %v\n%s", err, pins)
	}
	f, err := os.Create(filepath.Join(dir, "nixl.whl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	wheel := zip.NewWriter(f)
	add(t, wheel, "nixl_cu12-0.0.0.dist-info/licenses/LICENSE", strings.NewReader("a licence"))
	root, err := filepath.EvalSymlinks(fetchedNIXL)
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		content, err := os.Open(file)
		if err != nil {
			return err
		}
		defer content.Close()
		add(t, wheel, name, content)
		return nil
	})
	if err == nil {
		err = wheel.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// add puts a file into an archive as it is: packing it would take longer than all else.
func add(t *testing.T, to *zip.Writer, name string, content io.Reader) {
	t.Helper()
	w, err := to.CreateHeader(&zip.FileHeader{Name: filepath.ToSlash(name), Method: zip.Store})
	if err == nil {
		_, err = io.Copy(w, content)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// withKernel returns the image with what UCX looks at of the kernel, and starting a process needs: a runtime gives it to every
// container.
func (i *image) withKernel(t *testing.T) *image {
	t.Helper()
	more := *i
	more.Mounts = maps.Clone(i.Mounts)
	for _, path := range []string{"/dev", "/proc", "/sys"} {
		more.mount(t, path, path)
	}
	return &more
}

// probe has the keeper in the image start NIXL.
func (i *image) probe(t *testing.T) {
	keeper := i.withKernel(t)
	keeper.Entry = "/keeper"
	keeper.mustBeReadable(t)
	var found struct{ Transport, About string }
	out := keeper.run(t, "--probe")
	if err := json.Unmarshal([]byte(out), &found); err != nil || found.Transport != "nixl" ||
		!strings.HasPrefix(found.About, "/nixl/.nixl_cu12.mesonpy.libs/libnixl_capi.so, as ") {
		t.Errorf("it says %q, %v", out, err)
	}
}

// keep has the sidecar in the image start the keeper that the flags name.
func (i *image) keep(t *testing.T, flags ...string) {
	cmd := i.withKernel(t).command(t, flags...)
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		unprivileged(t, err)
	}
	ended, runs := false, false
	for lines := bufio.NewScanner(log); lines.Scan(); {
		runs = runs || strings.Contains(lines.Text(), "the keeper process runs")
		if !ended && strings.Contains(lines.Text(), "the keeper process ") { // runs, or ended
			ended = true
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
		t.Log(lines.Text())
	}
	if err := cmd.Wait(); err != nil || !runs {
		t.Errorf("it ended with %v, and the keeper ran: %t", err, runs)
	}
}
