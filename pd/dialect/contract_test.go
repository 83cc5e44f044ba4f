package dialect_test

import (
	"context"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/dialect/dialecttest"
)

// contracts says for each row of the table what the suite needs to know. A row without one fails.
var contracts = map[string]dialecttest.Case{
	"nixlv2": {
		Good: func([]byte) []byte { return []byte(`{"kv_transfer_params":` + handoff + `}`) },
		Bad: []string{`{"kv_transfer_params":null}`, `{"kv_transfer_params":{}}`, `{"kv_transfer_params":` + priming + `}`,
			`{"kv_transfer_params":` + pushed + `}`},
		Own: []string{"kv_transfer_params"},
	},
	"sglang": {
		Good: func([]byte) []byte {
			return []byte(`{"choices":[{"text":"x","finish_reason":"length"}],"output":[],"content":[]}`)
		},
		Bad: []string{`{"error":{"message":"x"}}`, `{"choices":[{"text":"","finish_reason":"abort"}]}`, `[]`, `[1]`},
		Own: []string{"rid", "request_id", "bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "decode_tp_size",
			"routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"},
		NoStream: true,
		Headers:  []string{"x-override-rid", "x-override-bootstrap-room", "X-Data-Parallel-Rank"},
		Minted:   []string{"bootstrap_room"},
	},
	"shared-storage": {
		Good: func([]byte) []byte { return []byte(`{"choices":[{"text":"x","finish_reason":"length"}]}`) },
		Bad:  []string{`{"error":{"message":"x"}}`, `{"choices":[{"text":"","finish_reason":"abort"}]}`},
	},
	"mooncake": {
		Good: func([]byte) []byte { // has the ends of all APIs
			return []byte(`{"status":"incomplete","stop_reason":"max_tokens","choices":[{"text":"x","finish_reason":"length"}],"output":[],"content":[]}`)
		},
		Bad: []string{`{"error":{"message":"x"}}`, `{"choices":[{"text":"","finish_reason":"abort"}]}`, `{"choices":[{"text":"","finish_reason":"stop"}]}`,
			`{"choices":[{"text":"x","finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true}}`},
		Own:         []string{"kv_transfer_params"},
		OneToken:    true,
		EndsByLimit: true,
		Headers:     []string{"x-data-parallel-rank"},
		Minted:      []string{"kv_transfer_params.transfer_id"},
	},
	"offloading": {
		Good: func([]byte) []byte { return []byte(`{"choices":[{"text":"x","finish_reason":"length"}]}`) },
		Bad: []string{`{"error":{"message":"x"}}`, `{"choices":[{"text":"","finish_reason":"abort"}]}`,
			`{"choices":[{"text":"x","finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true}}`},
		Own:      []string{"kv_transfer_params"},
		OneToken: true,
		Headers:  []string{"x-data-parallel-rank"},
	},
	"nixl-push": {
		Good: func([]byte) []byte { return []byte(`{"kv_transfer_params":` + pushed + `}`) },
		Bad: []string{`{"kv_transfer_params":null}`, `{"kv_transfer_params":{}}`, `{"kv_transfer_params":` + priming + `}`, `{"kv_transfer_params":` + handoff + `}`,
			`{"kv_transfer_params":` + strings.Replace(pushed, `"tp_size":1,`, "", 1) + `}`},
		Own:    []string{"kv_transfer_params", "request_id"},
		Minted: []string{"kv_transfer_params.transfer_id"},
	},
}

func TestContract(t *testing.T) {
	for _, row := range dialect.Table {
		t.Run(row.Name, func(t *testing.T) {
			c, ok := contracts[row.Name]
			if !ok {
				t.Fatal("the contract suite does not know this dialect")
			}
			o := dialect.Options{MooncakePort: dialect.MooncakePort, P2PPort: dialect.P2PPort, AskBootstrap: func(context.Context, pd.Target, string) ([]byte, error) {
				return []byte(`{"0":{"engine_id":"e-1"}}`), nil
			}}
			if row.Name == "offloading" {
				o.Ask = offloads
			}
			c.Dialect = row.New(o)
			dialecttest.Run(t, c)
		})
	}
}

// offloads is a prefill pod with an OffloadingConnector.
func offloads(context.Context, pd.Target, string) ([]byte, error) {
	return []byte("# HELP vllm:kv_offload_tiering_read_bytes_total x\n"), nil
}
