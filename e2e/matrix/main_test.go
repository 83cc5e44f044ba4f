package matrix

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the files in testdata anew")

// atOnce is how many rows run in parallel: they wait far more than they compute.
const atOnce = "24"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// testTimeout ends a row that hangs. Nothing is measured by it.
const testTimeout = 60 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// wait waits for a channel to be closed or to deliver.
func wait[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-within(t).Done():
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// soon is well before a lease ends (30 s). The tests assert no exact times.
const soon = 15 * time.Second

// until polls until a condition holds that no channel announces.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for limit := time.Now().Add(soon); !ok(); <-poll.C {
		if time.Now().After(limit) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
