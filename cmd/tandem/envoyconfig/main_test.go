package envoyconfig_test

import (
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/cmd/tandem/envoyconfig"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"envoy-config": func() { boot.Main(envoyconfig.Run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }
