package request

import (
	"fmt"
	"slices"

	"github.com/tandem-serving/tandem/pd/body"
)

// The members that every table finds, in the order of baseWants.
const (
	wModel = iota
	wStream
	wStreamOptions
	wMaxTokens
	wMaxCompletionTokens
	wMaxOutputTokens
	wMinTokens
	wN
	wBestOf
	wPrompt
	wMessages
	wToolChoice
	wParams
	wSamplingParams
	wExtraParams
	wXargsParams
	wEncoderParams
	wExtraEncoderParams
	wXargsEncoderParams
	wBootstrapHost
	wBootstrapPort
	wBootstrapRoom
	wEcho
	wLogprobs
	wPromptLogprobs
	wBeamSearch
	wPromptEmbeds
	wInput
	wTools
	wBackground
	wPrevious
	wStore
	wTruncation
	wThinkingBudget
	wTokenIDs
	wSamplingMax
	wSamplingMin
	wSamplingN
	wSamplingPromptLogprobs
	wSeed
	wSamplingSeed
	wSamplingSamplingSeed
	wText
	wInputIDs
	wInputEmbeds
	wReturnLogprob
	wLogprobStart
	wTokenIDsLogprob
)

// baseWants lists the controlled members (Once: a second occurrence is refused, because engines and proxies disagree on which
// of two counts) and the members that only decide whether a request can be split.
//
// Engine parameters reach vLLM in three ways: at top level, in sampling_params.extra_args (generate), and in vllm_xargs,
// which vLLM copies into the same extra_args. ec_transfer_params are the encoder's counterpart of kv_transfer_params.
// SGLang's parameters are the bootstrap members at top level.
var baseWants = []body.Want{
	{Path: "model", Once: true},
	{Path: "stream", Once: true},
	{Path: "stream_options", Once: true},
	{Path: "max_tokens", Once: true},
	{Path: "max_completion_tokens", Once: true},
	{Path: "max_output_tokens", Once: true},
	{Path: "min_tokens", Once: true},
	{Path: "n", Once: true},
	{Path: "best_of", Once: true},
	{Path: "prompt", Once: true},
	{Path: "messages", Once: true},
	{Path: "tool_choice", Once: true},
	{Path: "kv_transfer_params", Once: true},
	{Path: "sampling_params", Once: true},
	{Path: "sampling_params.extra_args.kv_transfer_params"},
	{Path: "vllm_xargs.kv_transfer_params"},
	{Path: "ec_transfer_params"},
	{Path: "sampling_params.extra_args.ec_transfer_params"},
	{Path: "vllm_xargs.ec_transfer_params"},
	{Path: "bootstrap_host"},
	{Path: "bootstrap_port"},
	{Path: "bootstrap_room"},
	{Path: "echo"},
	{Path: "logprobs"},
	{Path: "prompt_logprobs"},
	{Path: "use_beam_search"},
	{Path: "prompt_embeds"},
	{Path: "input"},
	{Path: "tools"},
	{Path: "background"},
	{Path: "previous_response_id"},
	{Path: "store"},
	{Path: "truncation"},
	{Path: "thinking.budget_tokens"},
	{Path: "token_ids"},
	{Path: "sampling_params.max_tokens", Once: true},
	{Path: "sampling_params.min_tokens", Once: true},
	{Path: "sampling_params.n"},
	{Path: "sampling_params.prompt_logprobs"},
	{Path: "seed"},
	{Path: "sampling_params.seed"},
	{Path: "sampling_params.sampling_seed"},
	{Path: "text"},
	{Path: "input_ids"},
	{Path: "input_embeds"},
	{Path: "return_logprob"},
	{Path: "logprob_start_len"},
	{Path: "token_ids_logprob"},
}

// Table says which members of a request body a scan finds, and which of them are removed from what clients send. It is
// immutable.
type Table struct {
	members *body.Table
	strip   []bool // per want
}

// Base is the table without additional members.
var Base = NewTable(nil)

// maxWants is the most members of a table: an Edit records the edited ones in one word.
const maxWants = 64

// NewTable adds members to those that every table finds. It finds and strips those of strip, and only finds those of more.
// Base members keep their indices, and the others follow in order. A path that the base already has is not added: strip
// strips it, more only turns on its Sink.
func NewTable(strip []string, more ...body.Want) *Table {
	wants := slices.Clone(baseWants)
	t := &Table{strip: make([]bool, len(wants), len(wants)+len(strip)+len(more))}
	for want := range wants {
		t.strip[want] = strippedBase(want)
	}
	index := func(path string) int {
		k := slices.IndexFunc(wants, func(have body.Want) bool { return have.Path == path })
		if k < 0 {
			k = len(wants)
			wants, t.strip = append(wants, body.Want{Path: path}), append(t.strip, false)
		}
		return k
	}
	for _, path := range strip {
		t.strip[index(path)] = true
	}
	for _, w := range more {
		k := index(w.Path)
		wants[k].Sink = w.Sink
		wants[k].Once = wants[k].Once || w.Once
	}
	if len(wants) > maxWants {
		panic(fmt.Sprintf("request: more than %d members in a table", maxWants))
	}
	t.members = body.NewTable(wants...)
	return t
}

// strippedBase reports whether a base member is removed from what clients send: it would direct the engine to memory of the
// client's choice, and an incomplete one ends the engine's process.
func strippedBase(want int) bool {
	return want == wParams || want >= wExtraParams && want <= wBootstrapRoom
}

// Members returns the table for the scanner.
func (t *Table) Members() *body.Table { return t.members }

// Strips reports whether a member is removed from what clients send.
func (t *Table) Strips(want int) bool { return t.strip[want] }

// index returns the want with a path, -1 if the table has none.
func (t *Table) index(path string) int {
	for want := range t.strip {
		if t.members.Path(want) == path {
			return want
		}
	}
	return -1
}
