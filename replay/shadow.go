package replay

import (
	"errors"
	"log/slog"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/epp/setup"
	"github.com/tandem-serving/tandem/epp/shadow"
)

// startShadow has a second configuration decide about the picker's requests without effect, as a picker's --shadow-config does.
func (p *picker) startShadow(c *config.Config) error {
	w := p.world
	keep := &epp.Keep{Clock: &w.clock, Offline: true}
	built, err := c.Build(slog.New(slog.DiscardHandler), keep)
	if err != nil {
		return err
	}
	pipeline, err := sched.NewPipeline(setup.Scheduler(built, w.options.Stale, w.options.Seed+1, nil))
	if err = errors.Join(err, w.options.supported(built)); err != nil {
		return errors.Join(err, built.Close())
	}
	p.shadow, p.compared = built, shadow.New("shadow", &w.clock)
	members := append(config.Of[epp.EndpointObserver](built), keep)
	for _, one := range p.loads.Snapshot().Endpoints {
		for _, observer := range members {
			observer.EndpointJoined(one)
		}
	}
	p.members = append(p.members, members...)
	p.observers = append(append(p.observers, config.Of[epp.Observer](built)...), p.compared)
	p.sched.SetShadow(&sched.Shadow{Pipeline: pipeline, Watcher: p.compared})
	return nil
}
