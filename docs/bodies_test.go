package docs_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// hostileBody is a request that ends an engine, or makes it keep blocks, if it reaches one.
type hostileBody struct {
	protocols []string
	api       pd.API
	clean     string // members of an ordinary request; "": those of the API's example
	hostile   string // members that are added to them, or that replace them
	alone     string // what the engine does that gets it
}

// vllmProtocols are those whose engines are vLLM's.
func vllmProtocols() (names []string) {
	for _, row := range dialect.Table {
		if row.Engine == dialect.VLLM {
			names = append(names, row.Name)
		}
	}
	return names
}

// hostileBodies lists what was seen on real engines, and of MoRI-IO and ec_transfer_params what vLLM's source says.
func hostileBodies() []hostileBody {
	params := func(text string) string { return `"kv_transfer_params":` + text }
	const chat, completion = `"messages":[{"role":"user","content":"x"}]`, `"prompt":"x"`
	return []hostileBody{
		{[]string{"nixlv2"}, pd.APICompletions, completion, params(`{"do_remote_prefill":true}`), "decode ends"},
		{[]string{"nixlv2"}, pd.APIChat, chat, params(`{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_request_id":"r","remote_host":"h","remote_port":1}`), "decode waits for ever, and ends when the client gives up"},
		{[]string{"nixlv2"}, pd.APICompletions, completion, params(`null`) + "," + params(`{"do_remote_prefill":true}`), "decode ends: the last of two members counts"},
		{[]string{"nixl-push"}, pd.APICompletions, completion, params(`{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1}`), "decode ends: `tp_size` is missing"},
		{[]string{"mooncake"}, pd.APICompletions, completion, params(`{"do_remote_decode":true}`), "decode ends"},
		{[]string{"mooncake"}, pd.APICompletions, completion, params(`{"do_remote_prefill":true}`), "prefill ends; decode waits for ever, and keeps the blocks when the client has left"},
		{[]string{"offloading"}, pd.APICompletions, completion, params(`{"remote_prefiller":"x"}`), "decode ends"},
		{[]string{"offloading"}, pd.APICompletions, completion, params(`{"remote_decoder":"x"}`), "prefill ends"},
		{[]string{"nixlv2", "offloading"}, pd.APICompletions, completion, params(`{"remote_kv_source":{"kv_request_id":"r","remote_host":"127.0.0.1","remote_port":5999}}`), "an engine with OffloadingConnector loses its sessions with others: each later request waits for 40 seconds"},
		{[]string{"moriio"}, pd.APICompletions, completion, params(`{"do_remote_decode":true}`), "either engine ends, if prefill writes"},
		{[]string{"moriio"}, pd.APICompletions, completion, params(`{"do_remote_prefill":true}`), "either engine ends, if prefill writes; decode answers from memory that no engine has written, if it reads"},
		{[]string{"moriio"}, pd.APICompletions, completion, params(`{"do_remote_prefill":true,"transfer_id":"t","remote_host":"10.0.0.7","remote_notify_port":61005}`), "at a prefill engine: the engine at that port takes no notices any more, and hands nothing over"},
		{vllmProtocols(), pd.APIChat, chat, `"messages":[{"role":"user","content":[{"type":"image_embeds","image_embeds":{"image_grid_thw":[1,4,4]},"uuid":"u"}]}]`, "the engine ends if it does not find the encoding, or another size"},
		{vllmProtocols(), pd.APIChat, chat, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"},"uuid":"u"}]}]`, "the image that another client sent under this uuid is answered about"},
		{vllmProtocols(), pd.APIChat, chat, `"ec_transfer_params":{"h":{"peer_host":"h","peer_port":1}}`, "the engine asks this peer for the encoding"},
		{[]string{"sglang"}, pd.APICompletions, completion, `"bootstrap_room":-1`, "prefill ends"},
		{[]string{"sglang"}, pd.APICompletions, completion, `"bootstrap_room":7`, "decode ends: `bootstrap_host` is missing"},
		{[]string{"sglang"}, pd.APIChat, chat, `"bootstrap_host":"203.0.113.9","bootstrap_port":8998,"bootstrap_room":7`, "decode ends, if that server says what it likes"},
		{[]string{"sglang"}, pd.APICompletions, completion, `"prompt":[-1]`, "the engine ends"},
		{[]string{"sglang"}, pd.APICompletions, completion, `"prompt":[[1,2],[]]`, "both engines end"},
	}
}

// TestBodies writes the table of docs/protocols.md: what becomes of each body, from the dialects themselves. It fails if one reaches an
// engine, and without -update if the page is older. That a leg of a split request has none of these members is a part of the contract of
// dialects (pd/dialect/dialecttest).
func TestBodies(t *testing.T) {
	var b strings.Builder
	b.WriteString("\n| Protocols | Call | Members | At an engine without the sidecar | With it |\n|---|---|---|---|---|\n")
	for _, h := range hostileBodies() {
		gets := map[string]bool{}
		for _, name := range h.protocols {
			row, ok := dialect.Find(name)
			if !ok {
				t.Fatalf("no protocol %s", name)
			}
			gets[fateOf(t, row.New(dialect.Options{}), h)] = true
		}
		if len(gets) != 1 {
			t.Errorf("%s: %v of %v: give them rows of their own", h.hostile, gets, h.protocols)
		}
		for fate := range gets {
			fmt.Fprintf(&b, "| %s | %s | `%s` | %s | %s |\n", strings.Join(h.protocols, ", "), h.api, strings.ReplaceAll(h.hostile, "|", "\\|"), h.alone, fate)
		}
	}
	replaceBetween(t, "docs/protocols.md", "bodies", b.String()+"\n")
}

// fateOf says what becomes of a body whose request stays local.
func fateOf(t *testing.T, d dialect.Dialect, h hostileBody) string {
	t.Helper()
	text := `{"model":"m",` + h.clean + "," + h.hostile + "}"
	if name, _, _ := strings.Cut(h.hostile, ":"); strings.HasPrefix(h.clean, name+":") {
		text = `{"model":"m",` + h.hostile + "}"
	}
	table := dialect.Members(d)
	var scan body.Scanner
	if err := scan.Scan(table.Members(), body.Limits{}, []byte(text)); err != nil {
		return "400: the members are there twice"
	}
	whole := &body.Body{}
	whole.Append([]byte(text))
	r := table.Request(h.api, whole, &scan)
	if c, ok := d.(dialect.Checker); ok && c.Checks(h.api) {
		if err := c.Check(r); err != nil {
			return "400: " + err.Error()
		}
	}
	l, err := r.Local()
	if err != nil {
		t.Fatal(err)
	}
	var sent strings.Builder
	for _, part := range l.Segments {
		sent.Write(part)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(sent.String()), &got); err != nil {
		t.Fatalf("%s: %v", sent.String(), err)
	}
	for _, member := range []string{"kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room"} {
		if got[member] != nil {
			t.Errorf("%T passes %s on: %s", d, member, sent.String())
		}
	}
	if s := sent.String(); strings.Contains(s, `"uuid"`) || strings.Contains(s, `"image_embeds":{`) {
		t.Errorf("%T passes a reference on: %s", d, s)
	}
	var before map[string]any
	if err := json.Unmarshal([]byte(text), &before); err != nil {
		t.Fatal(err)
	}
	if reflect.DeepEqual(got, before) {
		t.Errorf("%T passes the body on as it is: %s", d, text)
	}
	return "removed"
}
