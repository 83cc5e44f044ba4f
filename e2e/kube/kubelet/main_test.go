package kubelet

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/e2e/kube/container"
)

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		os.Exit(runProgram())
	}
	container.Enter()
	// Pods mostly wait, so more of them run at once than there are processors; who gives the flag has the last word.
	if err := flag.Set("test.parallel", "6"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
