package services_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tandem-serving/tandem/e2e/kube/container"
	"github.com/tandem-serving/tandem/e2e/kube/services"
)

// TestNoAPIServer: the start ends with the patience of who asked for it, and leaves nothing that a second one would meet.
func TestNoAPIServer(t *testing.T) {
	container.Require(t)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		s, err := services.Start(ctx, &rest.Config{Host: "https://127.0.0.1:1"})
		cancel()
		if s != nil || err == nil || !strings.Contains(err.Error(), "starting Services: reading Services and EndpointSlices") {
			t.Fatalf("%v, %v", s, err)
		}
	}
}
