package kube

import (
	"context"
	"log/slog"
	"sync"

	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// quieten redirects the logs of client-go and controller-runtime to ours. Their loggers belong to the process, so the log of
// the first Watch gets all of it.
var quieten = func() func(*slog.Logger) {
	var once sync.Once
	return func(log *slog.Logger) {
		once.Do(func() {
			klog.SetSlogLogger(slog.New(quiet{log.Handler()}))
			ctrllog.SetLogger(klog.Background())
		})
	}
}()

// quiet lowers the libraries' information to Debug, because Trouble reports what an operator must know. Their errors stay, as
// warnings.
type quiet struct{ slog.Handler }

func lowered(level slog.Level) slog.Level {
	if level > slog.LevelInfo {
		return slog.LevelWarn
	}
	return min(level, slog.LevelDebug)
}

// Enabled implements slog.Handler.
func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return q.Handler.Enabled(ctx, lowered(level))
}

// Handle implements slog.Handler.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = lowered(r.Level)
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
