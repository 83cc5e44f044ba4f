package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/epp/setup"
	"github.com/tandem-serving/tandem/epp/shadow"
)

// shadowPicker is the shadow: a second configuration that decides about the same requests without effect, and follows its file.
type shadowPicker struct {
	file      string
	keep      epp.Keep
	lifecycle lifecycle
	live      *config.Live
	report    *shadow.Report
	pool      changing
	sched     *sched.Scheduler
	settings  *settings
	log       *slog.Logger
}

// newShadow has the configuration of a file decide about the requests of a picker.
func newShadow(c *settings, p *picker, log *slog.Logger) (*shadowPicker, error) {
	data, err := epp.ReadFile(c.Picking.Shadow, config.MaxSize)
	if err != nil {
		return nil, boot.Configf("shadow-config: %w", err)
	}
	b := &shadowPicker{file: c.Picking.Shadow, report: shadow.New(c.Picking.Shadow, epp.SystemClock), pool: p.pool, sched: p.sched, settings: c,
		log: log.With("shadow", c.Picking.Shadow)}
	b.lifecycle.keep = &b.keep
	if b.live, err = config.Start(data, config.Options{Table: c.Picking.table(), Log: b.log, Keep: &b.keep, Swap: b.swap}); err != nil {
		return nil, boot.Configf("shadow-config: %w", err)
	}
	return b, nil
}

// swap makes a configuration the shadow's.
func (b *shadowPicker) swap(_ *config.Config, built *config.Built) error {
	pipeline, err := b.settings.shadowPipeline(built)
	if err != nil {
		return err
	}
	b.lifecycle.use(built)
	b.report.Restart()
	b.sched.SetShadow(&sched.Shadow{Pipeline: pipeline, Watcher: b.report})
	if err := b.keep.Settle(); err != nil {
		b.log.Error("what an earlier configuration used could not be closed", "error", err)
	}
	return nil
}

// shadowPipeline makes the pipeline that picks by a configuration without effect: it has no preparers and no queues.
func (c *settings) shadowPipeline(b *config.Built) (*sched.Pipeline, error) {
	return sched.NewPipeline(setup.Scheduler(b, c.Metrics.Stale, uint64(c.Picking.Seed), nil))
}

// EndpointJoined implements epp.EndpointObserver.
func (b *shadowPicker) EndpointJoined(e *epp.Endpoint) {
	b.report.EndpointJoined(e)
	b.lifecycle.EndpointJoined(e)
}

// EndpointLeft implements epp.EndpointObserver.
func (b *shadowPicker) EndpointLeft(e *epp.Endpoint) {
	b.report.EndpointLeft(e)
	b.lifecycle.EndpointLeft(e)
}

// run follows the file and the pool until ctx ends.
func (b *shadowPicker) run(ctx context.Context) error {
	var following sync.WaitGroup
	following.Go(func() { b.live.Follow(ctx, b.file) })
	following.Go(func() { b.lifecycle.follow(ctx, b.pool) })
	following.Wait()
	return b.keep.Close()
}

// close ends the plugins. run must have returned.
func (b *shadowPicker) close() error {
	b.sched.SetShadow(nil)
	return b.live.Close()
}

// validateShadow reads the file of the shadow, as the start does.
func (c *settings) validateShadow(p *boot.Problems) {
	if c.Picking.Shadow == "" {
		return
	}
	data, err := epp.ReadFile(c.Picking.Shadow, config.MaxSize)
	if err != nil {
		p.Add("shadow-config", "%w", err)
		return
	}
	parsed, err := config.Parse(data, c.Picking.table())
	if err != nil {
		p.Add("shadow-config", "%s cannot be used:\n%w", c.Picking.Shadow, err)
		return
	}
	built, err := parsed.Build(slog.New(slog.DiscardHandler), &epp.Keep{})
	if err != nil {
		p.Add("shadow-config", "%s cannot be used: %w", c.Picking.Shadow, err)
		return
	}
	_, err = c.shadowPipeline(built)
	err = cmp.Or(err, built.Close())
	p.Require(err == nil, "shadow-config", "%s cannot be used: %w", c.Picking.Shadow, err)
}

func (p *picker) debugShadow(w http.ResponseWriter, _ *http.Request) {
	if p.shadow == nil {
		http.Error(w, "There is no shadow: start the picker with --shadow-config.", http.StatusNotFound)
		return
	}
	writeJSON(w, struct {
		shadow.View
		State string `json:"state"`
	}{p.shadow.report.View(), fmt.Sprint(p.shadow.live.State().Detail())})
}
