package replay

import (
	"cmp"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/workload"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/replay"
)

// poolFile is the file of --pool-file: what differs within a pool.
type poolFile struct {
	Zones    []zone    `yaml:"zones"`
	Links    []link    `yaml:"links"`
	LoRA     lora      `yaml:"lora"`
	Variants []variant `yaml:"variants"`

	kinds []model // of Variants
}

// variant is what some engines are.
type variant struct {
	Name    string   `yaml:"name"`
	Engines []string `yaml:"engines"` // patterns of names
	Engine  string   `yaml:"engine"`  // as of --engine
	Cost    float64  `yaml:"cost"`    // of an engine for an hour; 0: one for each of its GPUs
}

// lora is what LoRA adapters cost in an engine. Without Slots they cost nothing.
type lora struct {
	Slots    int           `yaml:"slots"` // that are loaded at a time
	Load     time.Duration `yaml:"load"`
	Slowdown float64       `yaml:"slowdown"` // of steps with adapters
}

// zone is a place where engines are.
type zone struct {
	Name    string   `yaml:"name"`
	Engines []string `yaml:"engines"` // patterns of names
}

// link is what leads from some engines to others, which are a zone or a pattern of names. What is nil is as flags have it.
type link struct {
	From      string         `yaml:"from"`
	To        string         `yaml:"to"`
	Bandwidth *float64       `yaml:"bandwidth"` // GB/s
	Latency   *time.Duration `yaml:"latency"`
	Handshake *time.Duration `yaml:"handshake"`
	Loss      float64        `yaml:"loss"`   // share of the transfers that fail
	Stalls    float64        `yaml:"stalls"` // share of the transfers that stand still for Stall
	Stall     time.Duration  `yaml:"stall"`
}

// maxPoolFile is the size of the file at most.
const maxPoolFile = 1 << 20

// read reads the file; without a name nothing differs.
func (f *poolFile) read(name string) error {
	if name == "" {
		return nil
	}
	data, err := epp.ReadFile(name, maxPoolFile)
	if err != nil {
		return err
	}
	if err := workload.ReadYAML(data, f); err != nil {
		return err
	}
	for i, v := range f.Variants {
		if v.Name == "" || len(v.Engines) == 0 || v.Engine == "" {
			return fmt.Errorf("variant %d has no name, no engines, or no engine that says what they are like", i+1)
		}
	}
	for i, z := range f.Zones {
		if z.Name == "" || len(z.Engines) == 0 {
			return fmt.Errorf("zone %d has no name or no engines", i+1)
		}
	}
	return nil
}

// variants returns the variants of a pool.
func (s *settings) variants() (all []replay.Variant) {
	for i, v := range s.differ.Variants {
		m := &s.differ.kinds[i]
		all = append(all, replay.Variant{Name: v.Name, Engines: v.Engines, Cost: cmp.Or(v.Cost, float64(m.hardware.GPUs)), Kind: s.kind(m)})
	}
	return all
}

// patterns returns what has to name an engine of a pool.
func (f *poolFile) patterns() (all []string) {
	for _, z := range f.Zones {
		all = append(all, z.Engines...)
	}
	for _, l := range f.Links {
		all = append(all, l.From, l.To)
	}
	for _, v := range f.Variants {
		all = append(all, v.Engines...)
	}
	return all
}

func (f *poolFile) zones() (all []replay.Zone) {
	for _, z := range f.Zones {
		all = append(all, replay.Zone(z))
	}
	return all
}

// pairs returns the links, where what they leave out is as in usual.
func (f *poolFile) pairs(usual replay.Link) (all []replay.Pair) {
	for _, l := range f.Links {
		p := replay.Pair{From: l.From, To: l.To, Link: usual}
		if l.Bandwidth != nil {
			p.Link.Bandwidth = *l.Bandwidth * 1e9
		}
		if l.Latency != nil {
			p.Link.Latency = *l.Latency
		}
		if l.Handshake != nil {
			p.Link.Handshake = *l.Handshake
		}
		p.Link.Loss, p.Link.Stalls, p.Link.Stall = l.Loss, l.Stalls, l.Stall
		all = append(all, p)
	}
	return all
}
