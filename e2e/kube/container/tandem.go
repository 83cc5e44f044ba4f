package container

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/stack/envoy"
)

const (
	// registry has the images of this repository.
	registry = "ghcr.io/tandem-serving/"
	// user is that of the images, as the Dockerfile has it.
	user = 65532
	// certificates are those that the images come with, on Debian and in them.
	certificates = "/etc/ssl/certs/ca-certificates.crt"
)

// programs are built once for all tests of the process.
var programs = sync.OnceValues(buildPrograms)

// Tandem returns the images that the chart names, but for the engine: epp, sidecar, sim and tandem of this checkout, as the
// Dockerfile makes them, and Envoy. The programs are built at the first call, into a folder in memory that is gone with the
// namespaces. Without namespaces or Envoy the test is skipped, or fails if CI=true.
func Tandem(tb testing.TB) Images {
	tb.Helper()
	Require(tb)
	proxy, err := findEnvoy()
	switch {
	case err == nil:
	case errors.Is(err, envoy.ErrNone) && os.Getenv("CI") != "true":
		tb.Skip(err)
	default:
		tb.Fatal(err)
	}
	dir, err := programs()
	if err != nil {
		tb.Fatal(err)
	}
	const inImage = "/usr/local/bin/envoy"
	images := Images{"envoyproxy/envoy": {Files: map[string]string{inImage: proxy}, Shared: libraries(),
		Entrypoint: []string{inImage}, UID: user, GID: user}}
	for _, name := range []string{"epp", "sidecar", "sim", "tandem"} {
		images[registry+name] = programImage(dir, name)
	}
	return images
}

// programImage is one with a static program at the root, and certificates.
func programImage(dir, name string) Image {
	image := Image{Files: map[string]string{"/" + name: filepath.Join(dir, name)}, Entrypoint: []string{"/" + name},
		UID: user, GID: user}
	if _, err := os.Stat(certificates); err == nil {
		image.Files[certificates] = certificates
	}
	return image
}

// libraries returns the folders in which programs find the C library, and their loader.
func libraries() (found []string) {
	for _, dir := range []string{"/lib", "/lib64", "/usr/lib"} {
		if _, err := os.Stat(dir); err == nil {
			found = append(found, dir)
		}
	}
	return found
}

func buildPrograms() (dir string, err error) {
	// In the namespaces /run is in memory, and private.
	if dir, err = os.MkdirTemp("/run", "programs"); err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		return "", fmt.Errorf("building the programs: %w", err)
	}
	return dir, goBuild("CGO_ENABLED=0", "-o", dir, "./cmd/epp", "./cmd/sidecar", "./cmd/keeper", "./cmd/sim", "./cmd/tandem")
}

// goBuild runs go build in the checkout, with one more variable.
func goBuild(variable string, args ...string) error {
	source, err := moduleRoot()
	if err != nil {
		return err
	}
	build := exec.Command("go", append([]string{"build", "-trimpath", "-ldflags=-s -w"}, args...)...)
	build.Dir, build.Env = source, append(os.Environ(), variable)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	return nil
}

// findEnvoy returns the path of an Envoy, also from the folders of this module, where package envoy would look no further than
// the go.mod.
func findEnvoy() (string, error) {
	if source, err := moduleRoot(); err == nil && os.Getenv("ENVOY_BIN") == "" {
		path := filepath.Join(source, ".tools", "envoy")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return envoy.Find()
}

// moduleRoot returns the checkout that the tests run in.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for up := ""; err == nil && dir != up; up, dir = dir, filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "sidecar")); err == nil {
			return dir, nil
		}
	}
	return "", errors.Join(errors.New("finding the checkout: no folder above this one has cmd/sidecar"), err)
}
