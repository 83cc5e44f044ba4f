package dialect_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// pushed is what a prefill engine of NixlPushConnector answers (vLLM 0.32.0).
const pushed = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],"remote_engine_id":"d55c0738-3221",` +
	`"remote_request_id":"cmpl-b2195b-0-8f1a458d","remote_host":"10.0.0.7","remote_port":5601,"tp_size":1,"dcp_size":1,"pp_size":1,` +
	`"remote_num_tokens":100,"transfer_mode":"push","remote_prefill_cached_tokens":0}`

func pushAttempt(t *testing.T) dialect.Attempt {
	t.Helper()
	d, ok := dialect.New("nixl-push", dialect.Options{Lease: 30 * time.Second})
	if !ok {
		t.Fatal("no dialect nixl-push")
	}
	return attempt(t, d, asked(t, pd.APICompletions, `{"prompt":"x"}`))
}

// Prefill writes to the decode leg of the same X-Request-Id. A client that reuses an id must not get the KV cache of its other request.
func TestPushRequestIDs(t *testing.T) {
	for _, client := range []string{"", "client-1"} {
		seen := map[string]bool{}
		for range 2 {
			a := pushAttempt(t)
			h, err := a.Accept([]byte(`{"kv_transfer_params":` + pushed + `}`))
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for role, of := range map[pd.Role]any{pd.RolePrefill: a, pd.RoleDecode: h} {
				header := http.Header{}
				if client != "" {
					header.Set("X-Request-Id", client)
				}
				of.(dialect.HeaderSetter).SetHeader(role, header)
				ids = append(ids, header.Get("X-Request-Id"))
			}
			if ids[0] != ids[1] || !strings.HasPrefix(ids[0], client) || !pd.WellFormedRequestID(ids[0]) || seen[ids[0]] {
				t.Errorf("the legs of %q have the ids %q, those of another attempt %v", client, ids, seen)
			}
			seen[ids[0]] = true
		}
	}
}

// The hand-off reaches decode as prefill wrote it, with the number of the transfer.
func TestPushLegs(t *testing.T) {
	a := pushAttempt(t)
	l, err := a.Prefill()
	prefill := text(t, l, err)
	h, err := a.Accept([]byte(`{"kv_transfer_params":` + pushed + `}`))
	if err != nil {
		t.Fatal(err)
	}
	l, err = h.Decode()
	decode := text(t, l, err)
	_, id, _ := strings.Cut(prefill, `"transfer_id":"`)
	id, _, _ = strings.Cut(id, `"`)
	if want := `{"transfer_id":"` + id + `",` + pushed[1:]; id == "" || !strings.Contains(decode, want) {
		t.Errorf("prefill leg %s\ndecode leg %s", prefill, decode)
	}
	if strings.Contains(prefill+decode, "request_id\":\"resp_") {
		t.Errorf("only responses have their id in the body: %s", prefill)
	}
	if pin := h.(dialect.Leased).Pin(); pin.RequestID != "cmpl-b2195b-0-8f1a458d" || pin.Port != 5601 {
		t.Errorf("pinned as %+v", pin)
	}
	if _, ok := h.(dialect.RequestReleaser); ok {
		t.Error("a decode engine that refuses a leg does not release it")
	}
}

// The responses API does not read X-Request-Id.
func TestPushResponses(t *testing.T) {
	d, _ := dialect.New("nixl-push", dialect.Options{Lease: 30 * time.Second})
	a, err := memberAttempt(t, d, pd.APIResponses, `{"input":"x","request_id":"resp_mine"}`)
	if err != nil {
		t.Fatal(err)
	}
	l, err := a.Prefill()
	prefill := text(t, l, err)
	h, err := a.Accept([]byte(`{"kv_transfer_params":` + pushed + `}`))
	if err != nil {
		t.Fatal(err)
	}
	l, err = h.Decode()
	decode := text(t, l, err)
	_, id, _ := strings.Cut(prefill, `"request_id":"`)
	if id, _, _ = strings.Cut(id, `"`); !strings.HasPrefix(id, "resp_") || id == "resp_mine" || !strings.Contains(decode, `"request_id":"`+id+`"`) {
		t.Errorf("prefill leg %s\ndecode leg %s", prefill, decode)
	}
}

// A decode engine that is pushed to ends at numbers of ranks that are none, at null and where the one is not there that must be.
func TestPushRefusesRanks(t *testing.T) {
	d, _ := dialect.New("nixl-push", dialect.Options{Lease: 30 * time.Second})
	for _, params := range []string{
		strings.Replace(pushed, `"tp_size":1,`, "", 1),
		strings.Replace(pushed, `"tp_size":1`, `"tp_size":null`, 1),
		strings.Replace(pushed, `"tp_size":1`, `"tp_size":0`, 1),
		strings.Replace(pushed, `"pp_size":1`, `"pp_size":null`, 1),
		strings.Replace(pushed, `"pp_size":1`, `"pp_size":["",{}]`, 1),
		strings.Replace(pushed, `"pp_size":1`, `"pp_size":1.5`, 1),
	} {
		a, err := memberAttempt(t, d, pd.APICompletions, `{"prompt":"x"}`)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Accept([]byte(`{"kv_transfer_params":` + params + `}`)); err == nil || !strings.Contains(err.Error(), "numbers of ranks") {
			t.Errorf("%s: %v", params, err)
		}
	}
	a, err := memberAttempt(t, d, pd.APICompletions, `{"prompt":"x"}`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Accept([]byte(`{"kv_transfer_params":` + strings.Replace(pushed, `"pp_size":1,`, "", 1) + `}`)); err != nil {
		t.Errorf("without pp_size: %v", err)
	}
}
