package epp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// WatchInterval is how often WatchFile checks its file. Checking an unchanged file costs one stat.
const WatchInterval = 500 * time.Millisecond

// patience is for how many checks in a row WatchFile waits for a file to stay the same: 10 s. No program takes that long to
// write one file; without a bound, a file that is replaced all the time would never be read again.
const patience = 20

// ReadFile reads a file of at most limit bytes.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return data, err
}

// WatchFile calls changed with the content of a file when it is no longer last, and with the error when it cannot be read
// any more, once each; it returns when ctx ends. It checks the file by name every WatchInterval instead of asking the
// kernel for events: that notices renames, swapped symbolic links of a Kubernetes volume and changes on network file systems
// alike. A file is passed on when two checks in a row found the same, because a writer that does not rename is seen half
// done, or when it has kept changing for 10 s.
func WatchFile(ctx context.Context, path string, limit int64, last []byte, changed func(data []byte, err error)) {
	tick := time.NewTicker(WatchInterval)
	defer tick.Stop()
	var seen os.FileInfo
	var failed bool
	var settling int // checks since the file was last found unchanged
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		info, err := os.Stat(path)
		if err == nil && seen != nil && same(info, seen) && settling == 0 && !failed {
			continue
		}
		if err == nil && (seen == nil || !same(info, seen)) {
			seen, settling = info, settling+1
			if settling < patience {
				continue
			}
		}
		settling = 0
		var data []byte
		if err == nil {
			data, err = ReadFile(path, limit)
		}
		switch {
		case err != nil && !failed:
			seen, failed = nil, true
			changed(nil, err)
		case err == nil && (failed || !bytes.Equal(data, last)):
			last, failed = data, false
			changed(data, nil)
		}
	}
}

func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
