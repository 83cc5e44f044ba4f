package doctor

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// TestEngineOfTensorRTLLM: its metrics page is not where those of others are, and vLLM does not read its KV caches.
func TestEngineOfTensorRTLLM(t *testing.T) {
	at := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			fmt.Fprint(w, "[]")
		case "/prometheus/metrics":
			fmt.Fprintln(w, "trtllm_num_requests_running 0")
		default:
			http.NotFound(w, r)
		}
	})
	f := &fleet{how: &lookFlags{Timeout: 10 * time.Second}}
	ask := newDirect()
	defer ask.http.CloseIdleConnections()
	of, vllm := &target{name: "prefill", role: pd.RolePrefill}, &target{name: "decode", role: pd.RoleDecode}
	of.page, of.pageErr = asker{client: ask.http}.engineMetrics(t.Context(), "http://"+at)
	vllm.page = promtext.Page{seriesNamed("vllm:num_requests_running")}
	if of.pageErr != nil || of.engine() != dialect.TRTLLM || !f.withoutSideChannel(of) {
		t.Errorf("the engine is %q, with a side channel: %t, %v", of.engine(), !f.withoutSideChannel(of), of.pageErr)
	}
	if why := vllm.traits().Refuses(of.traits()); why != "engine: prefill trtllm-serve, decode vllm" {
		t.Errorf("vLLM refuses it because of %q", why)
	}
	f.targets = []*target{of}
	if got := checkMetrics(t.Context(), f); got.verdict != ok || !strings.Contains(got.seen, "TensorRT-LLM's") {
		t.Errorf("%s: %s", got.verdict, got.seen)
	}
}

// TestBlockSizeOfTensorRTLLM: engines of TensorRT-LLM must have blocks of one size, and so must the picker's prefix index.
func TestBlockSizeOfTensorRTLLM(t *testing.T) {
	for _, c := range []struct {
		name            string
		prefill, decode string // their pages
		index           int    // tokens in a block of the picker's index; 0: unknown
		want            verdict
		seen, do        string
	}{
		{"equal", trtllmBlock + " 64.0", trtllmBlock + " 64.0", 64, ok, "all 64 tokens", ""},
		{"of another size", trtllmBlock + " 64.0", trtllmBlock + " 32.0", 0, fail, "32 (decode)", ""},
		{"not that of the index", trtllmBlock + " 64.0", trtllmBlock + " 64.0", 16, warn, "all engines 64 tokens, but the prefix index of picker 16", "blockSizeTokens"},
		{"not shown", "trtllm_num_requests_running 0.0", "trtllm_num_requests_running 0.0", 16, unknown, trtllmBlock, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fleet{pickers: []*picker{{name: "picker", block: c.index}}}
			for _, e := range []*target{{name: "prefill", role: pd.RolePrefill}, {name: "decode", role: pd.RoleDecode}} {
				text := map[string]string{"prefill": c.prefill, "decode": c.decode}[e.name]
				var err error
				if e.page, err = promtext.Read(strings.NewReader(text + "\n")); err != nil {
					t.Fatal(err)
				}
				f.targets = append(f.targets, e)
			}
			if got := checkBlockSize(t.Context(), f); got.verdict != c.want || !strings.Contains(got.seen, c.seen) || !strings.Contains(got.do, c.do) {
				t.Errorf("%s: %s → %s", got.verdict, got.seen, got.do)
			}
			if got := checkCache(t.Context(), f); got.verdict != unknown {
				t.Errorf("its KV cache configuration, of which its page has nothing: %s: %s", got.verdict, got.seen)
			}
		})
	}
}

// TestProtocol: the protocol that a pod names, the engine behind it, and what its sidecar has found.
func TestProtocol(t *testing.T) {
	vllm, sglang := promtext.Page{seriesNamed("vllm:num_requests_running")}, promtext.Page{seriesNamed("sglang:page_size")}
	trtllm := []model{{ID: "m", Owner: "tensorrt_llm"}}
	for _, c := range []struct {
		name      string
		connector string
		page      promtext.Page
		models    []model
		sidecar   string // its metrics page; "" = none is known
		want      verdict
		seen, do  string
	}{
		{"NIXL before vLLM", "nixlv2", vllm, nil, "", ok, "fits the engine", ""},
		{"llm-d's name of the protocol before vLLM", "lmcache", vllm, nil, "", ok, "fits the engine", ""},
		{"SGLang's before vLLM", "sglang", vllm, nil, "", fail, "its engine is vLLM", "nixlv2 or "},
		{"TensorRT-LLM's before SGLang", "trtllm", sglang, nil, "", fail, "its engine is SGLang, and its sidecar speaks a protocol of TensorRT-LLM", "--kv-connector=sglang"},
		{"TensorRT-LLM's before TensorRT-LLM", "trtllm-generation-first", nil, trtllm, "", ok, "fits the engine", ""},
		{"NIXL before TensorRT-LLM", "nixlv2", nil, trtllm, "", fail, "its engine is TensorRT-LLM", "trtllm or trtllm-generation-first"},
		{"an unknown engine", "nixlv2", nil, nil, "", none, "", ""},
		{"an unknown protocol", "of-the-future", vllm, nil, "", none, "", ""},
		{"a sidecar that has found none", "nixlv2", vllm, nil, `tandem_protocol_mismatch{role="decode"} 0`, ok, "", ""},
		{"a sidecar that has found some", "nixlv2", vllm, nil, `tandem_protocol_mismatch{role="prefill"} 2` + "\n" + `tandem_protocol_mismatch{role="decode"} 1`, fail,
			"2 prefill, 1 decode", "its log"},
		{"a sidecar of llm-d", "nixlv2", vllm, nil, "go_goroutines 7", ok, "fits the engine", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pod("engine", nil, nil)
			p.Spec.Containers[0].Args = []string{"--kv-connector=" + c.connector}
			e := &target{name: "engine", role: pd.RoleDecode, pod: p}
			e.page, e.models = c.page, c.models
			f := &fleet{how: &lookFlags{Timeout: 10 * time.Second}, direct: newDirect(), targets: []*target{e}}
			defer f.direct.http.CloseIdleConnections()
			if c.sidecar != "" {
				f.parts.Sidecars = []string{page(t, c.sidecar+"\n")}
				f.addSidecars()
				f.meetSidecar(t.Context(), f.sidecars[0])
			}
			got := checkProtocol(t.Context(), f)
			if got.verdict != c.want || !strings.Contains(got.seen, c.seen) || !strings.Contains(got.do, c.do) {
				t.Errorf("%s: %s (%s)", got.verdict, got.seen, got.do)
			}
		})
	}
}
