package fault

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/sim/pyjson"
)

// TestDamages: every damage changes what its name says, and nothing else.
func TestDamages(t *testing.T) {
	h := []byte(`{"do_remote_prefill":true,"remote_block_ids":[[4,5,6]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h",` +
		`"remote_port":7,"tp_size":1,"remote_num_tokens":90,"transfer_mode":"pull","remote_prefill_cached_tokens":0}`)
	want := map[string]string{ // a member as the damage leaves it; "" for a missing one
		"missing-engine-id": "remote_engine_id=", "missing-request-id": "remote_request_id=", "missing-blocks": "remote_block_ids=",
		"missing-cached": "remote_prefill_cached_tokens=", "null-blocks": "remote_block_ids=null", "empty-blocks": "remote_block_ids=[]",
		"empty-group": "remote_block_ids=[[]]", "flat-blocks": "remote_block_ids=[4,5,6]", "string-blocks": `remote_block_ids=[["4","5","6"]]`,
		"short-blocks": "remote_block_ids=[[5,6]]", "far-blocks": "remote_block_ids=[[1048580,1048581,1048582]]", "foreign": "remote_block_ids=[[0,5,4]]",
		"wrong-engine": `remote_engine_id="00000000-0000-0000-0000-000000000000"`, "wrong-request": `remote_request_id="cmpl-nope"`,
		"wrong-port": "remote_port=1", "flag-false": "do_remote_prefill=false",
	}
	documents := map[string]string{"only-flag": `{"do_remote_prefill":true}`, "string": `"remote"`, "empty": "{}", "list": "[" + string(h) + "]"}
	for _, name := range Damages() {
		got := pyjson.Encode(Damage(name, h))
		if document, ok := documents[name]; ok {
			if string(got) != document {
				t.Errorf("%s is %s, want %s", name, got, document)
			}
			continue
		}
		member, value, _ := strings.Cut(want[name], "=")
		expected, damaged := map[string]json.RawMessage{}, map[string]json.RawMessage{}
		if err := json.Unmarshal(h, &expected); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(got, &damaged); err != nil {
			t.Fatal(err)
		}
		if value == "" {
			delete(expected, member)
		} else {
			expected[member] = json.RawMessage(value)
		}
		if !maps.EqualFunc(damaged, expected, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
			t.Errorf("%s is %s, want %s", name, got, want[name])
		}
	}
}
