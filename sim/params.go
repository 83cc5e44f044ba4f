package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// transferParams is the kv_transfer_params of a request. Nothing in it is checked before the scheduler or the connector
// needs it, because that is when the real engine finds out.
type transferParams struct {
	remoteDecode  bool // a prefill leg
	remotePrefill bool // a decode leg
	members       map[string]any
}

// parseTransferParams reads an object. Flags count by truthiness, and unknown members are kept unread.
func parseTransferParams(raw json.RawMessage) transferParams {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var p transferParams
	if len(raw) == 0 || d.Decode(&p.members) != nil {
		return transferParams{}
	}
	p.remoteDecode = truthy(p.members["do_remote_decode"])
	p.remotePrefill = truthy(p.members["do_remote_prefill"])
	return p
}

// truthy is the engine's language's idea of true.
func truthy(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case json.Number:
		f, err := v.Float64()
		return err != nil || f != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}

// source is where the KV of a decode leg lies.
type source struct{ engineID, requestID, address string }

// source is false if a member is missing that a load cannot start without.
func (p transferParams) source() (source, bool) {
	for _, name := range []string{"remote_engine_id", "remote_request_id", "remote_host", "remote_port"} {
		if _, ok := p.members[name]; !ok {
			return source{}, false
		}
	}
	text := func(name string) string { return fmt.Sprint(p.members[name]) }
	return source{
		engineID:  text("remote_engine_id"),
		requestID: text("remote_request_id"),
		address:   joinAddress(text("remote_host"), text("remote_port")),
	}, true
}

// heartbeats is false without a tp_size: the engine then does not know whom to send them to.
func (p transferParams) heartbeats() bool { return p.members["tp_size"] != nil }

// blockIDs returns the remote blocks. An error means that the engine dies of them: it takes their shape for granted.
func (p transferParams) blockIDs() ([]int, error) {
	groups, ok := p.members["remote_block_ids"].([]any)
	if !ok || len(groups) != 1 {
		return nil, fmt.Errorf("remote_block_ids has to be a list of one list, is %v", p.members["remote_block_ids"])
	}
	group, ok := groups[0].([]any)
	if !ok || len(group) == 0 {
		return nil, fmt.Errorf("remote_block_ids has to hold a list of ids, holds %v", groups[0])
	}
	ids := make([]int, len(group))
	for i, v := range group {
		id, err := strconv.Atoi(fmt.Sprint(v)) // numbers in strings work, as in the real engine
		if err != nil {
			return nil, fmt.Errorf("reading remote_block_ids: %w", err)
		}
		ids[i] = id
	}
	return ids, nil
}

// cachedTokens is what the decode engine reports as cached: prefill's own number, or, from engines that do not send it,
// the whole prompt.
func (p transferParams) cachedTokens(prompt int) int {
	if n, ok := p.members["remote_prefill_cached_tokens"].(json.Number); ok {
		if i, err := n.Int64(); err == nil {
			return int(i)
		}
	}
	return prompt
}

// handoff is the kv_transfer_params of a prefill answer, members in the engine's order.
type handoff struct {
	DoRemotePrefill           bool     `json:"do_remote_prefill"`
	DoRemoteDecode            bool     `json:"do_remote_decode"`
	RemoteBlockIDs            [][]int  `json:"remote_block_ids"`
	RemoteEngineID            string   `json:"remote_engine_id"`
	RemoteRequestID           string   `json:"remote_request_id"`
	RemoteHost                string   `json:"remote_host"`
	RemotePort                int      `json:"remote_port"`
	TPSize                    int      `json:"tp_size"`
	DCPSize                   int      `json:"dcp_size"`
	PPSize                    int      `json:"pp_size"`
	RemoteNumTokens           int      `json:"remote_num_tokens"`
	RemoteBlocksExpiryTime    *float64 `json:"remote_blocks_expiry_time"` // set only for decode to prefill, which is not simulated
	TransferMode              string   `json:"transfer_mode"`
	RemotePrefillCachedTokens *int     `json:"remote_prefill_cached_tokens,omitempty"`
}
