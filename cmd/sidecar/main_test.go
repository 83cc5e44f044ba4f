package main

import (
	"errors"
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"sidecar": func() { boot.Main(run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// TestForeignFlags holds the answer to every flag of llm-d's sidecar that means the same here, or does not.
func TestForeignFlags(t *testing.T) {
	same := []string{"--vllm-port=8201", "--model-server-port=8201", "--connector=nixlv2", "--kv-connector=nixlv2", "--secure-proxy=true",
		"--secure-serving=false", "--enable-prefiller-sampling", "--prefill-max-retries=2", "--prefill-retry-backoff=100ms",
		"--max-idle-conns-per-host=64", "--metrics-port=9000", "--port=8001", "--zap-log-level=1"}
	refused := []string{"--data-parallel-size=2", "--ec-connector=ec-nixl", "--mooncake-bootstrap-port=8998", "--p2p-connector-port=7777",
		"--enable-p2p-pull", "--decode-chunk-size=5", "--enable-ssrf-protection", "--inference-pool=ns/pool", "--pool-group=g", "--tracing",
		"--enable-tls=prefiller", "--prefiller-use-tls", "--decoder-use-tls", "--tls-insecure-skip-verify=prefiller", "--configuration={}",
		"--configuration-file=f"}
	for _, f := range same {
		cfg := defaults()
		if _, err := program.Load(boot.IO{Name: "sidecar"}, &cfg, []string{f}); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
	for _, f := range refused {
		cfg := defaults()
		_, err := program.Load(boot.IO{Name: "sidecar"}, &cfg, []string{f})
		if exit, ok := errors.AsType[boot.Exit](err); !ok || exit.Code != boot.CodeUsage {
			t.Errorf("%s: %v, want a refusal with exit code %d", f, err, boot.CodeUsage)
		}
	}
}
