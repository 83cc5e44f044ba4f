package ranks

import (
	"os"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Run(m)) }
