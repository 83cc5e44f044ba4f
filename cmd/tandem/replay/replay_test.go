package replay_test

import (
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/cmd/tandem/replay"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"replay": func() { boot.Main(replay.Run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }
