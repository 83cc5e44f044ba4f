package container

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// errNoNIXL says that this checkout has no NIXL, and how to get one.
var errNoNIXL = errors.New("the NIXL library is missing (make .tools/nixl fetches it)")

// keeper is built once for all tests of the process.
var keeper = sync.OnceValues(buildKeeper)

// SidecarNIXL returns the image sidecar-nixl: a sidecar with a keeper and the NIXL library. It is as the Dockerfile makes it,
// but has this machine's shared libraries, and building it takes a C compiler. Without namespaces, compiler or library the
// test is skipped, or fails if CI=true.
func SidecarNIXL(tb testing.TB) Images {
	tb.Helper()
	Require(tb)
	image, err := sidecarNIXL()
	switch {
	case err == nil:
	case (errors.Is(err, errNoNIXL) || errors.Is(err, exec.ErrNotFound)) && os.Getenv("CI") != "true":
		tb.Skip(err)
	default:
		tb.Fatal(err)
	}
	return Images{registry + "sidecar-nixl": image}
}

func sidecarNIXL() (Image, error) {
	source, err := moduleRoot()
	if err != nil {
		return Image{}, err
	}
	library, err := filepath.EvalSymlinks(filepath.Join(source, ".tools", "nixl"))
	if err != nil {
		return Image{}, fmt.Errorf("%w: %w", errNoNIXL, err)
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		return Image{}, fmt.Errorf("building the keeper takes a C compiler (Debian: apt-get install gcc): %w", err)
	}
	dir, err := programs()
	if err != nil {
		return Image{}, err
	}
	program, err := keeper()
	if err != nil {
		return Image{}, err
	}
	image := programImage(dir, "sidecar")
	image.Files["/keeper"], image.Files["/keeper-sim"], image.Files["/nixl"] = program, filepath.Join(dir, "keeper"), library
	image.Shared = libraries()
	image.Env = []string{"TANDEM_NIXL_LIB=/nixl/.nixl_cu12.mesonpy.libs", "UCX_TLS=tcp"}
	return image, nil
}

func buildKeeper() (program string, err error) {
	dir, err := programs()
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, "keeper-nixl")
	return program, goBuild("CGO_ENABLED=1", "-tags=nixl,netgo,osusergo", "-o", program, "./cmd/keeper")
}
