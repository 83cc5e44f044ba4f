package boot

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
)

// Log is the part of a config struct that chooses the logger.
type Log struct {
	// zap-log-level and v are llm-d's names for it; they also take verbosities.
	Level  LogLevel  `flag:"log-level" alias:"zap-log-level,v" arg:"LEVEL" help:"least severe message to write: debug, info, warn, error, or llm-d's verbosity 0..5 (4 and up mean debug)"`
	Format LogFormat `flag:"log-format" alias:"zap-encoder" arg:"FORMAT" help:"form of the log: text or json"`
}

// New makes the logger on stderr; stdout belongs to the ready line. In a program that [Main] runs, no call of the logger waits for
// stderr: lines that it does not take in time are dropped.
func (l Log) New(std IO) *slog.Logger {
	if std.logs == nil {
		return l.to(std.Stderr)
	}
	std.logs.tellDropped(func(lines uint64) []byte {
		var text bytes.Buffer
		l.to(&text).Warn("log lines were dropped, because stderr did not take them in time", "lines", lines)
		return text.Bytes()
	})
	return l.to(std.logs)
}

func (l Log) to(w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.Level(l.Level)}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// LogLevel is a slog level that can also be read from llm-d's numeric verbosities. The zero value is info.
type LogLevel slog.Level

// debugVerbosity is the lowest of llm-d's verbosities that maps to debug. Its levels are default 2, verbose 3, debug 4,
// trace 5.
const debugVerbosity = 4

// UnmarshalText reads a level name or a verbosity.
func (l *LogLevel) UnmarshalText(text []byte) error {
	if v, err := strconv.ParseUint(string(text), 10, 8); err == nil {
		*l = LogLevel(slog.LevelInfo)
		if v >= debugVerbosity {
			*l = LogLevel(slog.LevelDebug)
		}
		return nil
	}
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}
	level, ok := levels[strings.ToLower(string(text))]
	if !ok {
		return fmt.Errorf("%q is not one of debug, info, warn, error", text)
	}
	*l = LogLevel(level)
	return nil
}

// MarshalText returns the level's name.
func (l LogLevel) MarshalText() ([]byte, error) {
	return []byte(strings.ToLower(slog.Level(l).String())), nil
}

// LogFormat is text or json. The zero value is text.
type LogFormat string

// UnmarshalText reads the format; llm-d calls text "console".
func (f *LogFormat) UnmarshalText(text []byte) error {
	switch string(text) {
	case "text", "console":
		*f = "text"
	case "json":
		*f = "json"
	default:
		return fmt.Errorf("%q is not one of text, json", text)
	}
	return nil
}

// MarshalText returns the format's name.
func (f LogFormat) MarshalText() ([]byte, error) {
	if f == "" {
		return []byte("text"), nil
	}
	return []byte(f), nil
}
