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

func TestFlagsOfEncoders(t *testing.T) {
	args, err := Options{Encodings: Encoder, Store: "/s", Vision: true}.args()
	if err != nil {
		t.Fatal(err)
	}
	const want = `--ec-transfer-config={"ec_connector":"ECExampleConnector","ec_connector_extra_config":{"shared_storage_path":"/s"},"ec_role":"ec_producer"}`
	if last := args[len(args)-1]; last != want {
		t.Errorf("the last flag is %s", last)
	}
}
