package container

import (
	"os"
	"testing"
)

const (
	// roleVariable tells the test binary its role, if it is not to run tests.
	roleVariable = "TANDEM_CONTAINER_ROLE"

	roleInit  = "init"  // first process of the namespaces
	roleNode  = "node"  // runs the tests, in the namespaces
	roleStart = "start" // becomes the program of a new container
	roleExec  = "exec"  // becomes another program in a container
)

// outside says why the tests do not run in namespaces of their own; empty: they do.
var outside = "TestMain does not call container.Enter"

// Require skips a test that runs outside of the namespaces, with what is missing; it fails the test if CI=true.
func Require(tb testing.TB) {
	tb.Helper()
	switch {
	case outside == "":
	case os.Getenv("CI") == "true":
		tb.Fatalf("containers need namespaces of Linux: %s", outside)
	default:
		tb.Skipf("containers need namespaces of Linux: %s", outside)
	}
}
