package envoy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrNone says that this machine has no Envoy, and how to get one.
var ErrNone = errors.New("there is none (make .tools/envoy fetches one; ENVOY_BIN names another)")

// Find gives the path of an Envoy: what ENVOY_BIN names, else .tools/envoy of the checkout that the current directory
// lies in, else one in PATH. The error is ErrNone, or that ENVOY_BIN is wrong.
func Find() (string, error) {
	if path := os.Getenv("ENVOY_BIN"); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("finding Envoy by ENVOY_BIN: %w", err)
		}
		return path, nil
	}
	if path, ok := findTool(); ok {
		return path, nil
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("finding Envoy: %w", ErrNone)
}

func findTool() (path string, ok bool) {
	dir, err := os.Getwd()
	if err != nil {
		return "", false
	}
	for {
		path = filepath.Join(dir, ".tools", "envoy")
		if _, err := os.Stat(path); err == nil {
			return path, true
		}
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return "", false
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", false
		}
		dir = up
	}
}

// TB is what Require needs of a testing.TB.
type TB interface {
	Helper()
	Fatal(args ...any)
	Skip(args ...any)
}

// Require makes a test that needs Envoy skip where there is none, or fail if CI=true.
func Require(t TB) {
	t.Helper()
	_, err := Find()
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}
