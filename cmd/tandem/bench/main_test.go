package bench

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	testprograms "github.com/tandem-serving/tandem/e2e/programs"
)

// The test binary plays the command, and the tandem program whose baselines the command starts.
func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){
		"bench": func() { boot.Main(Run) },
		"tandem": func() {
			boot.Main(func(ctx context.Context, std boot.IO, args []string) error { return Run(ctx, std, args[1:]) })
		},
	})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// programs builds the programs to measure.
func programs(t *testing.T) (dir string) {
	t.Helper()
	dir, err := testprograms.Build("epp", "sidecar")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "tandem")); err != nil {
		t.Fatal(err)
	}
	return dir
}
