package sched

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Config is what a pipeline is made of.
type Config struct {
	Profiles    []epp.Profile
	Stages      epp.Stages
	DeciderName string      // of Stages.Decider in the configuration; for explanations
	Matcher     epp.Matcher // nil: nothing is known of prefix caches
	Producers   []epp.Producer
	Detector    epp.Detector  // while it says full, requests of negative priority are refused; nil: they are not
	Charge      epp.Charge    // how requests are charged to endpoints
	Stale       time.Duration // age from which on a load is believed less: see epp.Load.Trust
	Seed        uint64        // of the draws between equals; 0 = another seed for every pipeline
	Metrics     *Metrics      // nil: nobody counts
}

// Pipeline is a configuration that picks can be made with. It does not change, but for the count of its picks and the fallback
// budget.
type Pipeline struct {
	config  Config
	decode  *epp.Profile
	prefill *epp.Profile // nil: requests are never split
	picks   atomic.Uint64
	last    sync.Mutex // held in the last try of a pick

	fallback *pd.FallbackBudget // of what should go remote and finds no prefill endpoint
}

// NewPipeline makes a pipeline. The error joins all that is wrong with the configuration.
//
// Without a decider (Stages.Decider nil) a request goes remote only if its client forces it; the others stay local as
// below-threshold, as under a threshold that nothing reaches. Without a prefill stage (Stages.Prefill "") nothing goes
// remote: requests stay local as no-prefill, and those that must not are refused.
func NewPipeline(c Config) (*Pipeline, error) {
	c.Profiles = slices.Clone(c.Profiles)
	p := &Pipeline{config: c, fallback: pd.NewFallbackBudget(pd.FallbackRatio, pd.FallbackBurst)}
	if p.config.Metrics == nil {
		p.config.Metrics = NewMetrics(nil)
	}
	if p.config.Seed == 0 {
		p.config.Seed = rand.Uint64()
	}
	problems := []error{c.checkProfiles(), c.checkNumbers()}
	var err error
	p.decode, err = c.profile(epp.StageDecode, c.Stages.Decode)
	problems = append(problems, err)
	if c.Stages.Prefill != "" {
		p.prefill, err = c.profile(epp.StagePrefill, c.Stages.Prefill)
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return p, nil
}

// profile finds the profile of a stage.
func (c *Config) profile(stage epp.Stage, name string) (*epp.Profile, error) {
	names := make([]string, len(c.Profiles))
	for i := range c.Profiles {
		if c.Profiles[i].Name == name {
			return &c.Profiles[i], nil
		}
		names[i] = c.Profiles[i].Name
	}
	return nil, fmt.Errorf("the %s stage wants profile %q, which does not exist (there are: %s)",
		stage, name, strings.Join(names, ", "))
}

func (c *Config) checkProfiles() error {
	var problems []error
	seen := make(map[string]bool, len(c.Profiles))
	for i := range c.Profiles {
		p := &c.Profiles[i]
		if seen[p.Name] {
			problems = append(problems, fmt.Errorf("there are several profiles %q", p.Name))
		}
		seen[p.Name] = true
		if err := checkProfile(p); err != nil {
			problems = append(problems, fmt.Errorf("profile %q: %w", p.Name, err))
		}
	}
	return errors.Join(problems...)
}

func checkProfile(p *epp.Profile) error {
	switch {
	case p.Picker == nil:
		return errors.New("it has no picker")
	case p.Picker.Endpoints() < 1:
		return fmt.Errorf("its picker chooses %d endpoints, which must be at least 1", p.Picker.Endpoints())
	}
	for _, f := range p.Filters {
		if f.Filter == nil {
			return fmt.Errorf("filter %q is nil", f.Name)
		}
	}
	for _, s := range p.Scorers {
		switch {
		case s.Scorer == nil:
			return fmt.Errorf("scorer %q is nil", s.Name)
		case math.IsNaN(s.Weight) || math.IsInf(s.Weight, 0):
			return fmt.Errorf("the weight of scorer %q is %v, which is not finite", s.Name, s.Weight)
		}
	}
	return nil
}

func (c *Config) checkNumbers() error {
	var problems []error
	require := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	n := c.Stages.Candidates
	require(c.Stages.Prefill == "" || 1 <= n && n <= pd.MaxTargets,
		"%d prefill candidates are wanted, which must be 1 to %d", n, pd.MaxTargets)
	require(c.Stale > 0, "the age at which a load is stale is %v, which must be positive", c.Stale)
	require(c.Charge.OutputRatio >= 0, "the output ratio is %v, which must not be negative", c.Charge.OutputRatio)
	require(c.Charge.MaxOutput >= 0, "the most output tokens are %d, which must not be negative", c.Charge.MaxOutput)
	return errors.Join(problems...)
}
