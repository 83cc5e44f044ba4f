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

// Config is the configuration of a pipeline.
type Config struct {
	Profiles      []epp.Profile
	Stages        epp.Stages
	Chooser       epp.Chooser           // chooses stages for each request; nil: Stages serve all
	Choices       map[string]epp.Stages // what it chooses among
	Flows         []epp.FlowNamer       // name the flows of requests; the first that knows one counts
	Preparers     []epp.NamedPreparer   // run before the pick, all at once
	Admission     epp.Admission         // nil: every request is picked for at once
	Wait          time.Duration         // for which the admission may let a request wait
	Screeners     []epp.NamedScreener   // narrow down the candidates of all stages, in this order
	Admitters     []epp.NamedAdmitter   // refuse requests for the load of the candidates
	Matchers      []epp.Matcher         // know prefix caches; plugins that name none of them use the first
	Producers     []epp.Producer        // of signals
	Links         epp.LinkEstimator     // nil: links are not known
	Detector      epp.Detector          // while the pool is full, requests of negative priority are refused; nil: they are not
	Observers     []epp.Observer        // of outcomes
	Picked        []epp.PickObserver    // told of every pick
	Sources       []epp.SourceFinder    // name where the engine that computes the prompt fetches blocks; the first that knows one counts
	AnswerPlugins epp.AnswerPlugins
	Reads         epp.APISet    // APIs whose requests are read
	Charge        epp.Charge    // how requests are charged to endpoints
	Stale         time.Duration // age from which a load is trusted less: see epp.Load.Trust
	Seed          uint64        // of the random numbers that break ties; 0 = another seed for every pipeline
	Metrics       *Metrics      // nil: nothing is counted
}

// Pipeline is a checked configuration. It does not change, but for the count of its picks and the fallback budget.
type Pipeline struct {
	config Config
	stages []stage
	split  int            // index of the stage that splits requests, -1 = none
	reads  epp.Matcher    // by which decisions say what is cached; nil = the first
	needs  epp.PromptSpec // of prompts, for all matchers
	roles  []pd.Role
	choice map[string]*Pipeline // for each of the choices, the same with its stages

	fallback *pd.FallbackBudget // for requests that should go remote and find no endpoint

	_     [64]byte // every pick writes what follows, and reads what comes before: they must not share a cache line
	picks atomic.Uint64
	last  sync.Mutex // held in the last try of a pick
}

// stage is a row of the configuration, ready to run.
type stage struct {
	*epp.StageRow // in the configuration
	profile       *epp.Profile
	wanted        int    // endpoints
	compares      bool   // its decider is an epp.Comparer
	pairs         bool   // the decider of the stage that splits requests chooses from all endpoints that this one's filters leave
	detects       []bool // by filter of the profile: it is an epp.Detector or an epp.Shedder
}

// NewPipeline makes a pipeline. The error joins all problems of the configuration.
//
// If the stage that splits requests has no decider, a request goes remote only if its client forces it; the others stay local
// as below-threshold. Without such a stage nothing goes remote: requests stay local as no-prefill, and those that must not
// are refused.
func NewPipeline(c Config) (*Pipeline, error) {
	c.Profiles, c.Stages = slices.Clone(c.Profiles), slices.Clone(c.Stages)
	p := &Pipeline{config: c, split: -1, needs: needsOf(c.Matchers), fallback: pd.NewFallbackBudget(pd.FallbackRatio, pd.FallbackBurst)}
	if p.config.Metrics == nil {
		p.config.Metrics = NewMetrics(nil)
	}
	if p.config.Seed == 0 {
		p.config.Seed = rand.Uint64()
	}
	if err := errors.Join(c.checkProfiles(), c.checkNumbers(), p.addStages(), p.addChoices()); err != nil {
		return nil, err
	}
	return p, nil
}

// Seed returns the seed of the random numbers that break ties.
func (p *Pipeline) Seed() uint64 { return p.config.Seed }

// Continue numbers the next pick as if so many had been made: its random choices are those that it had in the pipeline that picked
// first, if both have the same seed.
func (p *Pipeline) Continue(picks uint64) {
	p.picks.Store(picks)
	for _, choice := range p.choice {
		choice.picks.Store(picks)
	}
}

// addChoices makes a pipeline for each choice of stages.
func (p *Pipeline) addChoices() error {
	if p.config.Chooser == nil {
		return nil
	}
	p.choice = make(map[string]*Pipeline, len(p.config.Choices))
	var problems []error
	for name, stages := range p.config.Choices {
		c := p.config
		c.Stages, c.Chooser, c.Choices = stages, nil, nil
		one, err := NewPipeline(c)
		if err != nil {
			problems = append(problems, fmt.Errorf("choice %s: %w", name, err))
		}
		p.choice[name] = one
	}
	return errors.Join(problems...)
}

// of returns the pipeline that serves a request. The error is a *pd.Refusal.
func (p *Pipeline) of(r *epp.Request) (*Pipeline, error) {
	if p.choice == nil {
		return p, nil
	}
	if len(p.choice) == 1 {
		for _, only := range p.choice {
			return only, nil
		}
	}
	name := p.config.Chooser.Choose(r)
	if chosen := p.choice[name]; chosen != nil {
		return chosen, nil
	}
	return nil, pd.Refuse(pd.BadRequest, "This request asks for the profile %.80q, which the endpoint picker does not have.", name)
}

// addStages prepares the stages.
func (p *Pipeline) addStages() error {
	c := &p.config
	if len(c.Stages) == 0 {
		return errors.New("there are no stages")
	}
	var problems []error
	// The detector also judges endpoints of these roles if no stage is for them: a profile without a filter by role may pick
	// them.
	p.roles = []pd.Role{pd.RoleDecode, pd.RolePrefill}
	for i := range c.Stages {
		row := &c.Stages[i]
		profile, err := c.profile(row.Stage, row.Profile)
		problems = append(problems, err, c.checkRow(i))
		s := stage{StageRow: row, profile: profile, wanted: row.Endpoints}
		if s.wanted == 0 && profile != nil && profile.Picker != nil {
			s.wanted = profile.Picker.Endpoints()
			if i > 0 {
				s.wanted = min(s.wanted, pd.MaxTargets)
			}
		}
		_, s.compares = row.Decider.Decider.(epp.Comparer)
		if profile != nil {
			for _, f := range profile.Filters {
				_, detects := f.Filter.(epp.Detector)
				_, sheds := f.Filter.(epp.Shedder)
				s.detects = append(s.detects, detects || sheds)
			}
		}
		if row.Split {
			p.split, p.fallback = i, pd.NewFallbackBudget(row.FallbackRatio, row.FallbackBurst)
			if reader, ok := row.Decider.Decider.(epp.CacheReader); ok {
				p.reads = reader.Reads()
			}
			if pairer, ok := row.Decider.Decider.(epp.Pairer); ok && pairer.Pairs() && i > 0 {
				s.pairs, p.stages[0].pairs = true, true
			}
		}
		if !slices.Contains(p.roles, row.Role) {
			p.roles = append(p.roles, row.Role)
		}
		p.stages = append(p.stages, s)
		c.Metrics.saturated.WithLabelValues(string(row.Stage)) // zero, so that an alert can tell it from a missing metric
	}
	return errors.Join(problems...)
}

// splits reports whether the pipeline has a stage that splits requests.
func (p *Pipeline) splits() bool { return p.split >= 0 }

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

// checkRow checks one row of the stages against those before it.
func (c *Config) checkRow(i int) error {
	row, before := &c.Stages[i], c.Stages[:i]
	var problems []error
	require := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	require(row.Role != 0, "the %s stage has no role", row.Stage)
	require(before.Row(row.Stage) == nil, "there are several rows for the %s stage", row.Stage)
	for _, excluded := range row.Excludes {
		require(before.Row(excluded) != nil, "the %s stage excludes the endpoint of %s, which does not come before it", row.Stage, excluded)
	}
	if i == 0 {
		require(!row.Split && row.Decider.Decider == nil && row.Header == "", "the %s stage comes first, so it cannot depend on a decision", row.Stage)
		return errors.Join(problems...)
	}
	require(row.Port == 0, "the %s stage does not come first, so no gateway is told a port for it", row.Stage)
	require(pd.Internal(row.Header), "the %s stage names its endpoints in the header %q, which is not removed from what clients send",
		row.Stage, row.Header)
	n := row.Endpoints
	require((1 <= n || n == 0 && !row.Split) && n <= pd.MaxTargets, "%d %s candidates are wanted, which must be 1 to %d", n, row.Stage, pd.MaxTargets)
	require(!row.Split || !slices.ContainsFunc(before, func(r epp.StageRow) bool { return r.Split }),
		"the %s stage splits requests, and so does one before it", row.Stage)
	require(row.FallbackRatio >= 0 && row.FallbackRatio <= 1, "the fallback ratio of the %s stage is %v, which must be from 0 to 1", row.Stage, row.FallbackRatio)
	require(row.FallbackBurst >= 0, "the fallback burst of the %s stage is %d, which must not be negative", row.Stage, row.FallbackBurst)
	return errors.Join(problems...)
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
	require(c.Stale > 0, "the age at which a load is stale is %v, which must be positive", c.Stale)
	require(c.Charge.OutputRatio >= 0, "the output ratio is %v, which must not be negative", c.Charge.OutputRatio)
	require(c.Charge.MaxOutput >= 0, "the most output tokens are %d, which must not be negative", c.Charge.MaxOutput)
	for _, p := range c.Preparers {
		require(p.Preparer != nil && p.Timeout() > 0, "preparer %q has no positive timeout", p.Name)
	}
	return errors.Join(problems...)
}
