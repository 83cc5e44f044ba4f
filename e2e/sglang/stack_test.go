package sglang_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/sglang"
	"github.com/tandem-serving/tandem/pd"
)

// startSidecar runs a sidecar in front of the decode engine at an address.
func startSidecar(t *testing.T, decode string, flags ...string) harness.Program {
	t.Helper()
	return harness.StartSidecar(t, decode, append([]string{"--kv-connector=sglang"}, flags...)...)
}

// newStack returns the decode engine with a sidecar, prefill engines, a picker and an Envoy in front.
func newStack(t *testing.T, e *engines, prefills ...*sglang.Engine) *harness.Fleet {
	t.Helper()
	dir := t.TempDir()
	f := &harness.Fleet{Model: realengine.Model, Config: filepath.Join(dir, "config.yaml"), Endpoints: filepath.Join(dir, "endpoints.yaml")}
	for _, p := range prefills {
		f.Prefill = append(f.Prefill, harness.Engine{Addr: p.Address()})
	}
	decode := harness.Engine{Addr: e.decode.Address()}
	f.Decode = []harness.DecodePod{{Engine: decode, Sidecar: startSidecar(t, decode.Addr)}}
	const first = "plugins:\n"
	f.WriteConfig(t, strings.Replace(fmt.Sprintf(harness.PdConfig, harness.Threshold, ""), first, first+"- type: openai-parser\n- type: anthropic-parser\n- type: sglanghttp-parser\n", 1)+
		"requestHandler: {parsers: [{pluginRef: openai-parser}, {pluginRef: anthropic-parser}, {pluginRef: sglanghttp-parser}]}\n")
	f.WriteEndpoints(t)
	endpoints, err := os.ReadFile(f.Endpoints)
	must(t, err)
	const role = "    llm-d.ai/role:"
	harness.Replace(t, f.Endpoints, strings.ReplaceAll(string(endpoints), role, "    llm-d.ai/engine-type: sglang\n"+role))
	f.StartPicker(t)
	f.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"})
	return f
}

// from returns the request as a picker sends it to a sidecar: with the prefill pods that it may try.
func (a ask) from(prefills ...string) ask {
	return a.told(pd.HeaderPrefill, strings.Join(prefills, ","))
}
