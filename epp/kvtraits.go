package epp

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Labels of endpoints about the KV cache of an engine, for what its metrics page does not tell. An endpoint without a label fits every
// other one.
const (
	// LabelEngineVersion is the version of a vLLM engine. Decode engines refuse hand-offs over NIXL from any other version, unless they
	// are started with enforce_handshake_compat false: then the label is to be left out.
	LabelEngineVersion = "tandem-serving.github.io/engine-version"
	// LabelTensorParallel is the number of tensor-parallel ranks of a vLLM engine.
	LabelTensorParallel = "tandem-serving.github.io/tensor-parallel-size"
	// LabelCacheType is the type of the KV cache's elements, as the engine's flag --kv-cache-dtype names it.
	LabelCacheType = "tandem-serving.github.io/kv-cache-dtype"
)

// The names of engines in labels.
const (
	EngineVLLM   = "vllm"
	EngineTRTLLM = "trtllm-serve" // TensorRT-LLM
)

// ConnectorNIXL is the KV connector of vLLM's engines that have metrics of NIXL, alone or among others.
const ConnectorNIXL = "nixl"

// KVTraits are the properties of an engine on which it depends whose KV caches it can read, as far as its metrics page and its labels tell
// them. What they do not tell is "" or 0, and is compared with nothing.
type KVTraits struct {
	Engine         string `json:"engine,omitempty"`    // EngineVLLM, EngineSGLang or EngineTRTLLM; "": another one too
	Connector      string `json:"connector,omitempty"` // ConnectorNIXL; "": another one too
	Version        string `json:"version,omitempty"`
	CacheType      string `json:"kv_cache_dtype,omitempty"`
	BlockTokens    int    `json:"block_tokens,omitempty"` // tokens in a block of vLLM, or a page of SGLang
	TensorParallel int    `json:"tensor_parallel_size,omitempty"`
}

// LabelTraits returns what the labels of an endpoint tell of its engine.
func LabelTraits(labels map[string]string) KVTraits {
	t := KVTraits{Version: labels[LabelEngineVersion]}
	if of := labels[LabelCacheType]; of != CacheTypeAuto {
		t.CacheType = of
	}
	// Other names may be those of the same engine whose pages are read in another way.
	switch engine := cmp.Or(labels[EngineLabel], labels[EngineLabelOlder]); engine {
	case EngineVLLM, EngineSGLang, EngineTRTLLM:
		t.Engine = engine
	}
	if n, err := strconv.Atoi(labels[LabelTensorParallel]); err == nil && n > 0 {
		t.TensorParallel = n
	}
	return t
}

// CacheTypeAuto is the type of the elements of a KV cache that is the model's own. Which one that is the picker does not know.
const CacheTypeAuto = "auto"

// Traits returns what is known of the candidate's engine. What its page tells goes before its labels.
func (c *Candidate) Traits() KVTraits {
	t := c.Endpoint.traits
	t.Engine = cmp.Or(c.Load.Engine, t.Engine)
	if t.Connector = c.Load.Connector; t.Connector == ConnectorNIXL {
		t.Engine = EngineVLLM
	}
	t.CacheType = cmp.Or(c.Load.Cache.Type, t.CacheType)
	t.BlockTokens = c.Load.Cache.BlockTokens
	return t
}

// Reads reports whether the engine of a decode candidate reads KV caches of a prefill candidate's, as far as is known.
func (c *Candidate) Reads(prefill *Candidate) bool {
	own, other := &c.Load.Cache, &prefill.Load.Cache
	if own.BlockTokens == other.BlockTokens && own.Type == other.Type && c.Load.Engine == prefill.Load.Engine &&
		c.Load.Connector == prefill.Load.Connector && c.Endpoint.traits == prefill.Endpoint.traits {
		return true // as most pairs are
	}
	decode, of := c.Traits(), prefill.Traits()
	return decode.mismatch(&of) == noMismatch
}

// mismatch is what keeps an engine from reading the KV caches of another.
type mismatch uint8

const (
	noMismatch mismatch = iota
	mismatchEngine
	mismatchVersion
	mismatchCacheType
	mismatchPage
	mismatchTensors
)

// mismatch returns the first property in which a prefill engine does not fit. There are rules only for what engines refuse whatever else
// they are set to: vLLM's over NIXL (0.32.0) compare a hash of their version, their cache's type and more, and want that one of the numbers
// of tensor-parallel ranks divides the other. A decode engine of SGLang (0.5.23) ends if prefill's pages have another size.
//
// The sizes of vLLM's blocks are not compared. Engines compare those of their attention kernels, which may be any divisor of the size on
// their metrics pages. Whether more ranks of prefill than of decode fit depends on the model's number of KV heads, which is not known here.
func (t *KVTraits) mismatch(prefill *KVTraits) mismatch {
	overNIXL := t.Connector == ConnectorNIXL && prefill.Connector == ConnectorNIXL
	ofSGLang := t.Engine == EngineSGLang && prefill.Engine == EngineSGLang
	switch {
	case differ(t.Engine, prefill.Engine):
		return mismatchEngine
	case ofSGLang && differ(t.BlockTokens, prefill.BlockTokens):
		return mismatchPage
	case !overNIXL:
		return noMismatch
	case differ(t.Version, prefill.Version):
		return mismatchVersion
	case differ(t.CacheType, prefill.CacheType) && !SameCacheType(t.CacheType, prefill.CacheType):
		return mismatchCacheType
	case differ(t.TensorParallel, prefill.TensorParallel) && t.TensorParallel%prefill.TensorParallel != 0 && prefill.TensorParallel%t.TensorParallel != 0:
		return mismatchTensors
	}
	return noMismatch
}

// SameCacheType reports whether two names of a type of KV caches may mean one type: vLLM takes fp8 for one of the types whose names begin with
// it, depending on the device and the model.
func SameCacheType(a, b string) bool {
	const anyFP8 = "fp8"
	return a == b || a == anyFP8 && strings.HasPrefix(b, anyFP8) || b == anyFP8 && strings.HasPrefix(a, anyFP8)
}

// Refuses returns why a decode engine with these properties does not read the KV caches of a prefill engine; "" if it does, or if that is
// not known.
func (t KVTraits) Refuses(prefill KVTraits) string {
	var what string
	var of, by any
	switch t.mismatch(&prefill) {
	case mismatchEngine:
		what, of, by = "engine", prefill.Engine, t.Engine
	case mismatchVersion:
		what, of, by = "version", prefill.Version, t.Version
	case mismatchCacheType:
		what, of, by = "type of the KV cache", prefill.CacheType, t.CacheType
	case mismatchPage:
		what, of, by = "tokens in a page", prefill.BlockTokens, t.BlockTokens
	case mismatchTensors:
		what, of, by = "tensor-parallel ranks", prefill.TensorParallel, t.TensorParallel
	default:
		return ""
	}
	return fmt.Sprintf("%s: prefill %v, decode %v", what, of, by)
}

// differ reports whether two values are known and differ.
func differ[T comparable](a, b T) bool {
	var unknown T
	return a != b && a != unknown && b != unknown
}
