//go:build !linux

package bench

import (
	"errors"
	"time"
)

var errNotLinux = errors.New("programs can be measured on Linux only, whose kernel accounts CPU time per process")

func processors() []int                  { return nil }
func hold(string, []int) error           { return errNotLinux }
func cpuTime(int) (time.Duration, error) { return 0, errNotLinux }
func sleepUntil(due time.Time)           { time.Sleep(time.Until(due)) }
