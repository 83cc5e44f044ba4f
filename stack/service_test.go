package stack_test

import (
	"bytes"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tandem-serving/tandem/stack"
)

// startService starts echo as a service that listens again where again says. Its events come from the channel.
func startService(t *testing.T, program stack.Program, again func(at map[string]string) []string) (*stack.Service, <-chan string) {
	t.Helper()
	events := make(chan string, 100)
	program.Again = again
	s, err := stack.StartService(t.Context(), program, func(event string) { events <- event })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s, events
}

func sameAddress(at map[string]string) []string { return []string{at["echo"]} }

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func TestServiceStartsAgainAtItsAddress(t *testing.T) {
	s, events := startService(t, played(t, "echo"), sameAddress)
	first := s.Process()
	for range 2 {
		kill(t, s.PID())
		if got := <-events; got != "echo ended: killed by SIGKILL; starting it again" {
			t.Errorf("said %q", got)
		}
		if got := <-events; !strings.HasPrefix(got, "echo is ready again after ") {
			t.Errorf("said %q", got)
		}
		exchange(t, dial(t, first)) // where the first one listened
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if err := s.Wait(); err != nil {
		t.Errorf("it was asked to end, but: %v", err)
	}
	select {
	case event := <-events:
		t.Errorf("after Stop: %q", event)
	default:
	}
}

func TestServiceEndsForGood(t *testing.T) {
	elsewhere := func(map[string]string) []string { return []string{"no address"} }
	for _, test := range []struct {
		name  string
		again func(at map[string]string) []string
		kills int // it takes so many to end it for good
		want  []string
	}{
		{"cannot start again", elsewhere, 1, []string{"starting echo: echo ended: exit status 1"}},
		{"ends too often", sameAddress, 6, []string{"echo ended: killed by SIGKILL", "echo ended 6 times within 1m0s and is not started again"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, events := startService(t, played(t, "echo"), test.again)
			for range test.kills - 1 {
				kill(t, s.PID())
				<-events // it has ended
				<-events // it is ready again
			}
			kill(t, s.PID())
			contains(t, s.Wait(), test.want...)
		})
	}
}

// lockedBuffer can be written and read concurrently.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A service logs what all of its processes write, to the ready line.
func TestServiceLogs(t *testing.T) {
	log := &lockedBuffer{}
	program := played(t, "echo")
	program.Log = log
	s, events := startService(t, program, sameAddress)
	kill(t, s.PID())
	<-events
	<-events
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "about to be ready\n{\"ready\":\"test\""); n != 2 {
		t.Errorf("%d starts in the log, want 2:\n%s", n, log)
	}
}
