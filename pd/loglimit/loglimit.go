package loglimit

import (
	"log/slog"
	"sync"
	"time"
)

// Limiter writes at most one warning per interval. Make it with New. It is safe for concurrent use.
type Limiter struct {
	log   *slog.Logger
	every time.Duration

	mu         sync.Mutex // guards the fields below
	last       time.Time
	suppressed int
}

// New makes a limiter that writes to log, one warning per interval.
func New(log *slog.Logger, interval time.Duration) *Limiter {
	return &Limiter{log: log, every: interval}
}

// Warn logs a warning with its attributes, or at debug level if the interval since the last warning has not passed. The
// attribute "suppressed" is the number of warnings since then that were not written.
func (l *Limiter) Warn(msg string, args ...any) {
	l.mu.Lock()
	now := time.Now()
	if !l.last.IsZero() && now.Sub(l.last) < l.every {
		l.suppressed++
		l.mu.Unlock()
		l.log.Debug(msg, args...)
		return
	}
	suppressed := l.suppressed
	l.last, l.suppressed = now, 0
	l.mu.Unlock()
	l.log.Warn(msg, append(args, "suppressed", suppressed)...)
}
