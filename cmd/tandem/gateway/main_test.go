package gateway_test

import (
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/cmd/tandem/gateway"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"gateway": func() { boot.Main(gateway.Run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }
