package handoff

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// lateDial is the error of a dialer whose time is over.
type lateDial struct{}

func (lateDial) Error() string { return "i/o timeout" }
func (lateDial) Timeout() bool { return true }

func dialError(cause error) error {
	return &prefillError{cause: "connection", err: fmt.Errorf("sending: %w", &net.OpError{Op: "dial", Net: "tcp", Err: cause})}
}

func TestUnconnected(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"success", nil, false},
		{"refused", dialError(syscall.ECONNREFUSED), true},
		{"no such host", dialError(syscall.EHOSTUNREACH), true},
		{"no answer to the dial", dialError(lateDial{}), true},
		{"out of files", dialError(syscall.EMFILE), false},
		{"reset after it was connected", &net.OpError{Op: "read", Err: syscall.ECONNRESET}, false},
		{"a slow answer", &net.OpError{Op: "read", Err: lateDial{}}, false},
		{"the client left", fmt.Errorf("%w: %w", context.Canceled, dialError(lateDial{})), false},
		{"an error of the pod", errors.New("prefill answered 500"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := unconnected(c.err); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestDownList(t *testing.T) {
	now := time.Unix(1e9, 0)
	l := newDownList(func() time.Time { return now }, slog.New(slog.DiscardHandler))
	dead, other := pd.Target{Host: "10.0.0.1", Port: 8000}, pd.Target{Host: "10.0.0.2", Port: 8000}
	refused := dialError(syscall.ECONNREFUSED)
	must := func(when string, t1 pd.Target, down, skipped bool) {
		t.Helper()
		if l.has(t1) != down || l.skip(t1) != skipped {
			t.Errorf("%s: down %v, want %v; then skipped %v, want %v", when, l.has(t1), down, l.skip(t1), skipped)
		}
	}
	for range downAfter - 1 {
		l.tried(dead, refused)
	}
	must("one failure too few", dead, false, false)
	l.tried(dead, nil)
	l.tried(dead, refused)
	must("a success between", dead, false, false)
	for range downAfter - 1 {
		l.tried(dead, refused)
	}
	must("enough failures in a row", dead, true, true)
	must("another pod", other, false, false)

	now = now.Add(downProbe)
	must("one request tries it again", dead, true, false)
	must("while that runs, others do not", dead, true, true)
	l.tried(dead, refused)
	must("it has failed", dead, true, true)
	now = now.Add(downProbe)
	must("the next one tries", dead, true, false)
	l.tried(dead, errors.New("prefill answered 500"))
	must("it answers", dead, false, false)
}

// A client that names ever new addresses does not make the list grow.
func TestDownListIsBounded(t *testing.T) {
	now := time.Unix(1e9, 0)
	l := newDownList(func() time.Time { return now }, slog.New(slog.DiscardHandler))
	for i := range 3 * maxDown {
		l.tried(pd.Target{Host: "10.0.0.1", Port: uint16(i + 1)}, dialError(syscall.ECONNREFUSED))
		now = now.Add(time.Second)
	}
	if len(l.pods) > maxDown {
		t.Errorf("%d pods are remembered", len(l.pods))
	}
}
