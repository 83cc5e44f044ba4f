package fault

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/tandem-serving/tandem/sim/pyjson"
)

// handoff has the members of kv_transfer_params that can be damaged.
type handoff struct {
	raw     json.RawMessage
	members map[string]json.RawMessage
	blocks  []int // remote_block_ids, of the only group
}

// damages has what a bad-handoff fault makes of kv_transfer_params, by its Arg.
var damages = map[string]func(handoff) any{
	"missing-engine-id":  func(h handoff) any { return h.without("remote_engine_id") },
	"missing-request-id": func(h handoff) any { return h.without("remote_request_id") },
	"missing-blocks":     func(h handoff) any { return h.without("remote_block_ids") },
	"missing-cached":     func(h handoff) any { return h.without("remote_prefill_cached_tokens") },
	"null-blocks":        func(h handoff) any { return h.with("remote_block_ids", nil) },
	"empty-blocks":       func(h handoff) any { return h.with("remote_block_ids", []int{}) },
	"empty-group":        func(h handoff) any { return h.with("remote_block_ids", [][]int{{}}) },
	"flat-blocks":        func(h handoff) any { return h.with("remote_block_ids", h.blocks) },
	"string-blocks":      func(h handoff) any { return h.with("remote_block_ids", [][]string{h.blockNames()}) },
	"short-blocks":       func(h handoff) any { return h.with("remote_block_ids", [][]int{h.blocks[1:]}) },
	"far-blocks":         func(h handoff) any { return h.with("remote_block_ids", [][]int{h.shiftedBlocks(1 << 20)}) },
	"foreign":            func(h handoff) any { return h.with("remote_block_ids", [][]int{h.reversedBlocks()}) },
	"wrong-engine":       func(h handoff) any { return h.with("remote_engine_id", "00000000-0000-0000-0000-000000000000") },
	"wrong-request":      func(h handoff) any { return h.with("remote_request_id", "cmpl-nope") },
	"wrong-port":         func(h handoff) any { return h.with("remote_port", 1) },
	"only-flag":          func(handoff) any { return map[string]any{"do_remote_prefill": true} },
	"flag-false":         func(h handoff) any { return h.with("do_remote_prefill", false) },
	"string":             func(handoff) any { return "remote" },
	"list":               func(h handoff) any { return []any{h.raw} },
	"empty":              func(handoff) any { return map[string]any{} },
}

// Damages lists the values of Arg that a bad-handoff fault knows. Each is a row of the real engine's failure matrix. "foreign"
// has the blocks in another order, and begins with the null block, so that it differs even for a prompt of one block.
func Damages() []string { return slices.Sorted(maps.Keys(damages)) }

// Damage returns the kv_transfer_params that an answer has instead of an undamaged hand-off, which is an object in JSON.
func Damage(name string, params []byte) any {
	h := handoff{raw: params}
	var blocks struct {
		Groups [][]int `json:"remote_block_ids"`
	}
	// A hand-off is plain data of one group of blocks.
	if err := json.Unmarshal(params, &h.members); err != nil {
		panic(err)
	}
	if err := json.Unmarshal(params, &blocks); err != nil {
		panic(err)
	}
	h.blocks = blocks.Groups[0]
	return damages[name](h)
}

func (h handoff) without(name string) any {
	delete(h.members, name)
	return h.members
}

func (h handoff) with(name string, value any) any {
	h.members[name] = pyjson.Encode(value)
	return h.members
}

func (h handoff) blockNames() []string {
	names := make([]string, len(h.blocks))
	for i, id := range h.blocks {
		names[i] = strconv.Itoa(id)
	}
	return names
}

func (h handoff) shiftedBlocks(by int) []int {
	ids := slices.Clone(h.blocks)
	for i := range ids {
		ids[i] += by
	}
	return ids
}

func (h handoff) reversedBlocks() []int {
	ids := slices.Clone(h.blocks)
	slices.Reverse(ids)
	ids[0] = 0 // the null block, which never holds KV
	return ids
}
