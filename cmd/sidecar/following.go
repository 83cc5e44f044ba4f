package main

import (
	"context"
	"log/slog"
	"sync"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/sidecar/podwatch"
)

// following configures the watch of the pods that prefill legs may go to.
type following struct {
	On    bool   `flag:"enable-ssrf-protection" help:"allow prefill legs only to pods of --inference-pool; with --prefill-allow, only to those that it allows too. The pod's service account must be able to list and watch pods and inferencepools"`
	Pool  string `flag:"inference-pool" env:"INFERENCE_POOL" arg:"[NAMESPACE/]NAME" help:"InferencePool of --enable-ssrf-protection; without a namespace, of default"`
	Group string `flag:"pool-group" enum:"inference.networking.k8s.io,inference.networking.x-k8s.io" arg:"GROUP" help:"API group of this InferencePool"`
}

func (f following) validate(p *boot.Problems) {
	p.Require(!f.On || f.Pool != "", "inference-pool", "is needed with --enable-ssrf-protection")
	if f.Pool != "" {
		_, err := podwatch.ParsePool(f.Pool)
		p.Require(err == nil, "inference-pool", "%w", err)
	}
}

// start starts the watch, or returns nil without one. end ends it.
func (f following) start(ctx context.Context, std boot.IO, log *slog.Logger) (watch *podwatch.Watch, end func(), err error) {
	if !f.On {
		return nil, func() {}, nil
	}
	pool, err := podwatch.ParsePool(f.Pool)
	if err != nil {
		return nil, nil, err
	}
	pool.Group = f.Group
	api, err := podwatch.InCluster(std.Env)
	if err != nil {
		return nil, nil, boot.Missingf("following the pods of --inference-pool: %w (or set the networks of prefill pods with --prefill-allow, without --enable-ssrf-protection)", err)
	}
	watch = podwatch.New(api, pool, log)
	// The drain still needs the pods: prefill legs begin until all requests have ended.
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { watch.Run(ctx) })
	return watch, func() { stop(); running.Wait() }, nil
}
