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

// patience is for how many checks WatchFile waits for a file to stop changing: 10 s. No program writes one file for so long,
// and a file that changes all the time must be read at last.
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

// WatchFile calls changed once for each new content of a file, beginning with the first that differs from last, and for each
// new error of reading it. It returns when ctx ends. It checks the file by name every WatchInterval and does not ask the
// kernel for events: so it notices renames, swapped symbolic links of a Kubernetes volume and changes on network file systems
// alike. It passes a content on when two checks found the same, because a program may write a file in parts, or after 10 s of
// changes.
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
