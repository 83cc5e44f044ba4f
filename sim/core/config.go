package core

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/tandem-serving/tandem/sim/model"
)

// SetDefault sets a field that was left out.
func SetDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// SetModelDefaults sets what the configurations of all engines have, if it was left out: the model "tiny", its own name as the one that it
// is served under, and a logger that discards everything.
func SetModelDefaults(m *model.Model, served *string, logger **slog.Logger) error {
	if m.Name == "" {
		tiny, err := model.Named("tiny")
		if err != nil {
			return err
		}
		*m = tiny
	}
	SetDefault(served, m.Name)
	if *logger == nil {
		*logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Report is told what is wrong with a configuration, by the flag of cmd/sim that sets it.
type Report func(flag, format string, args ...any)

// Require reports a problem unless ok.
func (report Report) Require(ok bool, flag, format string, args ...any) {
	if !ok {
		report(flag, format, args...)
	}
}

// RequireModel reports problems of the model and of the factor of its times.
func (report Report) RequireModel(m *model.Model, timeScale float64) {
	if err := m.Validate(); err != nil {
		report("model", "%w", err)
	}
	report.Require(timeScale >= 0, "time-scale", "time scale is %v: want 0 or more", timeScale)
}

// maxPoolBytes bounds how much of this machine's memory a pool may take, so that a typing error is refused.
const maxPoolBytes int64 = 64 << 30

// RequireMemory reports a pool of n blocks of size tokens each that takes too much memory. what describes the pool.
func (report Report) RequireMemory(flag string, m *model.Model, n, size int, what string) {
	report.Require(int64(n) <= maxPoolBytes/int64(max(1, m.StoredBytesPerToken))/int64(max(1, size)), flag,
		"%s take more than %d GiB of memory", what, maxPoolBytes>>30)
}

// Join returns all problems as one error.
func Join(problems func(Report)) error {
	var errs []error
	problems(func(_, format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) })
	return errors.Join(errs...)
}
