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

// Find returns the path of an Envoy: the one that ENVOY_BIN names, else .tools/envoy of the checkout that has the current
// directory, else one in PATH. The error is ErrNone, or says that ENVOY_BIN is wrong.
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

// TB has the methods of testing.TB that Require calls.
type TB interface {
	Helper()
	Fatal(args ...any)
	Skip(args ...any)
}

// Require skips a test that needs Envoy if there is none, and fails it if CI=true.
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
