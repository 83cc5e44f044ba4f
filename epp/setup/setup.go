package setup

import (
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/sched"
)

// Scheduler returns how the scheduler picks by a configuration. stale is the age from which loads are trusted less, seed that of the
// random numbers that break ties (0: another for every pipeline); without metrics nothing is counted.
func Scheduler(b *config.Built, stale time.Duration, seed uint64, metrics *sched.Metrics) sched.Config {
	return sched.Config{Profiles: b.Profiles, Stages: b.Stages, Chooser: b.Chooser, Choices: b.Choices, Preparers: b.Preparers,
		Flows:     config.Of[epp.FlowNamer](b),
		Screeners: b.Screeners, Admitters: b.Admitters, Admission: b.Admission, Matchers: b.Matchers, Producers: b.Producers,
		Links: b.Links, Detector: b.Detector, Observers: config.Of[epp.Observer](b), Picked: config.Of[epp.PickObserver](b),
		Sources:       config.Of[epp.SourceFinder](b),
		AnswerPlugins: epp.AnswerPlugins{Stampers: config.Of[epp.Stamper](b), Reporters: config.Of[epp.Reporter](b)},
		Reads:         b.Reads, Charge: b.Charge, Stale: stale, Seed: seed, Metrics: metrics}
}
