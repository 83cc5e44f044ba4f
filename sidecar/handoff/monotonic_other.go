//go:build !linux

package handoff

import "time"

// monotonic returns false: engines run on Linux.
func monotonic() (now time.Duration, ok bool) { return 0, false }
