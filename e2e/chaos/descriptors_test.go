package chaos

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// exhausted is a process that can open no descriptor more.
type exhausted struct {
	pid int
	was unix.Rlimit
}

// exhaust has a process open no descriptor more, as if it had as many as it may: those that it has go on working.
func exhaust(t *testing.T, pid int) exhausted {
	t.Helper()
	f := exhausted{pid: pid}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &f.was); err != nil && !errors.Is(err, unix.ESRCH) {
		t.Fatal(err)
	}
	f.limit(t, unix.Rlimit{Cur: 0, Max: f.was.Max})
	return f
}

// restore lets the process open descriptors again.
func (f exhausted) restore(t *testing.T) {
	t.Helper()
	f.limit(t, f.was)
}

func (f exhausted) limit(t *testing.T, to unix.Rlimit) {
	t.Helper()
	// A keeper may have ended by itself.
	if err := unix.Prlimit(f.pid, unix.RLIMIT_NOFILE, &to, nil); err != nil && !errors.Is(err, unix.ESRCH) {
		t.Fatal(err)
	}
}

// TestExhaust takes the descriptors of this process.
func TestExhaust(t *testing.T) {
	open := func() error {
		f, err := os.Open(os.DevNull)
		if err == nil {
			f.Close()
		}
		return err
	}
	full := exhaust(t, os.Getpid())
	err := open()
	full.restore(t)
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("opening a file when all descriptors are in use: %v, want %v", err, unix.EMFILE)
	}
	if err := open(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
