package loglimit

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
		l := New(log, time.Second)
		for _, step := range []struct {
			after time.Duration
			want  string
		}{
			{0, "level=WARN msg=trouble n=1 suppressed=0"},
			{999 * time.Millisecond, "level=DEBUG msg=trouble n=1"},
			{0, "level=DEBUG msg=trouble n=1"},
			{time.Millisecond, "level=WARN msg=trouble n=1 suppressed=2"},
			{time.Hour, "level=WARN msg=trouble n=1 suppressed=0"},
		} {
			time.Sleep(step.after)
			text.Reset()
			l.Warn("trouble", "n", 1)
			if _, got, _ := strings.Cut(strings.TrimSpace(text.String()), " "); got != step.want {
				t.Errorf("logged %q, want %q", got, step.want)
			}
		}
	})
}
