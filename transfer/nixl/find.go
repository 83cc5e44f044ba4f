package nixl

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// EnvLibrary is the environment variable that names the library, or its folder, where Config does not.
const EnvLibrary = "TANDEM_NIXL_LIB"

// soname is what the dynamic loader is asked for.
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

// ErrNoLibrary means that the library is nowhere to be found, or cannot be opened. The error around it says where it was
// looked for.
var ErrNoLibrary = errors.New("the NIXL library is not there")

// candidates are the places to look at, best first. One that the user named is the only one.
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

// globbed are the libraries in folders of a pattern.
func globbed(folder string) []string {
	found, err := filepath.Glob(filepath.Join(folder, soname))
	if err != nil {
		panic(err) // only a bad pattern is an error
	}
	return found
}

// inFolder takes a folder for the library in it. What is not there is the opener's to report.
func inFolder(path string) string {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return filepath.Join(path, soname)
	}
	return path
}

// absolute makes a path that the user named one that the library finds its siblings by. A link to the single file does
// not: they lie beside what it points to.
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

// plain drops the path of a file error: the sentence around it has it already.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
