package bench

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
)

// The test binary plays the command, and the tool whose floors the command starts.
func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){
		"bench": func() { boot.Main(Run) },
		"tandem": func() {
			boot.Main(func(ctx context.Context, std boot.IO, args []string) error { return Run(ctx, std, args[1:]) })
		},
	})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// programs builds what is measured.
func programs(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.Command("go", "build", "-o", dir, "../../epp", "../../sidecar")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the programs: %v\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "tandem")); err != nil {
		t.Fatal(err)
	}
	return dir
}
