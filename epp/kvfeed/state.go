package kvfeed

import (
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/kvevents"
	"github.com/tandem-serving/tandem/epp/kvindex"
)

// State is what a feed knows, for people.
type State struct {
	Blocks      int64           `json:"blocks"` // each counted for each of its holders
	Limit       int64           `json:"limit"`
	Shared      int             `json:"shared_blocks,omitempty"` // in a store that engines share
	BlockTokens []int           `json:"block_tokens"`            // lengths of engines' blocks
	Names       string          `json:"hashes,omitempty"`        // by which blocks are looked up, as configured; "" = by their tokens
	Listens     string          `json:"listens,omitempty"`       // address to which engines connect
	Presumes    float64         `json:"presumes_seconds"`        // 0 = nothing is presumed
	Strangers   int64           `json:"strangers,omitempty"`     // messages of engines that are no endpoints
	Mismatches  map[string]int  `json:"mismatches"`
	Endpoints   []EndpointState `json:"endpoints"`
}

// EndpointState is what it knows of an endpoint.
type EndpointState struct {
	Endpoint string        `json:"endpoint"`
	Address  string        `json:"address"`
	Problem  string        `json:"problem,omitempty"` // why it is not known where its engine publishes
	Sources  []SourceState `json:"sources"`
}

// SourceState is what one stream of events is.
type SourceState struct {
	Rank      int            `json:"rank"`
	How       string         `json:"how"` // it was found
	Events    string         `json:"events,omitempty"`
	Replay    string         `json:"replay,omitempty"`
	Connected bool           `json:"connected"`
	Blocks    int            `json:"blocks"`
	Tiers     map[string]int `json:"tiers"`                // blocks by where they are; one may be in several tiers
	Age       float64        `json:"last_message_seconds"` // -1 = there was none
	Stored    int64          `json:"stored"`               // blocks
	Removed   int64          `json:"removed"`              // blocks
	Cleared   int64          `json:"cleared"`
	Earlier   int64          `json:"earlier"` // messages from before the picker listened that were not replayed
	Lost      int64          `json:"lost"`    // messages
	Restarts  int64          `json:"restarts"`
	Skipped   map[string]int `json:"skipped,omitempty"` // events by reason
}

// State returns what the feed knows.
func (f *Feed) State() State {
	s := State{Blocks: f.index.Blocks(), Limit: f.options.Limit, Shared: f.shared.Len(), BlockTokens: []int{}, Names: f.options.Names.String(), Listens: f.options.Listen, Presumes: f.options.Presume.Seconds(),
		Strangers: f.unknown.Load(), Mismatches: map[string]int{}, Endpoints: []EndpointState{}}
	for _, root := range f.roots.Of("") {
		s.BlockTokens = append(s.BlockTokens, root.BlockTokens)
	}
	for i := range f.checks.found {
		s.Mismatches[Mismatch(i).String()] = int(f.checks.found[i].Load())
	}
	now := f.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		e := EndpointState{Endpoint: m.String(), Address: m.Address, Sources: []SourceState{}}
		if why := m.asked.Load(); why != nil {
			e.Problem = *why
		}
		for _, source := range *m.sources.Load() {
			e.Sources = append(e.Sources, source.state(now))
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func (s *source) state(now int64) SourceState {
	c := &s.counts
	state := SourceState{Rank: s.rank, How: s.how, Events: s.from.Events, Replay: s.from.Replay, Connected: c.Connected.Load() > 0,
		Blocks: s.stream.Holder.Len(), Tiers: map[string]int{}, Age: -1, Stored: c.Stored.Load(), Removed: c.Removed.Load(), Cleared: c.Cleared.Load(),
		Earlier: c.Earlier.Load(), Lost: c.Lost.Load(), Restarts: c.Restarts.Load(), Skipped: map[string]int{}}
	if at := s.heard.Load(); at > 0 {
		state.Age = time.Duration(now - at).Seconds()
	}
	for t := range kvindex.Tiers {
		state.Tiers[epp.Tier(t).String()] = s.stream.Holder.In(t)
	}
	for i := range c.Skipped {
		if n := int(c.Skipped[i].Load()); n > 0 {
			state.Skipped[kvevents.Reason(i).String()] = n
		}
	}
	return state
}

// Held is how much of a prompt one engine, or one rank of it, holds.
type Held struct {
	Endpoint string `json:"endpoint"`
	Address  string `json:"address"`
	Rank     int    `json:"rank"`   // -1 = of those that are presumed, or shared
	Tokens   int    `json:"tokens"` // whole blocks
	// Tiers are the tokens by the fastest memory that they are in, from which the engine would take them.
	Tiers map[string]int `json:"tiers,omitempty"`
	How   string         `json:"how"` // events, or presumed
}

// in returns the tokens of blocks by where they are.
func (u *upTo) in(each int) map[string]int {
	cached, loads := u.tokens(each)
	tiers := loads.ByTier()
	if gpu := cached - loads.Sum(); gpu > 0 {
		if tiers == nil {
			tiers = map[string]int{}
		}
		tiers[epp.GPUTier.String()] = gpu
	}
	return tiers
}

// Holds returns who holds how much of a prompt. Where nothing is presumed of an endpoint, or it has no shared store, it has no such entry.
func (f *Feed) Holds(model string, prompt epp.Prompt) []Held {
	var p pending
	f.cut(&p, &epp.Request{Model: model}, &prompt)
	now, all := f.now(), []Held{}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		ranks, shared, soon := []Held{}, 0, 0
		shares := false
		for _, s := range *m.sources.Load() {
			ranks = append(ranks, Held{m.String(), m.Address, s.rank, 0, nil, "events"})
			shares = shares || s.counts.Shared.Load()
		}
		for i := range p.chains {
			c := &p.chains[i]
			f.index.Measure(c.keys, &p.depths)
			for j, s := range *m.sources.Load() {
				if has := s.blocks(&p.depths); has.all()*c.blockTokens > ranks[j].Tokens {
					ranks[j].Tokens, ranks[j].Tiers = has.all()*c.blockTokens, has.in(c.blockTokens)
				}
			}
			if shares {
				shared = max(shared, p.depths.Of(f.shared)*c.blockTokens)
			}
			if f.options.Presume > 0 {
				soon = max(soon, m.presumed.blocks(&p.depths, now, f.options.Presume)*c.blockTokens)
			}
		}
		all = append(all, ranks...)
		if shared > 0 {
			all = append(all, Held{m.String(), m.Address, -1, shared, map[string]int{epp.SharedTier.String(): shared}, "events"})
		}
		if soon > 0 {
			all = append(all, Held{m.String(), m.Address, -1, soon, map[string]int{epp.GPUTier.String(): soon}, "presumed"})
		}
	}
	return all
}
