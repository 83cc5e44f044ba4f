package main

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/kube"
	"github.com/tandem-serving/tandem/epp/policy"
)

// rules is the source of the policy: a file, the cluster that has the pool, or none.
type rules struct {
	file  *policy.File // nil: no file
	watch *kube.Watch  // nil: no cluster, or its policy does not apply
	last  atomic.Pointer[epp.Policy]
}

// newRules reads the file, if there is one. The error lists all its problems.
func newRules(watch *kube.Watch, path string, log *slog.Logger) (*rules, error) {
	if path == "" {
		return &rules{watch: watch}, nil
	}
	r := &rules{file: &policy.File{Path: path, Log: log}}
	first, err := r.file.Load()
	r.last.Store(first)
	return r, err
}

// policy returns the current policy, nil if there is none.
func (r *rules) policy() *epp.Policy {
	if r.watch != nil {
		return r.watch.Policy()
	}
	return r.last.Load()
}

// follow reads the file again when it changes, until ctx ends.
func (r *rules) follow(ctx context.Context) {
	if r.file != nil {
		r.file.Follow(ctx, r.last.Store)
	}
}

// trouble returns why the policy may differ from its file. The pool reports the trouble of a cluster.
func (r *rules) trouble() error {
	if r.file == nil {
		return nil
	}
	return r.file.Trouble()
}
