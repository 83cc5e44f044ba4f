package dialect

import (
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/tandem-serving/tandem/pd/body"
)

// nixlParams is the object in which a vLLM prefill engine describes the KV cache of one request, checked as far as possible
// without the engine. The raw bytes go to the decode engine unchanged: versions of engines add members, which a rebuilt
// object would lose (without remote_prefill_cached_tokens, billing is wrong).
//
// The sidecar checks it because decode engines do not: vLLM 0.32 exits on most incomplete objects, and answers wrongly, with
// status 200, on those of other requests.
type nixlParams struct {
	raw    []byte // as the engine wrote it; nil = none
	pin    Pin    // Tensor and Pipeline are 0 if either is not an integer from 1 to 1024
	blocks int    // block ids over all KV cache groups
	groups int    // KV cache groups
	tokens int    // remote_num_tokens; -1 = absent (older engines)
	cached int    // remote_prefill_cached_tokens; -1 = absent (older engines: decode's usage is then corrected)
	pushed bool   // transfer_mode is "push"
	sized  bool   // tp_size is there, it and pp_size are numbers of ranks, and neither is null
}

// maxHandoff caps the object: 128 k blocks of 7 digits, far above what a prompt of a million tokens needs.
const maxHandoff = 1 << 20

// maxRanks caps tp_size and pp_size, far above those of real engines.
const maxRanks = 1024

// The members that parseHandoff reads, in the order of handoffTable.
const (
	hoPrefill = iota
	hoBlocks
	hoEngine
	hoRequest
	hoHost
	hoPort
	hoTokens
	hoCached
	hoTensor
	hoPipeline
	hoMode
	hoDecode
	hoForeign // and the next ones
)

var handoffTable = body.NewTable(
	body.Want{Path: "do_remote_prefill", Once: true},
	body.Want{Path: "remote_block_ids", Once: true},
	body.Want{Path: "remote_engine_id", Once: true},
	body.Want{Path: "remote_request_id", Once: true},
	body.Want{Path: "remote_host", Once: true},
	body.Want{Path: "remote_port", Once: true},
	body.Want{Path: "remote_num_tokens", Once: true},
	body.Want{Path: "remote_prefill_cached_tokens", Once: true},
	// Decode engines check these themselves, so they are never a reason to reject the object.
	body.Want{Path: "tp_size"},
	body.Want{Path: "pp_size"},
	body.Want{Path: "transfer_mode", Once: true},
	body.Want{Path: "do_remote_decode", Once: true},
	// Names of peers by OffloadingConnector, which an engine can have in addition to NIXL. A string in place of an object ends it, and a peer
	// that is dead breaks the engine's other sessions. NIXL writes none of them.
	body.Want{Path: "remote_decoder"},
	body.Want{Path: "remote_prefiller"},
	body.Want{Path: "remote_kv_source"},
)

// handoffScanners reuses scanners, whose first allocations are most of the cost of a hand-off.
var handoffScanners = sync.Pool{New: func() any { return new(body.Scanner) }}

// parseHandoff checks raw, the value of kv_transfer_params in a prefill engine's answer, and keeps it. It requires what
// vLLM's decode side does not survive without: do_remote_prefill true, the five remote_* members present and of their type,
// do_remote_decode not, and remote_block_ids a list of lists of non-negative integers with at least one id; some but not all lists may be empty.
func parseHandoff(raw []byte) (nixlParams, error) {
	if len(raw) > maxHandoff {
		return nixlParams{}, fmt.Errorf("hand-off object is longer than %d bytes", maxHandoff)
	}
	s := handoffScanners.Get().(*body.Scanner)
	defer handoffScanners.Put(s)
	if err := s.Scan(handoffTable, body.Limits{Depth: 16}, raw); err != nil {
		return nixlParams{}, fmt.Errorf("hand-off object: %w", err)
	}
	if s.Root().Kind != body.Object {
		return nixlParams{}, errors.New("hand-off is not an object")
	}
	return readHandoff(raw, s)
}

func readHandoff(raw []byte, s *body.Scanner) (nixlParams, error) {
	f := fields{raw, s, handoffTable}
	object := s.Root().Value // without white space around it: it is inserted into a body
	h := nixlParams{raw: raw[object.Start:object.End], tokens: -1, cached: -1}
	if m, ok := s.Find(hoPrefill); !ok || m.Kind != body.True {
		return nixlParams{}, errors.New("hand-off lacks do_remote_prefill true")
	}
	var err error
	if h.pin.EngineID, err = f.text(hoEngine); err != nil {
		return nixlParams{}, err
	}
	if h.pin.RequestID, err = f.text(hoRequest); err != nil {
		return nixlParams{}, err
	}
	if h.pin.Host, err = f.text(hoHost); err != nil {
		return nixlParams{}, err
	}
	if h.pin.Port, err = f.integer(hoPort); err != nil || h.pin.Port < 1 || h.pin.Port > 65535 {
		return nixlParams{}, errors.New("hand-off lacks a remote_port from 1 to 65535")
	}
	if h.tokens, err = f.optional(hoTokens); err != nil {
		return nixlParams{}, err
	}
	if h.cached, err = f.optional(hoCached); err != nil {
		return nixlParams{}, err
	}
	h.pin.Tensor, h.pin.Pipeline = f.ranks(hoTensor), f.ranks(hoPipeline)
	if h.pin.Tensor == 0 || h.pin.Pipeline == 0 {
		h.pin.Tensor, h.pin.Pipeline = 0, 0
	}
	tensor, ok := s.Find(hoTensor)
	pipeline, also := s.Find(hoPipeline)
	h.sized = h.pin.Tensor > 0 && ok && tensor.Kind == body.Number && (!also || pipeline.Kind == body.Number)
	// Of anything that Python takes for true, a decode engine would keep the answer's blocks for yet another engine, and one that is pushed to ends.
	if m, ok := s.Find(hoDecode); ok && m.Kind != body.False && m.Kind != body.Null {
		return nixlParams{}, errors.New("hand-off asks for a further one: do_remote_decode is not false")
	}
	for want := hoForeign; want < handoffTable.Wants(); want++ {
		if _, ok := s.Find(want); ok {
			return nixlParams{}, fmt.Errorf("hand-off has %s, which is not NIXL's", handoffTable.Path(want))
		}
	}
	m, ok := s.Find(hoMode)
	h.pushed = ok && string(raw[m.Value.Start:m.Value.End]) == `"push"`
	m, ok = s.Find(hoBlocks)
	if !ok || m.Kind != body.Array {
		return nixlParams{}, errors.New("hand-off lacks a list remote_block_ids")
	}
	if h.blocks, h.groups, err = countBlocks(raw[m.Value.Start:m.Value.End]); err != nil {
		return nixlParams{}, err
	}
	return h, nil
}

// checkBlocks compares the number of blocks with what the prompt needs, if that is known: one KV cache group, a known block
// size of the prefill engine (tokens), and a hand-off of the whole prompt. promptTokens or blockSize 0 = unknown, no check.
// With too few blocks vLLM's decode engine exits; with too many it answers wrongly.
func (h *nixlParams) checkBlocks(promptTokens, blockSize int) error {
	if promptTokens <= 0 || blockSize <= 0 || h.tokens != promptTokens || h.groups != 1 {
		return nil
	}
	if want := (promptTokens + blockSize - 1) / blockSize; want != h.blocks {
		return fmt.Errorf("hand-off has %d blocks, %d tokens need %d", h.blocks, promptTokens, want)
	}
	return nil
}

// fields are the members of a hand-off that was scanned.
type fields struct {
	raw   []byte
	scan  *body.Scanner
	table *body.Table
}

// text returns a member that must be a string of at least one byte.
func (f fields) text(want int) (string, error) {
	m, ok := f.scan.Find(want)
	if ok && m.Kind == body.String && m.Value.End-m.Value.Start > 2 {
		if text, err := body.Text(f.raw[m.Value.Start:m.Value.End]); err == nil {
			return text, nil
		}
	}
	return "", fmt.Errorf("hand-off lacks a string %s", f.table.Path(want))
}

var errNotInt = errors.New("not an integer")

// integer returns a member that must be an integer.
func (f fields) integer(want int) (int, error) {
	m, ok := f.scan.Find(want)
	if !ok || m.Kind != body.Number {
		return 0, errNotInt
	}
	return strconv.Atoi(string(f.raw[m.Value.Start:m.Value.End]))
}

// optional returns a member that older engines do not send; -1 if it is absent or null.
func (f fields) optional(want int) (int, error) {
	if m, ok := f.scan.Find(want); !ok || m.Kind == body.Null {
		return -1, nil
	}
	n, err := f.integer(want)
	if err != nil || n < 0 {
		return -1, fmt.Errorf("hand-off member %s is not a number of tokens", f.table.Path(want))
	}
	return n, nil
}

// ranks returns a number of ranks: 1 if it is absent or null, 0 if it is invalid.
func (f fields) ranks(want int) int {
	if m, ok := f.scan.Find(want); !ok || m.Kind == body.Null {
		return 1
	}
	n, err := f.integer(want)
	if err != nil || n < 1 || n > maxRanks {
		return 0
	}
	return n
}

// countBlocks counts the ids and lists in "[[1,2],[3]]". The text must be valid JSON.
func countBlocks(list []byte) (blocks, groups int, err error) {
	depth, inNumber := 0, false
	for _, c := range list {
		digit := c >= '0' && c <= '9'
		switch {
		case digit && depth == 2:
			if !inNumber {
				blocks++
			}
		case c == '[' && depth < 2:
			depth++
			groups += depth - 1
		case c == ']':
			depth--
		case c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r':
		default:
			return 0, 0, errors.New("hand-off member remote_block_ids is not a list of lists of block numbers")
		}
		inNumber = digit
	}
	if blocks == 0 {
		return 0, 0, errors.New("hand-off offers no blocks")
	}
	return blocks, groups, nil
}
