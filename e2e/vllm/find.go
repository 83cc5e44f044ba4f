package vllm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// ErrNone says that this checkout has no vLLM, and how to get one.
var ErrNone = errors.New("there is none (make .tools/vllm .tools/tinymodel installs one: 7 GB)")

// tools are the files that an engine runs with.
type tools struct {
	python string
	model  string // folder; the engines compare its path, so all get the same
	site   string // folder of the module that every Python process of an engine loads
}

// find searches the checkout that contains the current directory.
func find() (tools, error) {
	dir, err := os.Getwd()
	if err != nil {
		return tools{}, fmt.Errorf("finding vLLM: %w", err)
	}
	for up := ""; dir != up; up, dir = dir, filepath.Dir(dir) {
		t := tools{
			python: filepath.Join(dir, ".tools", "vllm", "bin", "python"),
			model:  filepath.Join(dir, ".tools", "tinymodel"),
			site:   filepath.Join(dir, "e2e", "vllm", "testdata", "site"),
		}
		if exist(t.python, t.model, t.site) {
			return t, nil
		}
	}
	return tools{}, fmt.Errorf("finding vLLM: %w", ErrNone)
}

func exist(paths ...string) bool {
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			return false
		}
	}
	return true
}

// Require makes a test that needs vLLM skip if it is missing, or fail if CI=true.
func Require(tb testing.TB) {
	tb.Helper()
	_, err := find()
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		tb.Fatal(err)
	default:
		tb.Skip(err)
	}
}
