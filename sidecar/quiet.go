package sidecar

import (
	"log/slog"
	"sync"
	"time"
)

// quiet logs what can happen to every request at once. An outage of prefill must be seen in the log, not fill it: one line
// a second says it, with the number of those that were left out. Each of them is in the metrics and on its own span.
type quiet struct {
	log *slog.Logger

	mu   sync.Mutex // guards what follows
	last time.Time
	left int
}

const quietEvery = time.Second

func (q *quiet) warn(msg string, args ...any) {
	q.mu.Lock()
	now := time.Now()
	if now.Sub(q.last) < quietEvery {
		q.left++
		q.mu.Unlock()
		q.log.Debug(msg, args...)
		return
	}
	left := q.left
	q.last, q.left = now, 0
	q.mu.Unlock()
	q.log.Warn(msg, append(args, "left_out", left)...)
}
