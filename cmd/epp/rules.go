package main

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/kube"
	"github.com/tandem-serving/tandem/epp/policy"
)

// rules is where the policy comes from: a file, or the cluster that has the pool, or nowhere.
type rules struct {
	file  *policy.File // nil: none
	watch *kube.Watch  // nil: there is no cluster, or no policy in it that counts
	last  atomic.Pointer[epp.Policy]
}

// newRules reads the file, if there is one. The error tells all its problems.
func newRules(watch *kube.Watch, path string, log *slog.Logger) (*rules, error) {
	if path == "" {
		return &rules{watch: watch}, nil
	}
	r := &rules{file: &policy.File{Path: path, Log: log}}
	first, err := r.file.Load()
	r.last.Store(first)
	return r, err
}

// policy is the one in force, nil if there is none.
func (r *rules) policy() *epp.Policy {
	if r.watch != nil {
		return r.watch.Policy()
	}
	return r.last.Load()
}

// follow takes up changes of the file until ctx ends.
func (r *rules) follow(ctx context.Context) {
	if r.file != nil {
		r.file.Follow(ctx, r.last.Store)
	}
}

// trouble tells why the policy may not be what its file says. A cluster's is told with the endpoints.
func (r *rules) trouble() error {
	if r.file == nil {
		return nil
	}
	return r.file.Trouble()
}
