//go:build !linux

package sim

import "time"

// monotonic returns false: no blocks expire.
func monotonic() (now time.Duration, ok bool) { return 0, false }
