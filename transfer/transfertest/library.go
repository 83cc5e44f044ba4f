package transfertest

import (
	"os"
	"path/filepath"
	"testing"
)

// envLibrary is nixl.EnvLibrary. Package nixl is not imported, because its own tests use this package.
const envLibrary = "TANDEM_NIXL_LIB"

// NIXLLibrary returns the path of the NIXL library: the one that the environment names, or the folder of the one that make has
// fetched. If there is none, it skips the test, and with CI=true fails it.
func NIXLLibrary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(envLibrary); path != "" {
		return path
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for last := ""; dir != last; last, dir = dir, filepath.Dir(dir) {
		if found, err := filepath.Glob(filepath.Join(dir, ".tools", "nixl", ".nixl_*.libs")); err == nil && len(found) > 0 {
			return found[0]
		}
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("the NIXL library is missing: make .tools/nixl")
	}
	t.Skip("the NIXL library is missing: make .tools/nixl fetches it, or " + envLibrary + " names another")
	return ""
}
