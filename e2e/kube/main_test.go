package kube_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/e2e/kube/container"
)

func TestMain(m *testing.M) {
	container.Enter()
	goleak.VerifyTestMain(m)
}
