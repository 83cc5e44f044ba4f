package nixl

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// EnvLibrary is the environment variable that names the library, or its folder, if Config does not.
const EnvLibrary = "TANDEM_NIXL_LIB"

// soname is the name that the dynamic loader looks for.
const soname = "libnixl_capi.so"

// wheels are the folders of a Python environment that hold the library, of the wheels nixl-cu12 and nixl-cu13. They begin
// with a dot.
var wheels = []string{".nixl_cu12.mesonpy.libs", ".nixl_cu13.mesonpy.libs"}

// pythons are where Python environments have their packages, below a root.
var pythons = []string{"lib/python3*/site-packages", "lib/python3*/dist-packages", "lib64/python3*/site-packages"}

// prefixes are where environments of the images that have NIXL lie, and where it is installed from source.
var prefixes = []string{"/opt/venv", "/opt/vllm", "/usr", "/usr/local"}

// sources are where an installation from source puts it.
var sources = []string{"/opt/nvidia/nvda_nixl/lib*", "/opt/nvidia/nvda_nixl/lib/*", "/usr/local/nixl/lib*", "/usr/local/nixl/lib/*"}

// ErrNoLibrary means that the library was not found, or cannot be opened. The wrapping error lists the places.
var ErrNoLibrary = errors.New("the NIXL library is missing")

// candidates returns the places to search, best first. A place that the user named is the only one.
func candidates(named string) []string {
	for _, path := range []string{named, os.Getenv(EnvLibrary)} {
		if path != "" {
			return []string{inFolder(path)}
		}
	}
	list := []string{soname}
	roots := prefixes
	if venv := os.Getenv("VIRTUAL_ENV"); venv != "" {
		roots = append([]string{venv}, roots...)
	}
	for _, root := range roots {
		for _, python := range pythons {
			for _, wheel := range wheels {
				list = append(list, globbed(filepath.Join(root, python, wheel))...)
			}
		}
	}
	for _, source := range sources {
		list = append(list, globbed(source)...)
	}
	return list
}

// globbed returns the libraries in folders that match a pattern.
func globbed(folder string) []string {
	found, err := filepath.Glob(filepath.Join(folder, soname))
	if err != nil {
		panic(err) // only a bad pattern is an error
	}
	return found
}

// inFolder returns the library in a folder. The opener reports a missing file.
func inFolder(path string) string {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return filepath.Join(path, soname)
	}
	return path
}

// absolute resolves a path that the user named, so that the library finds its siblings. Links are resolved, because the
// siblings are next to the real file.
func absolute(path string) (string, error) {
	if path == soname {
		return path, nil
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", plain(err)
	}
	return filepath.Abs(real)
}

// plain removes the path from a file error, because the message around it has it already.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
