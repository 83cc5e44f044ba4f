package realengine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// ErrNone says that this checkout has no such engine.
var ErrNone = errors.New("there is none")

// Tools are the files that an engine runs with.
type Tools struct {
	Python string
	Model  string // folder; engines of a pair compare its path, so all get the same
	Site   string // folder of the module that every Python process of an engine loads
}

// Find searches the checkout that contains the current directory for an engine, by the name of its package.
func Find(name string) (Tools, error) {
	t := Tools{}
	err := search(name, func(dir string) bool {
		t = Tools{
			Python: filepath.Join(dir, ".tools", name, "bin", "python"),
			Model:  filepath.Join(dir, ".tools", "tinymodel"),
			Site:   filepath.Join(dir, "e2e", name, "testdata", "site"),
		}
		return exist(t.Python, t.Model, t.Site)
	})
	if err != nil {
		return Tools{}, fmt.Errorf("%w (make .tools/%s .tools/tinymodel installs one: 7 GB)", err, name)
	}
	return t, nil
}

// FindPart searches the checkout for what an engine needs besides, by its name in .tools.
func FindPart(name string) (folder string, err error) {
	err = search(name, func(dir string) bool {
		folder = filepath.Join(dir, ".tools", name)
		return exist(folder)
	})
	if err != nil {
		return "", fmt.Errorf("%w (make .tools/%s fetches it)", err, name)
	}
	return folder, nil
}

// search has found look at the current directory and those above it, until it returns true.
func search(name string, found func(dir string) bool) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("finding %s: %w", name, err)
	}
	for up := ""; dir != up; up, dir = dir, filepath.Dir(dir) {
		if found(dir) {
			return nil
		}
	}
	return fmt.Errorf("finding %s: %w", name, ErrNone)
}

func exist(paths ...string) bool {
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			return false
		}
	}
	return true
}

// Require makes a test that needs an engine skip if it is missing, or fail if CI=true.
func Require(tb testing.TB, name string) {
	tb.Helper()
	_, err := Find(name)
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		tb.Fatal(err)
	default:
		tb.Skip(err)
	}
}
