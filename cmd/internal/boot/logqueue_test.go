package boot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stalling is an output that takes nothing until it is told to go on, as a pipe that is not read.
type stalling struct {
	taking chan struct{} // closed to go on
	err    error         // that Write returns

	mu     sync.Mutex
	writes []string
}

func (s *stalling) Write(p []byte) (int, error) {
	<-s.taking
	if s.err != nil {
		return 0, s.err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes = append(s.writes, string(p))
	return len(p), nil
}

func (s *stalling) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.writes, "")
}

// newLog returns a logger in front of an output that is stalled.
func newLog(format LogFormat, level slog.Level) (*slog.Logger, *logQueue, *stalling) {
	out := &stalling{taking: make(chan struct{})}
	q := &logQueue{out: out}
	return Log{Level: LogLevel(level), Format: format}.New(IO{logs: q}), q, out
}

func TestLogDoesNotWaitForStderr(t *testing.T) {
	for _, format := range []LogFormat{"text", "json"} {
		t.Run(string(format), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, q, out := newLog(format, slog.LevelInfo)
				const n = 20_000
				long := strings.Repeat("x", 100)
				for i := range n {
					log.Info("request", "number", i, "text", long)
					if i == 0 {
						synctest.Wait() // it is being written
					}
				}
				lost := int(q.lost())
				if lost == 0 || lost >= n || q.waiting > queueLimit || q.waiting < queueLimit-1000 {
					t.Fatalf("%d of %d lines are dropped, and %d bytes wait", lost, n, q.waiting)
				}
				close(out.taking)
				synctest.Wait()
				log.Info("later")
				synctest.Wait()
				text := out.text()
				lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
				if len(lines) != n-lost+2 {
					t.Fatalf("%d lines are written and %d dropped, of %d and two", len(lines), lost, n)
				}
				for i, line := range lines[:n-lost] {
					if want := map[LogFormat]string{"text": fmt.Sprintf(" number=%d ", i), "json": fmt.Sprintf(`"number":%d,`, i)}[format]; !strings.Contains(line, want) {
						t.Fatalf("line %d is %s", i, line)
					}
				}
				notice := lines[n-lost]
				if want := map[LogFormat]string{"text": fmt.Sprintf("level=WARN msg=\"log lines were dropped, because stderr did not take them in time\" lines=%d", lost),
					"json": fmt.Sprintf(`"level":"WARN","msg":"log lines were dropped, because stderr did not take them in time","lines":%d}`, lost)}[format]; !strings.HasSuffix(notice, want) {
					t.Errorf("the line after the dropped ones is %s", notice)
				}
				if q.lost() != uint64(lost) || q.waiting != 0 || q.idle != nil {
					t.Errorf("%d lines are dropped, %d bytes wait", q.lost(), q.waiting)
				}
			})
		})
	}
}

// Lines are written together, but no write is so large that lines of other processes could be mixed with it.
func TestLogWritesPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _, out := newLog("text", slog.LevelInfo)
		for range 1000 {
			log.Info("a short line")
		}
		log.Info(strings.Repeat("long ", 2000))
		log.Info("another one")
		close(out.taking)
		synctest.Wait()
		for i, w := range out.writes {
			if !strings.HasSuffix(w, "\n") || len(w) > pieceLimit && strings.Count(w, "\n") > 1 {
				t.Errorf("write %d has %d bytes and ends in %q", i, len(w), w[len(w)-1:])
			}
		}
		if n := strings.Count(out.text(), "\n"); n != 1002 || len(out.writes) > 40 {
			t.Errorf("%d lines in %d writes", n, len(out.writes))
		}
	})
}

// Warnings that are not logged need no line about dropped lines.
func TestLogOfErrorsTellsNothingOfDroppedLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, q, out := newLog("text", slog.LevelError)
		for range 2 * queueLimit / 1000 {
			log.Error(strings.Repeat("x", 1000))
		}
		close(out.taking)
		synctest.Wait()
		if q.lost() == 0 || strings.Contains(out.text(), "WARN") {
			t.Errorf("%d lines are dropped, and the log tells of it", q.lost())
		}
	})
}

// Lines that cannot be written are counted, and told of once others can be.
func TestLogToFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, q, out := newLog("text", slog.LevelInfo)
		out.err = errors.New("no space left on device")
		close(out.taking)
		for range 3 {
			log.Info("lost")
			synctest.Wait()
		}
		out.err = nil
		log.Info("written")
		synctest.Wait()
		if text := out.text(); q.lost() != 3 || strings.Count(text, "\n") != 2 || !strings.Contains(text, "msg=written\n") || !strings.HasSuffix(text, "lines=3\n") {
			t.Errorf("%d lines are dropped; the log is\n%s", q.lost(), text)
		}
	})
}

func TestFlushOfLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, q, out := newLog("text", slog.LevelInfo)
		q.flush(time.Hour) // nothing waits
		log.Info("last words")
		began := time.Now()
		if q.flush(time.Second); time.Since(began) != time.Second || out.text() != "" {
			t.Errorf("after %v the stalled output has %q", time.Since(began), out.text())
		}
		close(out.taking)
		if q.flush(time.Hour); time.Since(began) != time.Second || !strings.Contains(out.text(), "last words") {
			t.Errorf("after %v the output has %q", time.Since(began), out.text())
		}
	})
}

// The error with which a program ends comes after what it has logged.
func TestErrorAfterLog(t *testing.T) {
	var out bytes.Buffer
	std := IO{Name: "prog", Stderr: io.Discard, logs: &logQueue{out: &out}}
	Log{}.New(std).Info("starting")
	report(std, errors.New("it broke"))
	std.logs.flush(time.Hour)
	if text := out.String(); !strings.HasSuffix(text, "msg=starting\nprog: it broke\n") {
		t.Errorf("stderr has %q", text)
	}
}

// BenchmarkLog is what a line costs the goroutine that logs it: written at once, or queued.
func BenchmarkLog(b *testing.B) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	for name, std := range map[string]IO{"at once": {Stderr: null}, "queued": {logs: &logQueue{out: null}}} {
		b.Run(name, func(b *testing.B) {
			log := Log{}.New(std)
			b.ReportAllocs()
			for b.Loop() {
				log.Info("a request has ended", "request_id", "0123456789abcdef", "status", 200, "duration", time.Second)
			}
			if std.logs != nil {
				std.logs.flush(time.Minute)
				b.ReportMetric(float64(std.logs.lost())/float64(b.N), "dropped/op")
			}
		})
	}
}
