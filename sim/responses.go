package sim

import (
	"encoding/json"
	"time"
)

// response is the object of /v1/responses.
type response struct {
	ID                 string            `json:"id"`
	CreatedAt          int64             `json:"created_at"`
	IncompleteDetails  *incompleteReason `json:"incomplete_details"`
	Instructions       *string           `json:"instructions"`
	Metadata           *any              `json:"metadata"`
	Model              string            `json:"model"`
	Object             string            `json:"object"`
	Output             []responseItem    `json:"output"`
	ParallelToolCalls  bool              `json:"parallel_tool_calls"`
	Temperature        pythonFloat       `json:"temperature"`
	ToolChoice         string            `json:"tool_choice"`
	Tools              []any             `json:"tools"`
	TopP               pythonFloat       `json:"top_p"`
	Background         bool              `json:"background"`
	MaxOutputTokens    int               `json:"max_output_tokens"`
	MaxToolCalls       *int              `json:"max_tool_calls"`
	PreviousResponseID *string           `json:"previous_response_id"`
	Prompt             *any              `json:"prompt"`
	Reasoning          *any              `json:"reasoning"`
	ServiceTier        string            `json:"service_tier"`
	Status             string            `json:"status"`
	Text               *any              `json:"text"`
	TopLogprobs        *int              `json:"top_logprobs"`
	Truncation         string            `json:"truncation"`
	Usage              *responseUsage    `json:"usage"`
	User               *string           `json:"user"`
	PresencePenalty    pythonFloat       `json:"presence_penalty"`
	FrequencyPenalty   pythonFloat       `json:"frequency_penalty"`
	KVTransferParams   any               `json:"kv_transfer_params"`
	ECTransferParams   *any              `json:"ec_transfer_params"`
	InputMessages      *any              `json:"input_messages"`
	OutputMessages     *any              `json:"output_messages"`
}

// pythonFloat always shows its fraction.
type pythonFloat float64

// MarshalJSON implements json.Marshaler; it has no error.
func (v pythonFloat) MarshalJSON() ([]byte, error) { return []byte(formatPython(float64(v))), nil }

type incompleteReason struct {
	Reason string `json:"reason"`
}

type responseItem struct {
	ID      string         `json:"id"`
	Content []responseText `json:"content"`
	Role    string         `json:"role"`
	Status  string         `json:"status"`
	Type    string         `json:"type"`
	Phase   *string        `json:"phase"`
}

type responseText struct {
	Annotations []any  `json:"annotations"`
	Text        string `json:"text"`
	Type        string `json:"type"`
	Logprobs    []any  `json:"logprobs"`
}

type responseUsage struct {
	InputTokens         int           `json:"input_tokens"`
	InputTokensDetails  inputDetails  `json:"input_tokens_details"`
	OutputTokens        int           `json:"output_tokens"`
	OutputTokensDetails outputDetails `json:"output_tokens_details"`
	TotalTokens         int           `json:"total_tokens"`
}

type inputDetails struct {
	CachedTokens        int   `json:"cached_tokens"`
	CacheWriteTokens    int   `json:"cache_write_tokens"`
	InputTokensPerTurn  []int `json:"input_tokens_per_turn"`
	CachedTokensPerTurn []int `json:"cached_tokens_per_turn"`
}

type outputDetails struct {
	ReasoningTokens         int   `json:"reasoning_tokens"`
	ToolOutputTokens        int   `json:"tool_output_tokens"`
	OutputTokensPerTurn     []int `json:"output_tokens_per_turn"`
	ToolOutputTokensPerTurn []int `json:"tool_output_tokens_per_turn"`
}

func (e *Engine) serveResponses(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	q, err := e.readResponses(f)
	if err != nil {
		c.fail(err)
		return
	}
	q.fault = c.fault
	q.id = "resp_" + requestID(c.r)
	seqs, ok := e.accept(c, q, func() []*sequence {
		return q.sequences(e, e.cfg.MaxModelLen, func(int) string { return q.id + "_0" })
	})
	switch {
	case !ok:
	case q.stream:
		e.streamResponse(c, q, seqs)
	default:
		e.answerResponse(c, q, seqs)
	}
}

func (e *Engine) readResponses(f *fields) (*generateRequest, *apiError) {
	q := readCommon(f)
	q.maxTokens, q.maxTokensName = f.optionalInteger("max_output_tokens"), "max_output_tokens"
	var messages []chatMessage
	if s := f.text("instructions", ""); s != "" {
		q.instructions = &s
		messages = append(messages, chatMessage{"system", s})
	}
	if raw, ok := f.require("input"); ok {
		if raw[0] == '"' {
			messages = append(messages, chatMessage{"user", contentText(raw)})
		} else {
			input := &fields{members: map[string]json.RawMessage{"messages": raw}}
			messages = append(messages, readMessages(input)...)
			f.problems = append(f.problems, input.problems...)
		}
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	q.prompts = [][]int{e.tokenizer().chatTokens(messages)}
	return q, q.checkLimits()
}

func (e *Engine) newResponse(q *generateRequest, seq *sequence) response {
	return response{
		ID: q.id, CreatedAt: time.Now().Unix(), Instructions: q.instructions,
		Model: e.cfg.ServedModelName, Object: "response", Output: []responseItem{},
		ParallelToolCalls: true, Temperature: pythonFloat(q.temperature), ToolChoice: "none", Tools: []any{}, TopP: pythonFloat(q.topP),
		MaxOutputTokens: seq.sampling.maxTokens, ServiceTier: "auto", Status: "in_progress", Truncation: "disabled",
	}
}

// complete turns a response in progress into the whole one.
func (r *response) complete(q *generateRequest, a *answer, item responseItem) {
	r.Output = []responseItem{item}
	r.Status = "completed"
	if a.finish == "length" {
		r.Status, r.IncompleteDetails = "incomplete", &incompleteReason{"max_output_tokens"}
	}
	prompt, out := len(q.prompts[0]), len(a.tokens)
	r.Usage = &responseUsage{
		InputTokens: prompt, OutputTokens: out, TotalTokens: prompt + out,
		InputTokensDetails:  inputDetails{a.usage.cached, a.usage.created, []int{}, []int{}},
		OutputTokensDetails: outputDetails{0, 0, []int{}, []int{}},
	}
	r.KVTransferParams = q.fault.damaged(a.handoff)
}

func newItem(id, status string, texts ...responseText) responseItem {
	return responseItem{ID: id, Content: append([]responseText{}, texts...), Role: "assistant", Status: status, Type: "message"}
}

func outputText(text string, logprobs []any) responseText {
	return responseText{Annotations: []any{}, Text: text, Type: "output_text", Logprobs: logprobs}
}

func (e *Engine) answerResponse(c *call, q *generateRequest, seqs []*sequence) {
	answers, apiErr, err := e.collect(c.ctx(), seqs)
	if !c.collected(apiErr, err) {
		return
	}
	body := e.newResponse(q, seqs[0])
	body.complete(q, &answers[0], newItem("msg_"+randomHex(8), "completed", outputText(answers[0].text(), nil)))
	e.addLoadHeader(c)
	c.json(200, body)
}

// responseStream numbers the events of one streamed response.
type responseStream struct {
	*stream
	item   string
	number int
}

// send writes one event. Every event of this API ends with its number and its name.
func (s *responseStream) send(name string, members ...member) {
	members = append(members, member{"sequence_number", s.number}, member{"type", name})
	s.number++
	s.event(name, object(sortedMembers(members)))
}

func (e *Engine) streamResponse(c *call, q *generateRequest, seqs []*sequence) {
	s := &responseStream{stream: c.stream(), item: "msg_" + randomHex(8)}
	body := e.newResponse(q, seqs[0])
	s.send("response.created", member{"response", body})
	s.send("response.in_progress", member{"response", body})
	at := []member{{"content_index", 0}, {"item_id", s.item}, {"output_index", 0}}
	var a answer
	for a.finish == "" {
		out, ok := e.nextOutput(c, s.stream, seqs)
		if !ok {
			return
		}
		if len(a.tokens) == 0 {
			s.send("response.output_item.added", member{"item", newItem(s.item, "in_progress")}, member{"output_index", 0})
			s.send("response.content_part.added", append(at[:3:3], member{"part", outputText("", []any{})})...)
		}
		a.add(out)
		if out.text != "" { // unlike the OpenAI streams, this one has no empty deltas
			s.send("response.output_text.delta", append(at[:3:3], member{"delta", out.text}, member{"logprobs", []any{}})...)
		}
	}
	text := outputText(a.text(), nil)
	item := newItem(s.item, "completed", text)
	s.send("response.output_text.done", append(at[:3:3], member{"logprobs", []any{}}, member{"text", text.Text})...)
	s.send("response.content_part.done", append(at[:3:3], member{"part", text})...)
	s.send("response.output_item.done", member{"item", item}, member{"output_index", 0})
	body.complete(q, &a, item)
	s.send("response.completed", member{"response", body})
}
