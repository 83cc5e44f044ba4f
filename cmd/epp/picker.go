package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/epp/pool"
	"github.com/tandem-serving/tandem/epp/sched"
)

// picker is the rooms behind the front door: the pool, the scheduler, and the configuration that shapes both.
type picker struct {
	settings settings
	log      *slog.Logger
	keep     epp.Keep
	pool     *pool.Pool
	sched    *sched.Scheduler
	metrics  *sched.Metrics
	live     *config.Live
	current  atomic.Pointer[use]
}

// use is the configuration in use.
type use struct {
	config *config.Config
	built  *config.Built
}

// inUse is never nil.
func (p *picker) inUse() *use { return p.current.Load() }

// newPicker puts the configuration that the flags name to use. Its errors are about the configuration.
func newPicker(cfg settings, log *slog.Logger, registry *prometheus.Registry) (*picker, error) {
	p := &picker{settings: cfg, log: log, metrics: sched.NewMetrics(registry)}
	p.pool = pool.New(pool.Options{Log: log, Metrics: registry, OnGone: p.keep.Forget, Busy: cfg.Metrics.Interval, Stale: cfg.Metrics.Stale})
	p.sched = sched.New(p.pool)
	data, err := cfg.Picking.read()
	if err != nil {
		return nil, boot.Configf("config-file: %w", err)
	}
	p.live, err = config.Start(data, config.Options{Table: plugin.Table, Log: log, Keep: &p.keep, Swap: p.swap, Metrics: registry})
	if err != nil {
		return nil, boot.Configf("%w", err)
	}
	registry.MustRegister(pluginMetrics{p})
	return p, nil
}

// read gives the EndpointPickerConfig, from wherever the flags say.
func (c picking) read() ([]byte, error) {
	switch {
	case c.Text != "":
		return []byte(c.Text), nil
	case c.File != "":
		return epp.ReadFile(c.File, config.MaxSize)
	}
	return config.Default(), nil
}

// swap makes a configuration the one in use, as a whole or not at all.
func (p *picker) swap(c *config.Config, b *config.Built) error {
	pipeline, err := sched.NewPipeline(sched.Config{Profiles: b.Profiles, Stages: b.Stages, DeciderName: b.DeciderName, Matcher: b.Matcher,
		Charge: b.Charge, Stale: p.settings.Metrics.Stale, Seed: uint64(p.settings.Picking.Seed), Metrics: p.metrics})
	if err != nil {
		return err
	}
	discovery, err := p.discovery(b)
	if err != nil {
		return err
	}
	source, extractor, err := p.scraping(b)
	if err != nil {
		return err
	}
	if err := p.pool.Configure(discovery, source, extractor); err != nil {
		return err
	}
	p.sched.Swap(pipeline)
	p.current.Store(&use{c, b})
	return nil
}

// discovery is the one that the configuration names, or else the file that the flag names.
func (p *picker) discovery(b *config.Built) (pool.Discovery, error) {
	file, ok := b.Discovery.(*pool.File)
	switch {
	case ok:
	case p.settings.Picking.Endpoints != "":
		file = &pool.File{Path: p.settings.Picking.Endpoints, WatchFile: true}
	default:
		return nil, errors.New("nothing says where the endpoints are: name a file with --endpoints-file, or configure dataLayer.discovery with the plugin file-discovery")
	}
	return file.Discovery(p.log)
}

// scraping is how metrics pages are read: as configured, with what the older flags change of the default engine.
func (p *picker) scraping(b *config.Built) (pool.Source, pool.Extractor, error) {
	source, extractor := pool.DefaultSource(), pool.DefaultExtractor()
	for _, configured := range b.Sources {
		s, ok := configured.Source.(pool.Source)
		if !ok {
			continue
		}
		source = s
		for _, x := range configured.Extractors {
			if e, ok := x.(pool.Extractor); ok {
				extractor = e
			}
		}
	}
	m := p.settings.Metrics
	if err := extractor.Override(m.Queued, m.KVUsage, m.LoRA); err != nil {
		return source, extractor, fmt.Errorf("reading the flags of metrics: %w", err)
	}
	return source, extractor, nil
}

// run discovers, scrapes and follows the configuration's file until ctx ends.
func (p *picker) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var following sync.WaitGroup
	if p.settings.Picking.File != "" {
		following.Go(func() { p.live.Follow(ctx, p.settings.Picking.File) })
	}
	err := p.pool.Run(ctx)
	stop()
	following.Wait()
	return err
}

// detail is what probes are told beside ok.
func (p *picker) detail() string { return p.live.State().Detail() }
