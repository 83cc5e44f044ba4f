package container

import (
	"os"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(programVariable); name != "" {
		syscall.Exit(runProgram(name)) // without a word of what watches tests
	}
	Enter()
	if name := os.Getenv(enteredVariable); name != "" {
		syscall.Exit(runProgram(name))
	}
	goleak.VerifyTestMain(m)
}
