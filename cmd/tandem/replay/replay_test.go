package replay_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/cmd/tandem/replay"
	"github.com/tandem-serving/tandem/cmd/tandem/workload"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"replay": func() { boot.Main(replay.Run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// TestShapesAreOnTheirPage: the page says of each shape what it is.
func TestShapesAreOnTheirPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/replay.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range workload.Shapes() {
		if row := fmt.Sprintf("| `%s` | %s |\n", s.Name, s.About); !strings.Contains(string(page), row) {
			t.Errorf("docs/replay.md lacks the row %s", row)
		}
	}
}
