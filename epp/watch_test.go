package epp_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

// replace puts a new file in the place of another at once.
func replace(t *testing.T, path, content string) {
	t.Helper()
	write(t, path+".new", content)
	must(t, os.Rename(path+".new", path))
}

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, "12345")
	for _, c := range []struct {
		path  string
		limit int64
		want  string // "" = an error
	}{{path, 6, "12345"}, {path, 5, "12345"}, {path, 4, ""}, {path + "x", 5, ""}, {filepath.Dir(path), 5, ""}} {
		data, err := epp.ReadFile(c.path, c.limit)
		if (err != nil) != (c.want == "") || err == nil && string(data) != c.want {
			t.Errorf("%d bytes of %s: got %q, %v", c.limit, filepath.Base(c.path), data, err)
		}
	}
}

// watched is a file that is being watched on the fake clock of a synctest bubble.
type watched struct {
	t    *testing.T
	path string
	mu   sync.Mutex
	seen []string
}

func (w *watched) changed(data []byte, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.seen = append(w.seen, "gone")
	case err != nil:
		w.seen = append(w.seen, "error: "+err.Error())
	default:
		w.seen = append(w.seen, string(data))
	}
}

// looks lets the watcher look n times.
func (w *watched) looks(n int) {
	<-time.After(time.Duration(n) * epp.WatchInterval)
	synctest.Wait()
}

// told checks the calls of changed since the last check.
func (w *watched) told(want ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.seen, want) {
		w.t.Errorf("told %q, want %q", w.seen, want)
	}
	w.seen = nil
}

func TestWatchFile(t *testing.T) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, w *watched)
	}{
		{"unchanged", func(t *testing.T, w *watched) {
			w.looks(5)
			w.told()
		}},
		{"written anew with the same content", func(t *testing.T, w *watched) {
			w.looks(3)
			replace(t, w.path, "one")
			w.looks(3)
			w.told()
		}},
		{"changed before the first look", func(t *testing.T, w *watched) {
			replace(t, w.path, "two!")
			w.looks(2)
			w.told("two!")
		}},
		{"renamed over", func(t *testing.T, w *watched) {
			w.looks(3)
			replace(t, w.path, "two")
			w.looks(3)
			w.told("two")
			replace(t, w.path, "one")
			w.looks(3)
			w.told("one")
		}},
		{"written in place, same size", func(t *testing.T, w *watched) {
			w.looks(3)
			write(t, w.path, "two")
			must(t, os.Chtimes(w.path, time.Time{}, time.Unix(1, 0)))
			w.looks(3)
			w.told("two")
		}},
		{"half written", func(t *testing.T, w *watched) {
			w.looks(3)
			for n := range 10 { // something new at each look
				write(t, w.path, strings.Repeat("x", 100+n))
				w.looks(1)
				w.told()
			}
			write(t, w.path, "whole")
			w.looks(1)
			w.told()
			w.looks(1)
			w.told("whole")
		}},
		{"replaced all the time", func(t *testing.T, w *watched) {
			w.looks(3)
			for round := range 2 {
				for n := range 19 {
					replace(t, w.path, strings.Repeat("x", 100*round+n))
					w.looks(1)
					w.told()
				}
				replace(t, w.path, strings.Repeat("y", 1+round))
				w.looks(1)
				w.told(strings.Repeat("y", 1+round))
			}
			w.looks(3)
			w.told()
		}},
		{"vanished and back", func(t *testing.T, w *watched) {
			w.looks(3)
			must(t, os.Remove(w.path))
			w.looks(5)
			w.told("gone")
			write(t, w.path, "one")
			w.looks(3)
			w.told("one")
			must(t, os.Remove(w.path))
			w.looks(1)
			w.told("gone")
		}},
		{"vanished while it settles", func(t *testing.T, w *watched) {
			w.looks(3)
			replace(t, w.path, "two!")
			w.looks(1)
			must(t, os.Remove(w.path))
			w.looks(2)
			w.told("gone")
		}},
		{"too large, then not", func(t *testing.T, w *watched) {
			w.looks(3)
			replace(t, w.path, strings.Repeat("x", watchLimit+1))
			w.looks(5)
			w.told("error: " + w.path + " is larger than 1000 bytes")
			replace(t, w.path, "small")
			w.looks(3)
			w.told("small")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			write(t, path, "one")
			watch(t, path, "one", c.test)
		})
	}
}

const watchLimit = 1000

func watch(t *testing.T, path, last string, test func(t *testing.T, w *watched)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &watched{t: t, path: path}
		var wg sync.WaitGroup
		wg.Go(func() { epp.WatchFile(ctx, path, watchLimit, []byte(last), w.changed) })
		test(t, w)
		cancel()
		wg.Wait()
	})
}

// A Kubernetes volume holds links to ..data, which is a link to a folder with the files: an update swaps that one.
func TestWatchFileInAVolume(t *testing.T) {
	dir := t.TempDir()
	update := func(folder, content string) {
		must(t, os.Mkdir(filepath.Join(dir, folder), 0o700))
		write(t, filepath.Join(dir, folder, "file"), content)
		must(t, os.Symlink(folder, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	update("..2026_1", "one")
	path := filepath.Join(dir, "file")
	must(t, os.Symlink(filepath.Join("..data", "file"), path))
	watch(t, path, "one", func(t *testing.T, w *watched) {
		w.looks(3)
		w.told()
		update("..2026_2", "two")
		must(t, os.RemoveAll(filepath.Join(dir, "..2026_1")))
		w.looks(3)
		w.told("two")
	})
}
