package continuation

import (
	"bytes"
	"math"
	"slices"
	"strconv"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// Request is what must be known of a request to have another engine go on with its answer.
type Request struct {
	api     pd.API
	rest    []byte // the members that every leg has, each after a comma
	options []byte // stream_options as the client wrote them; nil: none
	limit   int64  // most tokens of the answer; -1 = as many as the model's length allows
	least   int64  // min_tokens
	usage   bool   // the stream ends with its usage
	wants   bool   // the client asked for token ids
	scores  bool   // the client asked for log probabilities
	top     int    // chat: alternatives with each of them
	stops   *stops // nil: the engine that goes on looks for stop strings itself
	stopped bool   // there are stop strings
	tools   bool   // chat: the model may call tools
	whole   []byte // chat: the request as the client wrote it, if another engine can parse the answer; nil: none can
}

// Refusal is why a request or a stream cannot go on exactly at another engine; a metric label. "" = it can.
type Refusal string

// The refusals.
const (
	OtherAPI   Refusal = "api"        // neither chat nor completions
	Whole      Refusal = "whole"      // the answer is no stream
	Choices    Refusal = "choices"    // several choices or prompts, or a beam search
	Penalties  Refusal = "penalties"  // they count generated tokens, and another engine takes those that were sent for prompt
	Seed       Refusal = "seed"       // its generator begins anew
	Structured Refusal = "structured" // the grammar would begin anew
	Stop       Refusal = "stop"       // a stop string of more than longestStop characters, or none at all
	Tools      Refusal = "tools"      // calls are parsed, and no other engine parses what a completion has
	Parsed     Refusal = "parsed"     // the engine parses the text, or it is not known that it does not, and no other engine does
	Media      Refusal = "media"      // token ids do not stand for images, audio or video
	Logprobs   Refusal = "logprobs"   // of the prompt, or of chosen tokens, which a completion from ids does not have in the same form
	Unreadable Refusal = "unreadable" // the body, or an event, has another form than vLLM's
	Memory     Refusal = "memory"     // as many ids are kept as may be
	Sampled    Refusal = "sampled"    // the answer must be generated again, and another engine would say something else
)

// The members of a request, in the order of requestTable.
const (
	rStream = iota
	rOptions
	rUsage
	rMaxTokens
	rMaxCompletionTokens
	rMinTokens
	rPrompt
	rMessages
	rLogprobs
	rReturnIDs
	rStop
	rTools
	rN
	rBestOf
	rBeam
	rFrequency
	rPresence
	rRepetition
	rThinking
	rXargs
	rSeed
	rFormat
	rStructured
	rGuidedJSON
	rGuidedRegex
	rGuidedChoice
	rGuidedGrammar
	rPromptLogprobs
	rEcho
	rEmbeds
	rSuffix
	rTruncate
	rTopLogprobs
	rToolChoice
	rTemperature
	rIncludeStop
	rLogprobIDs
	rParallelCalls
	rStrict
)

var requestTable = body.NewTable(
	body.Want{Path: "stream", Once: true},
	body.Want{Path: "stream_options", Once: true},
	body.Want{Path: "stream_options.include_usage", Once: true},
	body.Want{Path: "max_tokens", Once: true},
	body.Want{Path: "max_completion_tokens", Once: true},
	body.Want{Path: "min_tokens", Once: true},
	body.Want{Path: "prompt", Once: true},
	body.Want{Path: "messages", Once: true},
	body.Want{Path: "logprobs", Once: true},
	body.Want{Path: "return_token_ids", Once: true},
	body.Want{Path: "stop", Once: true},
	body.Want{Path: "tools", Once: true},
	body.Want{Path: "n", Once: true},
	body.Want{Path: "best_of", Once: true},
	body.Want{Path: "use_beam_search", Once: true},
	body.Want{Path: "frequency_penalty", Once: true},
	body.Want{Path: "presence_penalty", Once: true},
	body.Want{Path: "repetition_detection", Once: true},
	body.Want{Path: "thinking_token_budget", Once: true},
	body.Want{Path: "vllm_xargs", Once: true},
	body.Want{Path: "seed", Once: true},
	body.Want{Path: "response_format", Once: true},
	body.Want{Path: "structured_outputs", Once: true},
	body.Want{Path: "guided_json", Once: true},
	body.Want{Path: "guided_regex", Once: true},
	body.Want{Path: "guided_choice", Once: true},
	body.Want{Path: "guided_grammar", Once: true},
	body.Want{Path: "prompt_logprobs", Once: true},
	body.Want{Path: "echo", Once: true},
	body.Want{Path: "prompt_embeds", Once: true},
	body.Want{Path: "suffix", Once: true},
	body.Want{Path: "truncate_prompt_tokens", Once: true},
	body.Want{Path: "top_logprobs", Once: true},
	body.Want{Path: "tool_choice", Once: true},
	body.Want{Path: "temperature", Once: true},
	body.Want{Path: "include_stop_str_in_output", Once: true},
	body.Want{Path: "logprob_token_ids", Once: true},
	body.Want{Path: "parallel_tool_calls", Once: true},
	body.Want{Path: "tools.*.function.strict"},
)

// refusing lists members that make a request impossible to go on with, unless they are absent, null, or, where neutral says so, have
// a value without effect.
var refusing = []struct {
	want    int
	why     Refusal
	neutral []string
}{
	{rN, Choices, []string{"1"}},
	{rBestOf, Choices, []string{"1"}},
	{rBeam, Choices, []string{"false"}},
	{rFrequency, Penalties, []string{"0", "0.0"}},
	{rPresence, Penalties, []string{"0", "0.0"}},
	{rRepetition, Penalties, nil},
	{rThinking, Penalties, nil},
	{rXargs, Unreadable, []string{"{}"}}, // processors of logits that an operator has added may count tokens
	{rFormat, Structured, []string{`{"type":"text"}`, `{"type": "text"}`}},
	{rStructured, Structured, nil},
	{rGuidedJSON, Structured, nil},
	{rGuidedRegex, Structured, nil},
	{rGuidedChoice, Structured, nil},
	{rGuidedGrammar, Structured, nil},
	{rPromptLogprobs, Logprobs, nil},
	{rEcho, Logprobs, []string{"false"}},
	{rLogprobIDs, Logprobs, []string{"[]"}},
	{rEmbeds, Media, nil},
	{rSuffix, Unreadable, []string{`""`}},
}

// left are the members that the legs do not have: they say of the prompt what the ids say already, or each leg has its own value.
var left = []int{rStream, rOptions, rMaxTokens, rMaxCompletionTokens, rMinTokens, rPrompt, rMessages, rReturnIDs, rTruncate, rTopLogprobs,
	rToolChoice, rTools, rN, rBestOf}

// completionLimit is the limit of the completions API of OpenAI and vLLM, in tokens.
const completionLimit = 16

// Read reads the body of a request, from which the members that clients may not send have been removed. The Request shares nothing
// with it. parsers says that other engines can parse text of chat.
func Read(api pd.API, b *body.Body, parsers bool) (*Request, Refusal) {
	if api != pd.APICompletions && api != pd.APIChat {
		return nil, OtherAPI
	}
	var scan body.Scanner
	scan.Reset(requestTable, body.Limits{}, nil)
	for _, segment := range b.Segments() {
		if _, err := scan.Write(segment); err != nil {
			return nil, Unreadable
		}
	}
	if scan.Close() != nil || scan.Root().Kind != body.Object {
		return nil, Unreadable
	}
	r := &reading{Request: &Request{api: api, limit: -1}, body: b, scan: &scan}
	if why := r.read(parsers); why != "" {
		return nil, why
	}
	return r.Request, ""
}

// reading is a Request while it is read.
type reading struct {
	*Request
	body *body.Body
	scan *body.Scanner
}

// value returns a member as the client wrote it; nil if it is absent or null.
func (r *reading) value(want int) []byte {
	m, ok := r.scan.Find(want)
	if !ok || m.Kind == body.Null {
		return nil
	}
	return r.body.Bytes(m.Value)
}

// number returns an integer member, missing if it is absent, and -1 if it is no count.
func (r *reading) number(want int, missing int64) int64 {
	v := r.value(want)
	if v == nil {
		return missing
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// flag returns a member that is true or false. ok is false if it is neither, nor absent.
func (r *reading) flag(want int) (set, ok bool) {
	switch string(r.value(want)) {
	case "true":
		return true, true
	case "", "false":
		return false, true
	}
	return false, false
}

func (r *reading) read(parsers bool) Refusal {
	if string(r.value(rStream)) != "true" {
		return Whole
	}
	for _, row := range refusing {
		if v := r.value(row.want); v != nil && !slices.Contains(row.neutral, string(v)) {
			return row.why
		}
	}
	if why := r.readTools(parsers); why != "" {
		return why
	}
	var ok bool
	if r.stops, ok = readStops(r.value(rStop)); !ok {
		return Stop
	}
	if r.stops != nil {
		if r.stops.include, ok = r.flag(rIncludeStop); !ok {
			return Unreadable
		}
	}
	if t := string(r.value(rTemperature)); seeded(r.value(rSeed)) && t != "0" && t != "0.0" { // without chance a seed has no effect
		return Seed
	}
	if r.api == pd.APICompletions {
		if m, _ := r.scan.Find(rPrompt); m.Kind != body.String && (m.Kind != body.Array || m.First != body.Number) {
			return Choices
		}
		r.scores = r.value(rLogprobs) != nil
	} else if why := r.readChat(); why != "" {
		return why
	}
	r.options = bytes.Clone(r.value(rOptions))
	r.usage = string(r.value(rUsage)) == "true"
	r.wants = string(r.value(rReturnIDs)) == "true"
	if r.least = r.number(rMinTokens, 0); r.least < 0 || !r.readLimit() {
		return Unreadable
	}
	return r.keep()
}

// readTools checks the tools. If the model must call one, or must call it in a given form, its answer follows a grammar. With a tool_choice of
// none some parsers remove calls from the text, and others none.
func (r *reading) readTools(parsers bool) Refusal {
	r.stopped = r.value(rStop) != nil && string(r.value(rStop)) != "[]"
	if r.api == pd.APIChat && parsers {
		r.whole = bytes.Join(r.body.Segments(), nil)
	}
	tools := r.value(rTools)
	if r.tools = tools != nil && string(tools) != "[]"; !r.tools {
		return ""
	}
	choice, together := string(r.value(rToolChoice)), string(r.value(rParallelCalls))
	switch {
	case r.api != pd.APIChat || !parsers || choice == `"none"`:
		return Tools
	case choice != "" && choice != `"auto"`, together != "" && together != "true", r.strict():
		return Structured
	case r.stopped:
		return Stop
	}
	return ""
}

// strict reports whether a call of a tool must follow the schema of the tool.
func (r *reading) strict() bool {
	return slices.ContainsFunc(r.scan.Members(), func(m body.Member) bool {
		return m.Want == rStrict && m.Kind != body.Null && string(r.body.Bytes(m.Value)) != "false"
	})
}

func (r *reading) readLimit() bool {
	limit := r.number(rMaxTokens, math.MaxInt64)
	if r.api == pd.APIChat {
		limit = r.number(rMaxCompletionTokens, limit)
	} else if limit == math.MaxInt64 {
		limit = completionLimit
	}
	if limit != math.MaxInt64 {
		r.limit = limit
	}
	return limit > 0
}

// maxAlternatives is the most alternatives that the API allows with each log probability (top_logprobs).
const maxAlternatives = 20

// readChat checks what only chat has.
func (r *reading) readChat() Refusal {
	scores, ok := r.flag(rLogprobs)
	top := r.number(rTopLogprobs, 0)
	if !ok || top < 0 || top > maxAlternatives {
		return Logprobs
	}
	if r.scores = scores; scores {
		r.top = int(top)
	}
	m, found := r.scan.Find(rMessages)
	if !found || m.Kind != body.Array {
		return Unreadable
	}
	if !onlyText(r.body.Bytes(m.Value)) {
		return Media
	}
	return ""
}

// partTable finds the parts of messages whose content is a list, and their types.
var partTable = body.NewTable(body.Want{Path: "*.content.*", Sink: true}, body.Want{Path: "*.content.*.type", Sink: true})

// onlyText reports whether all parts of messages are texts.
func onlyText(messages []byte) bool {
	const part = 0
	parts, texts := 0, 0
	var kind []byte
	var scan body.Scanner
	scan.Reset(partTable, body.Limits{}, func(want int, piece []byte, last bool) {
		if want == part {
			if last {
				parts++
			}
			return
		}
		kind = append(kind, piece...)
		if last {
			if string(kind) == "text" {
				texts++
			}
			kind = kind[:0]
		}
	})
	if _, err := scan.Write(messages); err != nil || scan.Close() != nil {
		return false
	}
	return parts == texts
}

// keep copies the members that every leg has.
func (r *reading) keep() Refusal {
	var edit body.Edit
	edit.Reset(r.body, r.scan.Root())
	removed := 0
	for _, m := range r.scan.Members() {
		if slices.Contains(left, m.Want) || m.Want == rLogprobs && r.api == pd.APIChat || m.Want == rStop && r.stops != nil {
			edit.Remove(m)
			removed++
		}
	}
	segments, err := edit.Segments(nil)
	if err != nil {
		return Unreadable
	}
	rest := bytes.Trim(bytes.Join(segments, nil), "\xef\xbb\xbf \t\r\n")
	rest = bytes.TrimSpace(rest[1 : len(rest)-1]) // without the braces
	if r.scores && r.api == pd.APIChat {
		rest = append(strconv.AppendInt([]byte(`"logprobs":`), int64(r.top), 10), append([]byte{','}, rest...)...)
		rest = bytes.TrimSuffix(rest, comma)
	}
	if len(rest) > 0 {
		r.rest = append([]byte{','}, rest...)
	}
	return ""
}
