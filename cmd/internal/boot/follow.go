package boot

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
)

// recheckInterval is the shortest time between two checks of a file: each Followed makes at most one stat call per file in
// this time.
const recheckInterval = time.Second

// Followed holds the content of files that may change while the program runs, such as those of a mounted Kubernetes secret.
// It runs no watcher: [Followed.Get] checks the files. If a change cannot be read, the last good content stays.
type Followed[T any] struct {
	what  string // for the log
	paths []string
	read  func() (T, error)
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex // guards the fields below
	current T
	stamps  []int64 // modification times at the last attempt to read, in ns
	checked time.Time
}

// Follow reads files for the first time. The error is that of reading.
func Follow[T any](log *slog.Logger, what string, read func() (T, error), paths ...string) (*Followed[T], error) {
	f := &Followed[T]{what: what, paths: paths, read: read, log: log, now: time.Now}
	return f, f.load()
}

// Get returns the content, read again if the files have changed.
func (f *Followed[T]) Get() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); now.Sub(f.checked) >= recheckInterval {
		f.checked = now
		if err := f.reload(); err != nil {
			f.log.Warn(f.what+" not reloaded, keeping the last one", "error", err)
		}
	}
	return f.current
}

func (f *Followed[T]) load() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checked = f.now()
	return f.reload()
}

// reload reads the files if they changed since the last attempt, good or bad, so that a broken or missing one is reported
// once. It takes the modification times before it reads, so the next call sees a change made in between.
func (f *Followed[T]) reload() error {
	stamps := make([]int64, len(f.paths))
	for i, path := range f.paths {
		if info, err := os.Stat(path); err == nil { // a stat error is reported by read
			stamps[i] = info.ModTime().UnixNano()
		}
	}
	if slices.Equal(stamps, f.stamps) {
		return nil
	}
	f.stamps = stamps
	content, err := f.read()
	if err == nil {
		f.current = content
	}
	return err
}

// maxSecret is the largest size, in bytes, of a file that holds keys, certificates or secrets. A bundle of all public
// certificate authorities is a quarter of it.
const maxSecret = 1 << 20

// readSmall reads a file of at most maxSecret bytes.
func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err == nil && len(text) > maxSecret {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxSecret)
	}
	return text, err
}

// FollowFile follows a file of secrets or settings of at most 1 MiB, and reads it with parse for the first time. what names
// it in the log when a change cannot be read.
func FollowFile[T any](log *slog.Logger, what, path string, parse func(text []byte) (T, error)) (*Followed[T], error) {
	return Follow(log, what, func() (content T, err error) {
		text, err := readSmall(path)
		if err != nil {
			return content, err
		}
		content, err = parse(text)
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
		return content, err
	}, path)
}
