package epp

import "time"

// Tier is a kind of memory in which engines keep KV blocks. Faster ones come first.
type Tier uint8

// The tiers.
const (
	GPUTier    Tier = iota // the accelerator's memory
	CPUTier                // the host's memory
	DiskTier               // disks of the host
	SharedTier             // a store that several engines share
	Tiers
)

// String returns the tier as explanations and metrics have it.
func (t Tier) String() string { return [Tiers]string{"gpu", "cpu", "disk", "shared"}[t] }

// Loads are how many of a prompt's cached tokens an engine must load before it can use them, by where they are. Those in the accelerator's
// memory need not be loaded.
type Loads [Tiers - 1]int32

// In returns the tokens that are loaded from a tier.
func (l *Loads) In(t Tier) int { return int(l[t-1]) }

// Set says how many tokens are loaded from a tier.
func (l *Loads) Set(t Tier, tokens int) { l[t-1] = int32(tokens) }

// Sum returns the tokens that are loaded.
func (l *Loads) Sum() (tokens int) {
	for _, n := range l {
		tokens += int(n)
	}
	return tokens
}

// ByTier returns the tokens of the tiers from which some are loaded, by the tier's name; nil if none are.
func (l *Loads) ByTier() (tokens map[string]int) {
	for t := CPUTier; t < Tiers; t++ {
		if n := l.In(t); n > 0 {
			if tokens == nil {
				tokens = map[string]int{}
			}
			tokens[t.String()] = n
		}
	}
	return tokens
}

// Saving is what cached tokens spare an engine.
type Saving struct {
	// Tokens are how many cached tokens in the accelerator's memory save as much. It is at least 0.
	Tokens float64
	// Time is that of computing the cached tokens, without that of loading them. It is negative if loading takes longer.
	Time time.Duration
	Load time.Duration // the time of loading
}

// Valuer is a Matcher that knows what it saves that an endpoint has tokens cached, where it must load some of them.
type Valuer interface {
	Matcher
	// Value returns what an endpoint saves that has so many tokens of a prompt's beginning cached.
	Value(c *Candidate, cached int, loads Loads) Saving
}
