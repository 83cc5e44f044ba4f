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
	"moriio": moriioCase,
	"nixl-push": {
		Good: func([]byte) []byte { return []byte(`{"kv_transfer_params":` + pushed + `}`) },
		Bad: []string{`{"kv_transfer_params":null}`, `{"kv_transfer_params":{}}`, `{"kv_transfer_params":` + priming + `}`, `{"kv_transfer_params":` + handoff + `}`,
			`{"kv_transfer_params":` + strings.Replace(pushed, `"tp_size":1,`, "", 1) + `}`},
		Own:    []string{"kv_transfer_params", "request_id"},
		Minted: []string{"kv_transfer_params.transfer_id"},
	},
	"trtllm": {
		Good: trtllmContext,
		Bad: []string{`{"error":"x"}`, `{"choices":[]}`, `{"choices":[{"finish_reason":"length"}]}`, `{"choices":[{"finish_reason":"length","disaggregated_params":null}]}`,
			trtllmAnswerOf("length", "7"), trtllmAnswerOf("cancelled", "7"), `{"choices":[{"disaggregated_params":{"request_type":"context_only"}}]}`},
		Own:      []string{"disaggregated_params", "prompt_token_ids_b64"},
		Sets:     []string{"prompt", "prompt_token_ids"},
		NoStream: true,
		APIs:     []pd.API{pd.APIChat, pd.APICompletions},
		Minted:   []string{"disaggregated_params.disagg_request_id"},
	},
	"trtllm-generation-first": {
		Good:     trtllmContext,
		Bad:      []string{`{"error":"x"}`, `{"choices":[{"finish_reason":"length"}]}`, trtllmAnswerOf("length", "7"), trtllmAnswerOf("cancelled", "7")},
		Own:      []string{"disaggregated_params", "prompt_token_ids_b64"},
		NoStream: true,
		APIs:     []pd.API{pd.APIChat, pd.APICompletions},
		Minted:   []string{"disaggregated_params.disagg_request_id"},
	},
}

// engineSays is what the pods of the suite answer to what dialects ask them.
func engineSays(_ context.Context, _ pd.Target, path string) ([]byte, error) {
	switch path {
	case "/server_info":
		return []byte(`{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"dp_size":1,` +
			`"disaggregated_params":{"ctx_dp_rank":null,"ctx_info_endpoint":["tcp://10.0.0.7:5555"]}}`), nil
	}
	return []byte(`{"0":{"engine_id":"e-1"}}`), nil
}

func TestContract(t *testing.T) {
	for _, row := range dialect.Table {
		t.Run(row.Name, func(t *testing.T) {
			c, ok := contracts[row.Name]
			if !ok {
				t.Fatal("the contract suite does not know this dialect")
			}
			o := dialect.Options{MooncakePort: dialect.MooncakePort, P2PPort: dialect.P2PPort, MoRIIO: moriioPair, Ask: engineSays, AskBootstrap: engineSays}
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
