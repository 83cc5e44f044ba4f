package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// damages are the ways a bad-handoff fault spoils kv_transfer_params, by the Arg that names them.
var damages = map[string]func(*handoff) any{
	"missing-engine-id":  func(h *handoff) any { return without(h, "remote_engine_id") },
	"missing-request-id": func(h *handoff) any { return without(h, "remote_request_id") },
	"missing-blocks":     func(h *handoff) any { return without(h, "remote_block_ids") },
	"missing-cached":     func(h *handoff) any { return without(h, "remote_prefill_cached_tokens") },
	"null-blocks":        func(h *handoff) any { return with(h, "remote_block_ids", nil) },
	"empty-blocks":       func(h *handoff) any { return with(h, "remote_block_ids", []int{}) },
	"empty-group":        func(h *handoff) any { return with(h, "remote_block_ids", [][]int{{}}) },
	"flat-blocks":        func(h *handoff) any { return with(h, "remote_block_ids", h.RemoteBlockIDs[0]) },
	"string-blocks":      func(h *handoff) any { return with(h, "remote_block_ids", [][]string{blockNames(h)}) },
	"short-blocks":       func(h *handoff) any { return with(h, "remote_block_ids", [][]int{h.RemoteBlockIDs[0][1:]}) },
	"far-blocks":         func(h *handoff) any { return with(h, "remote_block_ids", [][]int{shifted(h, 1<<20)}) },
	"foreign":            func(h *handoff) any { return with(h, "remote_block_ids", [][]int{reversed(h)}) },
	"wrong-engine":       func(h *handoff) any { return with(h, "remote_engine_id", "00000000-0000-0000-0000-000000000000") },
	"wrong-request":      func(h *handoff) any { return with(h, "remote_request_id", "cmpl-nope") },
	"wrong-port":         func(h *handoff) any { return with(h, "remote_port", 1) },
	"only-flag":          func(*handoff) any { return map[string]any{"do_remote_prefill": true} },
	"flag-false":         func(h *handoff) any { return with(h, "do_remote_prefill", false) },
	"string":             func(*handoff) any { return "remote" },
	"list":               func(h *handoff) any { return []any{h} },
	"empty":              func(*handoff) any { return map[string]any{} },
}

// Damages lists the values of Arg that a bad-handoff fault knows. Each is one row of the failure matrix of the real
// engine; "foreign" has blocks in another order, which the null block makes differ even for a prompt of one block.
func Damages() []string { return slices.Sorted(maps.Keys(damages)) }

// damaged is what the answer says for a hand-off under a fault, if any.
func (f *Fault) damaged(h *handoff) any {
	if h == nil {
		return nil
	}
	if f.is(faultBadHandoff) {
		return damages[f.Arg](h)
	}
	return h
}

// members is the hand-off as an object that can be spoiled. Order does not matter any more.
func members(h *handoff) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	// A hand-off is plain data and always encodes to an object.
	if err := json.Unmarshal(encodeJSON(h), &m); err != nil {
		panic(err)
	}
	return m
}

func without(h *handoff, name string) any {
	m := members(h)
	delete(m, name)
	return m
}

func with(h *handoff, name string, value any) any {
	m := members(h)
	m[name] = encodeJSON(value)
	return m
}

func blockNames(h *handoff) []string {
	names := make([]string, len(h.RemoteBlockIDs[0]))
	for i, id := range h.RemoteBlockIDs[0] {
		names[i] = strconv.Itoa(id)
	}
	return names
}

func shifted(h *handoff, by int) []int {
	ids := slices.Clone(h.RemoteBlockIDs[0])
	for i := range ids {
		ids[i] += by
	}
	return ids
}

func reversed(h *handoff) []int {
	ids := slices.Clone(h.RemoteBlockIDs[0])
	slices.Reverse(ids)
	ids[0] = 0 // the null block, which never holds KV
	return ids
}

// forever is the Arg of a slow fault that never lets go by itself.
const forever = "stop"

func (f *Fault) delay() (time.Duration, error) {
	if f.Arg == forever {
		return 0, nil
	}
	ms, err := strconv.ParseFloat(f.Arg, 64)
	if err != nil || ms < 0 {
		return 0, fmt.Errorf("arg %q: want milliseconds, or %q", f.Arg, forever)
	}
	return milliseconds(ms), nil
}

func (f *Fault) status() (int, error) {
	code, err := strconv.Atoi(f.Arg)
	if err != nil || code < 400 || code > 599 {
		return 0, fmt.Errorf("arg %q: want an HTTP status from 400 to 599", f.Arg)
	}
	return code, nil
}

// statusError is the body of a status fault.
func statusError(code int) *apiError {
	switch code {
	case http.StatusServiceUnavailable:
		return errBusy
	case http.StatusInternalServerError:
		return errInternal
	}
	return &apiError{Message: http.StatusText(code), Type: http.StatusText(code), Code: code}
}
