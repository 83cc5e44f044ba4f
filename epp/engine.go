package epp

import "github.com/tandem-serving/tandem/pd"

// EngineLabel is the label that names an endpoint's engine, and EngineLabelOlder its older name. The names are llm-d's.
const (
	EngineLabel      = "llm-d.ai/engine-type"
	EngineLabelOlder = "inference.networking.k8s.io/engine-type"
)

// EngineSGLang is the name of SGLang, the engine whose processes serve only a part of a request in P/D.
const EngineSGLang = "sglang"

// EngineMode says which part of a request an engine can compute, whatever its role. SGLang's processes run in one of three modes;
// the engine names it on its pages.
type EngineMode uint8

// The modes.
const (
	EngineAny     EngineMode = iota // the engine computes whatever its role says: every other engine, or its mode is not known
	EnginePlain                     // computes whole requests, and takes part in no hand-off
	EnginePrefill                   // computes prompts for others, and generates nothing
	EngineDecode                    // generates from KV caches that it receives, and computes no prompt
)

// engineModes has the values of SGLang's label engine_type and of its member disaggregation.mode.
var engineModes = [...]struct{ label, member string }{
	EngineAny: {}, EnginePlain: {"unified", "null"}, EnginePrefill: {"prefill", "prefill"}, EngineDecode: {"decode", "decode"},
}

// ParseEngineMode reads the mode as SGLang's pages name it. An unknown name is EngineAny.
func ParseEngineMode(name string) EngineMode {
	for mode := EnginePlain; int(mode) < len(engineModes); mode++ {
		if name == engineModes[mode].label || name == engineModes[mode].member {
			return mode
		}
	}
	return EngineAny
}

// String returns the name of the mode on metrics pages, "" for EngineAny.
func (m EngineMode) String() string { return engineModes[m].label }

// MarshalText implements encoding.TextMarshaler.
func (m EngineMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *EngineMode) UnmarshalText(text []byte) error {
	*m = ParseEngineMode(string(text))
	return nil
}

// Whole reports whether the engine computes whole requests, prompt and answer.
func (m EngineMode) Whole() bool { return m == EngineAny || m == EnginePlain }

// Receives reports whether the engine generates from a KV cache that it receives.
func (m EngineMode) Receives() bool { return m == EngineAny || m == EngineDecode }

// Offers reports whether the engine computes prompts for other engines.
func (m EngineMode) Offers() bool { return m == EngineAny || m == EnginePrefill }

// presumedMode returns the mode of an endpoint whose pages were not read yet, by its labels: an SGLang engine has the mode of its
// role, and one with two roles can only be a plain one. Otherwise the first requests to a new pool might go to an engine that
// cannot serve them.
func presumedMode(labels map[string]string) EngineMode {
	engine := labels[EngineLabel]
	if engine == "" {
		engine = labels[EngineLabelOlder]
	}
	role, named := labels[pd.RoleLabel]
	if engine != EngineSGLang || !named {
		return EngineAny
	}
	switch parsed, _ := pd.ParseRole(role); {
	case parsed.Has(pd.RolePrefill | pd.RoleDecode):
		return EnginePlain
	case parsed.Has(pd.RolePrefill):
		return EnginePrefill
	case parsed.Has(pd.RoleDecode):
		return EngineDecode
	}
	return EngineAny
}

// Mode returns what the engine can compute: as its pages say, or as its labels let expect while none was read.
func (c *Candidate) Mode() EngineMode {
	if c.Load.Mode == EngineAny && c.Load.At.IsZero() {
		return c.Endpoint.presumed
	}
	return c.Load.Mode
}

// KeepsPrefixes reports whether the engine keeps the beginnings of prompts in its KV cache: SGLang's decode engines do so only on
// request.
func (c *Candidate) KeepsPrefixes() bool {
	return !c.Load.Cache.NoPrefixes && !(c.Load.At.IsZero() && c.Endpoint.presumed == EngineDecode)
}

// Ranks are the loads of an engine's data-parallel ranks, in their order. They do not change.
type Ranks []RankLoad

// RankLoad is the load of one data-parallel rank of an engine.
type RankLoad struct {
	Rank    int     `json:"rank"`
	Waiting float64 `json:"waiting"` // requests
	Running float64 `json:"running"` // requests
	KVUsage float64 `json:"kv_usage"`
}
