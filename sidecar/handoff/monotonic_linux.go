package handoff

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is the clock of all processes of this machine, in containers too: vLLM's time.perf_counter.
func monotonic() (now time.Duration, ok bool) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano()), err == nil
}
