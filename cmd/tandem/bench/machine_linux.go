package bench

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// processors returns the numbers of the processors that this process may run on. Under a container's limits they need not
// begin at 0.
func processors() (cores []int) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			cores = append(cores, i)
		}
	}
	return cores
}

// hold restricts all threads of a process to some processors. pid may be "self".
func hold(pid string, cores []int) error {
	var set unix.CPUSet
	for _, core := range cores {
		set.Set(core)
	}
	for range 2 { // a thread that was not restricted yet may have started another
		tasks, err := filepath.Glob("/proc/" + pid + "/task/*")
		if err != nil {
			return err
		}
		for _, task := range tasks {
			var tid int
			if _, err := fmt.Sscan(filepath.Base(task), &tid); err != nil {
				return err
			}
			if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("holding process %s to processors %v: %w", pid, cores, err)
			}
		}
	}
	return nil
}

// cpuTime returns the CPU time of a process since its start, user and system, from the kernel's clock of that process: in
// ns, and with ended threads.
func cpuTime(pid int) (time.Duration, error) {
	const ofProcess = 2 // CPUCLOCK_SCHED, without the bit for a single thread: linux/posix-timers_types.h
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|ofProcess), &used); err != nil {
		return 0, fmt.Errorf("reading the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// sleepUntil sleeps with an accuracy of some 50 µs; the timers of Go may be a millisecond late.
func sleepUntil(due time.Time) {
	if d := time.Until(due); d > 0 {
		t := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&t, nil) // a signal may end it early: the request is then sent some µs too soon
	}
}
