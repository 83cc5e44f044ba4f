package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"strconv"

	"github.com/tandem-serving/tandem/sim/pyjson"
)

// TransferParams is the kv_transfer_params of a request. Nothing in it is checked before the scheduler or the connector
// needs it, because that is when the real engine finds out.
type TransferParams struct {
	RemoteDecode  bool // a prefill leg
	RemotePrefill bool // a decode leg
	members       map[string]any
}

// ParseTransferParams reads an object. Flags count by truthiness, and unknown members are ignored.
func ParseTransferParams(raw json.RawMessage) TransferParams {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var p TransferParams
	if len(raw) == 0 || d.Decode(&p.members) != nil {
		return TransferParams{}
	}
	p.RemoteDecode = pyjson.Truthy(p.members["do_remote_decode"])
	p.RemotePrefill = pyjson.Truthy(p.members["do_remote_prefill"])
	return p
}

// source says which engine has the KV of a decode leg, and for which request.
type source struct{ engineID, requestID, address string }

// source returns false if a member is missing that a load cannot start without.
func (p TransferParams) source() (source, bool) {
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

func joinAddress(host, port string) string {
	if _, err := strconv.Atoi(port); err != nil {
		port = "0"
	}
	return net.JoinHostPort(host, port)
}

// renewable reports whether heartbeats can renew the lease. Without a tp_size, the engine does not know which ranks to send
// them to.
func (p TransferParams) renewable() bool { return p.members["tp_size"] != nil }

// blockIDs returns the remote blocks. The engine dies of an error here: the real one does not check their shape.
func (p TransferParams) blockIDs() ([]int, error) {
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

// cachedTokens returns what the decode engine reports as cached, in tokens: prefill's own number or, for prefill engines that
// do not send it, the whole prompt.
func (p TransferParams) cachedTokens(prompt int) int {
	if n, ok := p.members["remote_prefill_cached_tokens"].(json.Number); ok {
		if i, err := n.Int64(); err == nil {
			return int(i)
		}
	}
	return prompt
}

// Handoff is the kv_transfer_params of a prefill answer, members in the engine's order.
type Handoff struct {
	DoRemotePrefill bool    `json:"do_remote_prefill"`
	DoRemoteDecode  bool    `json:"do_remote_decode"`
	RemoteBlockIDs  [][]int `json:"remote_block_ids"`
	RemoteEngineID  string  `json:"remote_engine_id"`
	RemoteRequestID string  `json:"remote_request_id"`
	RemoteHost      string  `json:"remote_host"`
	RemotePort      int     `json:"remote_port"`
	TPSize          int     `json:"tp_size"`
	DCPSize         int     `json:"dcp_size"`
	PPSize          int     `json:"pp_size"`
	RemoteNumTokens int     `json:"remote_num_tokens"`
	// RemoteBlocksExpiryTime is null, and absent if prefill pushes. The real engine sets it in the answers of decode legs.
	RemoteBlocksExpiryTime    json.RawMessage `json:"remote_blocks_expiry_time,omitempty"`
	TransferMode              string          `json:"transfer_mode"`
	RemotePrefillCachedTokens *int            `json:"remote_prefill_cached_tokens,omitempty"`

	moriio *moriioHandoff // instead of all of these
}

// MarshalJSON implements json.Marshaler.
func (h *Handoff) MarshalJSON() ([]byte, error) {
	if h.moriio != nil {
		return json.Marshal(h.moriio)
	}
	type members Handoff
	return json.Marshal((*members)(h))
}
