package charts_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	testprograms "github.com/tandem-serving/tandem/e2e/programs"
)

// binDir is where the programs of this repository are built to when the first test asks for one.
var binDir string

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	defer func() { os.RemoveAll(binDir) }()
	return m.Run()
}

// touch opens all files of the chart. Go keeps the outcome of tests for as long as the files that a test itself has opened are
// the same; of what only helm opens it does not know.
var touch = sync.OnceValue(func() error {
	return filepath.WalkDir(chart, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		_, err = os.ReadFile(path)
		return err
	})
})

var build = sync.OnceValue(func() (err error) {
	binDir, err = testprograms.Build(testprograms.All()...)
	return err
})

// program returns the path of a program of this repository.
func program(tb testing.TB, name string) string {
	tb.Helper()
	if err := build(); err != nil {
		tb.Fatal(err)
	}
	return filepath.Join(binDir, name)
}
