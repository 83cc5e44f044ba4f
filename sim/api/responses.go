package api

import (
	"encoding/json"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/web"
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
	Temperature        pyjson.Float      `json:"temperature"`
	ToolChoice         string            `json:"tool_choice"`
	Tools              []any             `json:"tools"`
	TopP               pyjson.Float      `json:"top_p"`
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
	PresencePenalty    pyjson.Float      `json:"presence_penalty"`
	FrequencyPenalty   pyjson.Float      `json:"frequency_penalty"`
	KVTransferParams   any               `json:"kv_transfer_params"`
	ECTransferParams   *any              `json:"ec_transfer_params"`
	InputMessages      *any              `json:"input_messages"`
	OutputMessages     *any              `json:"output_messages"`
}

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

func (h *handler) serveResponses(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	q, err := h.readResponses(f)
	if err != nil {
		c.fail(err)
		return
	}
	q.fault = c.Fault
	q.id = f.Text("request_id", "resp_"+sim.RandomHex(8)) // the real engine does not read X-Request-Id here
	g := h.submit(c, q, func() []sim.Request {
		return q.engineRequests(&h.cfg, h.cfg.MaxModelLen, func(int) string { return q.id + "_0" })
	})
	switch {
	case g == nil:
	case q.stream:
		h.streamResponse(c, q, g)
	default:
		h.answerResponse(c, q, g)
	}
}

func (h *handler) readResponses(f *web.Fields) (*generateRequest, *apiError) {
	q := readCommon(f)
	q.maxTokens, q.maxTokensName = f.OptionalInteger("max_output_tokens"), "max_output_tokens"
	var messages []model.Message
	if s := f.Text("instructions", ""); s != "" {
		q.instructions = &s
		messages = append(messages, model.Message{Role: "system", Text: s})
	}
	if raw, ok := f.Require("input"); ok {
		if raw[0] == '"' {
			messages = append(messages, model.Message{Role: "user", Text: web.ContentText(raw)})
		} else {
			input := &web.Fields{Members: map[string]json.RawMessage{"messages": raw}}
			messages = append(messages, web.ReadMessages(input)...)
			f.Problems = append(f.Problems, input.Problems...)
		}
	}
	if err := problemsOf(f); err != nil {
		return nil, err
	}
	q.prompts = [][]int{h.cfg.Model.Tokenizer().Chat(messages)}
	return q, q.checkLimits()
}

func (h *handler) newResponse(q *generateRequest) response {
	return response{
		ID: q.id, CreatedAt: time.Now().Unix(), Instructions: q.instructions,
		Model: h.cfg.ServedModelName, Object: "response", Output: []responseItem{},
		ParallelToolCalls: true, Temperature: pyjson.Float(q.temperature), ToolChoice: "none", Tools: []any{}, TopP: pyjson.Float(q.topP),
		MaxOutputTokens: q.requests[0].Sampling.MaxTokens, ServiceTier: "auto", Status: "in_progress", Truncation: "disabled",
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
		InputTokensDetails:  inputDetails{a.usage.Cached, a.usage.Created, []int{}, []int{}},
		OutputTokensDetails: outputDetails{0, 0, []int{}, []int{}},
	}
	r.KVTransferParams = q.handoff(a.handoff)
}

func newItem(id, status string, texts ...responseText) responseItem {
	return responseItem{ID: id, Content: append([]responseText{}, texts...), Role: "assistant", Status: status, Type: "message"}
}

func outputText(text string, logprobs []any) responseText {
	return responseText{Annotations: []any{}, Text: text, Type: "output_text", Logprobs: logprobs}
}

func (h *handler) answerResponse(c *call, q *generateRequest, g *sim.Generation) {
	answers, ok := c.collect(g, len(q.requests))
	if !ok {
		return
	}
	body := h.newResponse(q)
	body.complete(q, &answers[0], newItem("msg_"+sim.RandomHex(8), "completed", outputText(answers[0].text(), nil)))
	h.addLoadHeader(c)
	c.JSON(200, body)
}

// responseStream numbers the events of one streamed response.
type responseStream struct {
	*stream
	item   string
	number int
}

// send writes one event. Every event of this API has its number and its name, and its members are in the order of their names.
func (s *responseStream) send(name string, members ...pyjson.Member) {
	event := pyjson.Object(append(members, member("sequence_number", s.number), member("type", name)))
	event.Sort()
	s.number++
	s.Event(name, event)
}

func (h *handler) streamResponse(c *call, q *generateRequest, g *sim.Generation) {
	s := &responseStream{stream: c.stream(), item: "msg_" + sim.RandomHex(8)}
	body := h.newResponse(q)
	s.send("response.created", member("response", body))
	s.send("response.in_progress", member("response", body))
	at := []pyjson.Member{member("content_index", 0), member("item_id", s.item), member("output_index", 0)}
	var a answer
	for a.finish == "" {
		out, ok := c.next(s.stream, g)
		if !ok {
			return
		}
		if len(a.tokens) == 0 {
			s.send("response.output_item.added", member("item", newItem(s.item, "in_progress")), member("output_index", 0))
			s.send("response.content_part.added", append(at[:3:3], member("part", outputText("", []any{})))...)
		}
		a.add(out)
		if out.Text != "" { // unlike the OpenAI streams, this one has no empty deltas
			s.send("response.output_text.delta", append(at[:3:3], member("delta", out.Text), member("logprobs", []any{}))...)
		}
	}
	text := outputText(a.text(), nil)
	item := newItem(s.item, "completed", text)
	s.send("response.output_text.done", append(at[:3:3], member("logprobs", []any{}), member("text", text.Text))...)
	s.send("response.content_part.done", append(at[:3:3], member("part", text))...)
	s.send("response.output_item.done", member("item", item), member("output_index", 0))
	body.complete(q, &a, item)
	s.send("response.completed", member("response", body))
}
