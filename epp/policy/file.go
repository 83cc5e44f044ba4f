package policy

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/tandem-serving/tandem/epp"
)

// MaxSize is the largest policy file, in bytes: enough for thousands of objects.
const MaxSize = 1 << 20

// File is a policy file.
type File struct {
	Path string
	Log  *slog.Logger // for problems of the file after Load; nil: none are logged

	data    []byte // of the last good file
	trouble atomic.Pointer[error]
}

// Load reads the file. The error lists all its problems, with their lines.
func (f *File) Load() (*epp.Policy, error) {
	data, err := epp.ReadFile(f.Path, MaxSize)
	if err != nil {
		return nil, fmt.Errorf("reading the policy file: %w", err)
	}
	p, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("reading the policy file %s:\n%w", f.Path, err)
	}
	f.data = data
	return p, nil
}

// Follow calls apply with the policy whenever the file has changed since Load, and returns when ctx ends. A file that cannot
// be used changes nothing; Trouble and the log report it.
func (f *File) Follow(ctx context.Context, apply func(*epp.Policy)) {
	epp.WatchFile(ctx, f.Path, MaxSize, f.data, func(data []byte, err error) { f.changed(data, err, apply) })
}

func (f *File) changed(data []byte, err error, apply func(*epp.Policy)) {
	var p *epp.Policy
	if err == nil {
		p, err = Parse(data)
	}
	if err != nil {
		err = fmt.Errorf("the policy file %s cannot be used:\n%w", f.Path, err)
		f.trouble.Store(&err)
		f.log().Error("objectives and rewrites stay as they are", "error", err)
		return
	}
	f.trouble.Store(nil)
	apply(p)
	f.log().Info("the policy file is in use", "file", f.Path)
}

// Trouble returns what is wrong with the current file, nil if nothing is.
func (f *File) Trouble() error {
	if err := f.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

func (f *File) log() *slog.Logger {
	if f.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return f.Log
}
