package check_test

import (
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/cmd/tandem/check"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"check": func() { boot.Main(check.Run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }
