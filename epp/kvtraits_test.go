package epp_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// labelled makes a candidate of an endpoint with labels, given as name=value, whose page tells a load.
func labelled(load epp.Load, labels ...string) *epp.Candidate {
	all := map[string]string{}
	for _, l := range labels {
		name, value, _ := strings.Cut(l, "=")
		all[name] = value
	}
	e := epp.NewEndpoint("default", "e", netip.MustParseAddrPort("10.0.0.1:8000"), "", all)
	return &epp.Candidate{Endpoint: e, Load: &load}
}

// TestKVTraits: only what engines are known to refuse keeps them from being a pair.
func TestKVTraits(t *testing.T) {
	nixl := func(blockTokens int, cacheType string) epp.Load {
		return epp.Load{Connector: epp.ConnectorNIXL, Cache: epp.CacheInfo{BlockTokens: blockTokens, Type: cacheType}}
	}
	sglang := func(pageTokens int) epp.Load {
		return epp.Load{Engine: epp.EngineSGLang, Cache: epp.CacheInfo{BlockTokens: pageTokens}}
	}
	other := func(blockTokens int) epp.Load { return epp.Load{Cache: epp.CacheInfo{BlockTokens: blockTokens}} }
	const (
		version, cacheType, tensor = epp.LabelEngineVersion + "=", epp.LabelCacheType + "=", epp.LabelTensorParallel + "="
		vllm, isSGLang             = epp.EngineLabel + "=vllm", epp.EngineLabel + "=sglang"
	)
	for _, c := range []struct {
		name            string
		prefill, decode *epp.Candidate
		why             string // "" = they are a pair
	}{
		{"nothing known", labelled(epp.Load{}), labelled(epp.Load{}), ""},
		{"equal", labelled(nixl(16, "fp8"), version+"0.32.0", tensor+"2"), labelled(nixl(16, "fp8"), version+"0.32.0", tensor+"2"), ""},
		{"known of prefill only", labelled(nixl(32, "fp8"), version+"0.32.0", tensor+"8"), labelled(nixl(0, "")), ""},
		{"prefill's page was not read", labelled(epp.Load{}, version+"0.31.0", tensor+"8"), labelled(nixl(16, ""), version+"0.32.0", tensor+"1"), ""},

		{"engines", labelled(nixl(16, "")), labelled(sglang(16)), "engine: prefill vllm, decode sglang"},
		{"engines by labels", labelled(epp.Load{}, vllm), labelled(epp.Load{}, isSGLang), "engine: prefill vllm, decode sglang"},
		{"engines by the older label", labelled(epp.Load{}, vllm), labelled(epp.Load{}, epp.EngineLabelOlder+"=sglang"), "engine"},
		{"TensorRT-LLM by a label, vLLM by its page", labelled(epp.Load{}, epp.EngineLabel+"=trtllm-serve"), labelled(nixl(16, "")), "engine: prefill trtllm-serve, decode vllm"},
		{"two of TensorRT-LLM", labelled(epp.Load{}, epp.EngineLabel+"=trtllm-serve"), labelled(epp.Load{}, epp.EngineLabel+"=trtllm-serve"), ""},
		{"an engine by a name of the user's", labelled(epp.Load{}, epp.EngineLabel+"=vllm-custom"), labelled(epp.Load{}, vllm), ""},
		{"a page against a wrong label", labelled(sglang(16), vllm), labelled(sglang(16), isSGLang), ""},

		{"versions", labelled(nixl(16, ""), version+"0.31.0"), labelled(nixl(16, ""), version+"0.32.0"), "version: prefill 0.31.0, decode 0.32.0"},
		{"versions with another connector", labelled(other(16), vllm, version+"0.31.0"), labelled(other(16), vllm, version+"0.32.0"), ""},
		{"versions of SGLang", labelled(sglang(16), version+"0.5.22"), labelled(sglang(16), version+"0.5.23"), ""},

		{"types of the cache", labelled(nixl(16, "fp8")), labelled(nixl(16, "bfloat16")), "type of the KV cache: prefill fp8, decode bfloat16"},
		{"types of the cache by labels", labelled(nixl(16, ""), cacheType+"fp8"), labelled(nixl(16, ""), cacheType+"bfloat16"), "type of the KV cache"},
		{"a type and the model's own", labelled(nixl(16, ""), cacheType+"auto"), labelled(nixl(16, "bfloat16")), ""},
		{"types with another connector", labelled(other(16), cacheType+"fp8"), labelled(other(16), cacheType+"bfloat16"), ""},

		{"fp8 and a type that it may stand for", labelled(nixl(16, "fp8")), labelled(nixl(16, "fp8_e4m3")), ""},
		{"a type that fp8 may stand for, and fp8", labelled(nixl(16, "fp8_ds_mla")), labelled(nixl(16, "fp8")), ""},
		{"two types of eight bits", labelled(nixl(16, "fp8_e5m2")), labelled(nixl(16, "fp8_e4m3")), "type of the KV cache"},

		{"larger blocks of prefill", labelled(nixl(128, "")), labelled(nixl(64, "")), ""},
		{"smaller blocks of prefill", labelled(nixl(16, "")), labelled(nixl(32, "")), ""},
		{"larger blocks with another connector", labelled(other(32)), labelled(other(16)), ""},
		{"larger pages of SGLang's prefill", labelled(sglang(32)), labelled(sglang(16)), "tokens in a page: prefill 32, decode 16"},
		{"smaller pages of SGLang's prefill", labelled(sglang(16)), labelled(sglang(32)), "tokens in a page: prefill 16, decode 32"},

		{"more tensor-parallel ranks of prefill", labelled(nixl(16, ""), tensor+"4"), labelled(nixl(16, ""), tensor+"2"), ""},
		{"ranks that do not divide", labelled(nixl(16, ""), tensor+"2"), labelled(nixl(16, ""), tensor+"3"), "tensor-parallel ranks: prefill 2, decode 3"},
		{"more ranks of prefill that do not divide", labelled(nixl(16, ""), tensor+"6"), labelled(nixl(16, ""), tensor+"4"), "tensor-parallel ranks: prefill 6, decode 4"},
		{"ranks that do not divide, with another connector", labelled(other(16), tensor+"2"), labelled(other(16), tensor+"3"), ""},
		{"more tensor-parallel ranks of decode", labelled(nixl(16, ""), tensor+"2"), labelled(nixl(16, ""), tensor+"8"), ""},
		{"tensor-parallel ranks of SGLang", labelled(sglang(16), tensor+"4"), labelled(sglang(16), tensor+"2"), ""},
		{"ranks that are no number", labelled(nixl(16, ""), tensor+"many"), labelled(nixl(16, ""), tensor+"2"), ""},
		{"a negative number of ranks", labelled(nixl(16, ""), tensor+"4"), labelled(nixl(16, ""), tensor+"-1"), ""},
	} {
		why := c.decode.Traits().Refuses(c.prefill.Traits())
		if reads := c.decode.Reads(c.prefill); reads != (c.why == "") || !strings.HasPrefix(why, c.why) || reads != (why == "") {
			t.Errorf("%s: reads %v, refused because of %q, want %q", c.name, reads, why, c.why)
		}
	}
}

// BenchmarkReads is what each candidate of the prefill stage costs.
func BenchmarkReads(b *testing.B) {
	load := epp.Load{Connector: epp.ConnectorNIXL, Cache: epp.CacheInfo{BlockTokens: 16}}
	for name, prefill := range map[string]*epp.Candidate{
		"alike": labelled(load, epp.LabelEngineVersion+"=0.32.0"),
		"other": labelled(load, epp.LabelEngineVersion+"=0.31.0"),
	} {
		b.Run(name, func(b *testing.B) {
			decode := labelled(load, epp.LabelEngineVersion+"=0.32.0")
			b.ReportAllocs()
			for b.Loop() {
				decode.Reads(prefill)
			}
		})
	}
}
