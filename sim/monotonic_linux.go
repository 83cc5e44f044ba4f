package sim

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is the clock by which blocks expire: the time of this machine, whatever the test that runs.
func monotonic() (now time.Duration, ok bool) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano()), err == nil
}
