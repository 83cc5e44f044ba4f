package programs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// All lists the programs of the repository.
func All() []string { return []string{"batch", "epp", "keeper", "sidecar", "sim", "tandem"} }

// Build builds the named programs and returns a new directory that holds only them. The caller removes it. The executables
// are links made by this call, so a test can distinguish its processes from those of other packages by their path.
func Build(names ...string) (dir string, err error) {
	root, err := checkout()
	if err != nil {
		return "", err
	}
	shared := filepath.Join(root, "bin", "test")
	if err := os.MkdirAll(shared, 0o755); err != nil {
		return "", fmt.Errorf("building the programs: %w", err)
	}
	unlock, err := lock(filepath.Join(shared, ".lock"))
	if err != nil {
		return "", fmt.Errorf("building the programs: %w", err)
	}
	defer unlock()
	args := []string{"build", "-trimpath", "-ldflags=-s -w", "-o", shared}
	for _, name := range names {
		args = append(args, "./cmd/"+name)
	}
	build := exec.Command("go", args...)
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	if dir, err = os.MkdirTemp(shared, "run-"); err != nil {
		return "", fmt.Errorf("building the programs: %w", err)
	}
	for _, name := range names {
		if err := os.Link(filepath.Join(shared, name), filepath.Join(dir, name)); err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
	}
	return dir, nil
}

// checkout returns the root of the repository above the directory that the test runs in: where go.mod and cmd/epp are.
func checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "epp", "main.go")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("building the programs: the test does not run inside a checkout of this repository")
		}
		dir = parent
	}
}

// lock waits until no other process builds.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
