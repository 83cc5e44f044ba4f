package load

import (
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"load": func() { boot.Main(Run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }
