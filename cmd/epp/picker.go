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
	file     pool.File // where the endpoints come from
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

// validate reads the files that the flags name as the start will, but for the endpoints, which change more often.
func (c picking) validate(p *boot.Problems) {
	_, err := readSecret(c.AuthFile)
	p.Require(err == nil, "auth-file", "reading the shared secret: %w", err)
	flag, name := "config-file", c.File
	if c.Text != "" {
		flag, name = "config-text", "the text"
	}
	data, err := c.read()
	if err != nil {
		p.Add(flag, "%w", err)
		return
	}
	if _, err := config.Parse(data, plugin.Table); err != nil {
		p.Add(flag, "%s cannot be used:\n%w", name, err)
	}
}

// swap makes a configuration the one in use, as a whole or not at all.
func (p *picker) swap(c *config.Config, b *config.Built) error {
	pipeline, err := sched.NewPipeline(sched.Config{Profiles: b.Profiles, Stages: b.Stages, DeciderName: b.DeciderName, Matcher: b.Matcher,
		Charge: b.Charge, Stale: p.settings.Metrics.Stale, Seed: uint64(p.settings.Picking.Seed), Metrics: p.metrics})
	if err != nil {
		return err
	}
	file, err := p.endpointsFile(b)
	if err != nil {
		return err
	}
	var discovery pool.Discovery
	if file != p.file { // else it goes on: a broken endpoints file is no reason to refuse a configuration
		if discovery, err = file.Discovery(p.log); err != nil {
			return err
		}
	}
	source, extractor, err := p.scraping(b)
	if err != nil {
		return err
	}
	if err := p.pool.Configure(discovery, source, extractor); err != nil {
		return err
	}
	p.file = file
	p.sched.Swap(pipeline)
	p.current.Store(&use{c, b})
	return nil
}

// endpointsFile is the one that the configuration names, or else the flag.
func (p *picker) endpointsFile(b *config.Built) (pool.File, error) {
	if file, ok := b.Discovery.(*pool.File); ok {
		return *file, nil
	}
	if p.settings.Picking.Endpoints == "" {
		return pool.File{}, errors.New("nothing says where the endpoints are: name a file with --endpoints-file, or configure dataLayer.discovery with the plugin file-discovery")
	}
	return pool.File{Path: p.settings.Picking.Endpoints, WatchFile: true}, nil
}

// scraping is how metrics pages are read: as configured, with what the older flags change of the default engine. Without a
// source, or without an extractor for what it reads, they are not.
func (p *picker) scraping(b *config.Built) (source pool.Source, extractor pool.Extractor, err error) {
	for _, configured := range b.Sources {
		s, isSource := configured.Source.(pool.Source)
		for _, x := range configured.Extractors {
			if e, ok := x.(pool.Extractor); ok && isSource {
				source, extractor = s, e
			}
		}
	}
	if source == (pool.Source{}) {
		return source, extractor, nil
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
func (p *picker) detail() string {
	text := p.live.State().Detail()
	if trouble := p.pool.Trouble(); trouble != nil {
		text += "\n" + trouble.Error()
	}
	return text
}
