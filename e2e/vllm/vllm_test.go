package vllm

import (
	"testing"
	"time"
)

func TestFlagsTellTheRole(t *testing.T) {
	for role, want := range map[Role]bool{Plain: false, Prefill: true, Decode: true} {
		args, err := Options{Role: role, Lease: 5 * time.Second}.args()
		if err != nil {
			t.Fatal(err)
		}
		const transfer = `--kv-transfer-config={"kv_buffer_device":"cpu","kv_connector":"NixlConnector",` +
			`"kv_connector_extra_config":{"kv_lease_duration":5},"kv_load_failure_policy":"fail","kv_role":"`
		last := args[len(args)-1]
		if got := last == transfer+string(role)+`"}`; got != want {
			t.Errorf("role %q: the last flag is %s", role, last)
		}
	}
}
