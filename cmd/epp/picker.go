package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/capture"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/kube"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/epp/pool"
	"github.com/tandem-serving/tandem/epp/pool/page"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/epp/replica"
	"github.com/tandem-serving/tandem/epp/scale/leaving"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/epp/setup"
)

// picker is what the ext-proc server asks: the pool, the scheduler, and the configuration of both.
type picker struct {
	settings  settings
	log       *slog.Logger
	keep      epp.Keep
	lifecycle lifecycle
	pool      *pool.Pool
	sched     *sched.Scheduler
	queue     *queue
	metrics   *sched.Metrics
	live      *config.Live
	shadow    *shadowPicker // nil: there is no shadow
	watch     *kube.Watch   // source of the endpoints; nil = a file
	file      pool.File     // source of the endpoints without a watch
	rules     *rules
	requests  requests
	exchange  *replica.Exchange // nil: loads are not exchanged with other replicas
	sizes     *sizes
	marker    *leaving.Marker   // nil: pods that are to go are not marked
	namespace string            // of the pool; "": the endpoints are no pods
	capture   *capture.Recorder // nil: nothing is captured
	hashes    *read.Secret      // of prompts; nil: one of the process
	current   atomic.Pointer[use]
}

// use is the configuration in use.
type use struct {
	config *config.Config
	built  *config.Built
}

// inUse is never nil.
func (p *picker) inUse() *use { return p.current.Load() }

// newPicker makes a picker with the configuration that the flags name. Its errors are about the configuration. env looks up
// environment variables.
func newPicker(cfg settings, env func(string) (string, bool), log *slog.Logger, registry *prometheus.Registry) (*picker, error) {
	data, err := cfg.Picking.read()
	if err != nil {
		return nil, boot.Configf("config-file: %w", err)
	}
	name := cfg.Endpoints.Pool
	// config.Start reports a configuration that cannot be parsed.
	if parsed, err := config.Parse(data, cfg.Picking.table()); err == nil && parsed.NamesDiscovery() && cfg.Endpoints.cluster() {
		log.Warn("the endpoints are those of the configuration's file-discovery: flags about a cluster have no effect, but --pool-name names metrics")
		cfg.Endpoints = cfg.Endpoints.withoutCluster()
	}
	p := &picker{settings: cfg, log: log, metrics: sched.NewMetrics(registry), requests: newRequests(cfg.Tell.Recent)}
	p.lifecycle.keep = &p.keep
	p.pool = pool.New(pool.Options{Log: log, Metrics: registry, Observer: &p.lifecycle, Busy: cfg.Metrics.Interval, Stale: cfg.Metrics.Stale})
	if p.capture, p.hashes, err = cfg.Tell.newCapture(log, registry); err != nil {
		return nil, err
	}
	shared, err := cfg.Share.key()
	if err != nil {
		return nil, boot.Configf("share-key-file: %w", err)
	}
	if shared != nil {
		prompts := read.Secret(shared.ForPrompts())
		p.hashes = &prompts // as that of --capture-key-file, which is the same
	}
	var snapshots capture.Snapshots = p.pool
	if p.capture != nil {
		snapshots = p.capture.Watch(snapshots)
	}
	p.sched = sched.New(snapshots, epp.SystemClock)
	p.queue = newQueue(p.pool, name, registry)
	p.sizes = newSizes(p.pool)
	if p.exchange, err = cfg.Share.exchange(replica.Options{Pool: p.pool, Log: log, Resized: p.sizes.tell, Check: p.pool.Check,
		Waiting: p.queue.Waiting, Heard: p.queue.SnapshotChanged, Secret: nameOf(shared)}); err != nil {
		return nil, err
	}
	p.sizes.exchange, p.queue.exchange = p.exchange, p.exchange
	p.queue.wake = p.sizes.wake
	if p.exchange != nil {
		registry.MustRegister(p.exchange)
	}
	if err := p.findPool(env, registry); err != nil {
		return nil, err
	}
	p.live, err = config.Start(data, config.Options{Table: cfg.Picking.table(), Log: log, Keep: &p.keep, Swap: p.swap, Metrics: registry})
	if err != nil {
		return nil, boot.Configf("%w", err)
	}
	registry.MustRegister(pluginMetrics{p})
	if cfg.Scaling.Mark && p.watch != nil {
		p.marker = leaving.New(leaving.Options{Sizes: p.sizes, Pods: p.sizes.pods, Cluster: p.watch, Now: time.Now, Log: log})
		if _, err := p.sizes.own(); errors.Is(err, errNoSizer) {
			log.Warn("--mark-pods-to-go has no effect yet: the configuration has no plugin replica-sizer")
		}
	}
	if cfg.Picking.Shadow != "" {
		if p.shadow, err = newShadow(&p.settings, p, log); err != nil {
			return nil, errors.Join(err, p.live.Close())
		}
		p.lifecycle.shadow = p.shadow
		registry.MustRegister(p.shadow.report)
	}
	return p, nil
}

// findPool makes the watch of the cluster, if the endpoints are pods, and the source of the policy.
func (p *picker) findPool(env func(string) (string, bool), registry *prometheus.Registry) error {
	from := &p.settings.Endpoints
	var err error
	if from.cluster() {
		options, err := from.options(env)
		if err != nil {
			return boot.Configf("%w", err)
		}
		options.Log, options.Metrics = p.log, registry
		p.namespace = options.Namespace
		if p.watch, err = kube.New(options); err != nil {
			return boot.Configf("%w", err)
		}
	}
	if p.rules, err = newRules(p.watch, from.Policy, p.log); err != nil {
		return boot.Configf("policy-file: %w", err)
	}
	return nil
}

// read returns the EndpointPickerConfig that the flags name.
func (c picking) read() ([]byte, error) {
	switch {
	case c.Text != "":
		return []byte(c.Text), nil
	case c.File != "":
		return epp.ReadFile(c.File, config.MaxSize)
	case c.Tests:
		return config.Conformance(), nil
	}
	return config.Default(), nil
}

// table returns the plugins that the flags allow.
func (c picking) table() []epp.Row {
	if c.Tests {
		return plugin.With(plugin.FlagConformance)
	}
	return plugin.Table
}

// validateFiles reads the files that the flags name, as the start does, except for the endpoints, which change more often. It does
// not require a source of endpoints: a user may check the defaults without one.
func (c *settings) validateFiles(p *boot.Problems) {
	_, err := c.followSecret(slog.New(slog.DiscardHandler))
	p.Require(err == nil, "auth-file", "%w", err)
	_, err = newRules(nil, c.Endpoints.Policy, nil)
	p.Require(err == nil, "policy-file", "%w", err)
	flag, name := "config-file", c.Picking.File
	if c.Picking.Text != "" {
		flag, name = "config-text", "the text"
	}
	data, err := c.Picking.read()
	if err != nil {
		p.Add(flag, "%w", err)
		return
	}
	parsed, err := config.Parse(data, c.Picking.table())
	if err != nil {
		p.Add(flag, "%s cannot be used:\n%w", name, err)
		return
	}
	built, err := parsed.Build(slog.New(slog.DiscardHandler), &epp.Keep{})
	if err != nil {
		p.Add(flag, "%s cannot be used: %w", name, err)
		return
	}
	err = c.dryRun(built)
	p.Require(err == nil, flag, "%s cannot be used: %w", cmp.Or(name, "the default"), err)
	from := c.Endpoints
	if built.Discovery != nil {
		from = from.withoutCluster()
	} else {
		from.validateUnconfigured(p)
	}
	if given := from.given(); len(given) > 0 {
		_, err = from.choose(built.Discovery)
		p.Require(err == nil, given[0], "%w", err)
	}
	err = built.Close()
	p.Require(err == nil, flag, "%w", err)
}

// dryRun does what swap does with a configuration, except for the endpoints, without effect.
func (c *settings) dryRun(b *config.Built) error {
	if _, err := c.pipeline(b, nil, nil, nil); err != nil {
		return err
	}
	source, extractor, err := c.scraping(b)
	if err != nil {
		return err
	}
	return pool.New(pool.Options{}).Configure(nil, source, extractor, furtherPages(b)...)
}

// pipeline makes the pipeline that picks by a configuration. If the configuration has queues, requests wait in q, which takes the
// place of shedding by priority. r is told of every pick, unless it is nil.
func (c *settings) pipeline(b *config.Built, q *queue, metrics *sched.Metrics, r *capture.Recorder) (*sched.Pipeline, error) {
	cfg := setup.Scheduler(b, c.Metrics.Stale, uint64(c.Picking.Seed), metrics)
	if q != nil {
		cfg.Picked = append(cfg.Picked, q.running)
	}
	if r != nil {
		cfg.Picked = append(cfg.Picked, r)
	}
	setup.Queueing(&cfg, b, q)
	return sched.NewPipeline(cfg)
}

// swap makes a configuration the current one. If it fails, the current one stays.
func (p *picker) swap(c *config.Config, b *config.Built) error {
	pipeline, err := p.settings.pipeline(b, p.queue, p.metrics, p.capture)
	if err != nil {
		return err
	}
	file, err := p.settings.Endpoints.choose(b.Discovery)
	if err != nil {
		return err
	}
	discovery, err := p.discovery(file)
	if err != nil {
		return err
	}
	source, extractor, err := p.settings.scraping(b)
	if err != nil {
		return err
	}
	if err := p.pool.Configure(discovery, source, extractor, furtherPages(b)...); err != nil {
		return err
	}
	p.file = file
	p.queue.use(b, &p.settings)
	p.sched.Swap(pipeline)
	if p.capture != nil {
		p.capture.Use(capture.Setup{Config: string(c.YAML()), Digest: c.Digest(), Seed: pipeline.Seed(), BlockTokens: capture.BlockTokens(p.sched.Needs())})
	}
	if p.exchange != nil {
		p.exchange.SetInterval(b.SyncInterval)
		p.exchange.SetMatchers(config.Of[epp.SharedMatcher](b))
		p.exchange.SetLoads(!slices.ContainsFunc(config.Of[epp.Apart](b), epp.Apart.Apart))
	}
	p.lifecycle.use(b)
	p.sizes.use(b)
	p.current.Store(&use{c, b})
	if err := p.keep.Settle(); err != nil {
		p.log.Error("what an earlier configuration used could not be closed", "error", err)
	}
	return nil
}

// discovery returns the new source of the endpoints, nil if it does not change: an invalid endpoints file must not fail a change of
// the configuration.
func (p *picker) discovery(file pool.File) (pool.Discovery, error) {
	switch {
	case p.watch != nil && p.current.Load() == nil:
		return p.watch, nil
	case p.watch != nil || file == p.file:
		return nil, nil
	}
	return file.Discovery(p.log)
}

// scraping returns how metrics pages are read: as configured, with the changes of the older flags to the default engine. Without a
// source, or without an extractor for it, no pages are read.
func (c *settings) scraping(b *config.Built) (source pool.Source, extractor page.Extractor, err error) {
	for _, configured := range b.Sources {
		s, isSource := configured.Source.(pool.Source)
		for _, x := range configured.Extractors {
			if e, ok := x.(page.Extractor); ok && isSource {
				source, extractor = s, e
			}
		}
	}
	if source == (pool.Source{}) {
		return source, extractor, nil
	}
	m := c.Metrics
	if err := extractor.Override(m.Queued, m.KVUsage, m.LoRA); err != nil {
		return source, extractor, fmt.Errorf("reading the flags of metrics: %w", err)
	}
	return source, extractor, nil
}

// furtherPages returns which pages are read beside the metrics pages.
func furtherPages(b *config.Built) (pages []pool.Further) {
	for _, configured := range b.Sources {
		s, isSource := configured.Source.(pool.FurtherSource)
		for _, x := range configured.Extractors {
			if reader, ok := x.(pool.FurtherReader); ok && isSource {
				pages = append(pages, pool.Further{Name: configured.Name, Source: s, Reader: reader})
			}
		}
	}
	return pages
}

// run discovers and scrapes endpoints, and follows the configuration's file, until ctx ends.
func (p *picker) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var following sync.WaitGroup
	if p.settings.Picking.File != "" {
		following.Go(func() { p.live.Follow(ctx, p.settings.Picking.File) })
	}
	following.Go(func() { p.rules.follow(ctx) })
	following.Go(func() { p.sched.Run(ctx) })
	if p.capture != nil {
		following.Go(func() { p.capture.Run(ctx) })
	}
	following.Go(func() { p.queue.follow(ctx) })
	if p.exchange != nil {
		following.Go(func() { p.exchange.Run(ctx) })
	}
	if p.marker != nil {
		following.Go(func() { p.marker.Run(ctx) })
	}
	following.Go(func() { p.lifecycle.follow(ctx, p.pool) })
	var shadows error
	if p.shadow != nil {
		following.Go(func() { shadows = p.shadow.run(ctx) })
	}
	err := p.pool.Run(ctx)
	stop()
	following.Wait()
	return errors.Join(err, shadows, p.keep.Close())
}

// close ends the plugins. run must have returned.
func (p *picker) close() error {
	if p.shadow == nil {
		return p.live.Close()
	}
	return errors.Join(p.shadow.close(), p.live.Close())
}

// detail returns what probes are told besides ok.
func (p *picker) detail() string {
	text := p.live.State().Detail()
	for _, trouble := range []error{p.pool.Trouble(), p.rules.trouble()} {
		if trouble != nil {
			text += "\n" + trouble.Error()
		}
	}
	return text
}
