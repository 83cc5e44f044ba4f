package api

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/web"
)

// responsesReserve is how many of max_output_tokens the real engine does not use.
const responsesReserve = 2

// response is the object of /v1/responses.
type response struct {
	ID                 string            `json:"id"`
	Object             string            `json:"object"`
	CreatedAt          int64             `json:"created_at"`
	Model              string            `json:"model"`
	Output             []responseItem    `json:"output"`
	Status             string            `json:"status"`
	Usage              *responseUsage    `json:"usage"`
	ParallelToolCalls  bool              `json:"parallel_tool_calls"`
	ToolChoice         string            `json:"tool_choice"`
	Tools              []any             `json:"tools"`
	Error              any               `json:"error"`
	IncompleteDetails  any               `json:"incomplete_details"`
	Instructions       *string           `json:"instructions"`
	MaxOutputTokens    *int              `json:"max_output_tokens"`
	PreviousResponseID *string           `json:"previous_response_id"`
	Reasoning          responseReasoning `json:"reasoning"`
	Store              bool              `json:"store"`
	Temperature        *pyjson.Float     `json:"temperature"`
	Text               any               `json:"text"`
	TopP               *pyjson.Float     `json:"top_p"`
	Truncation         string            `json:"truncation"`
	User               *string           `json:"user"`
	Metadata           struct{}          `json:"metadata"`
}

type responseReasoning struct {
	Effort  *string `json:"effort"`
	Summary *string `json:"summary"`
}

type responseItem struct {
	ID      string         `json:"id"`
	Content []responseText `json:"content"`
	Role    string         `json:"role"`
	Status  string         `json:"status"`
	Type    string         `json:"type"`
	Phase   string         `json:"phase,omitempty"`
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
	CachedTokens     int `json:"cached_tokens"`
	CacheWriteTokens int `json:"cache_write_tokens"`
}

type outputDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

// finalPhase is the phase of an item of an answer without reasoning.
const finalPhase = "final_answer"

func (h *handler) serveResponses(c *call) {
	var body *response
	h.serve(c, form{
		read: func(c *call, f *web.Fields) (q *request, err error) {
			q, body, err = h.readResponses(c, f)
			return q, err
		},
		maxTokens: h.cfg.ContextLength,
		stream:    func(r *run) { r.streamResponse(body) },
		whole: func(r *run, answers []answer) any {
			a := &answers[0]
			body.complete(r.request, a, []responseItem{newItem("msg_"+sglang.NewRID(), "completed", finalPhase, outputText(a.text()))})
			return body
		},
	})
}

func (h *handler) readResponses(c *call, f *web.Fields) (*request, *response, error) {
	q, err := c.readCommon(f)
	if err != nil {
		return nil, nil, err
	}
	q.readSampling(f, "max_output_tokens")
	q.rids, q.ridList = []string{f.Text("request_id", "resp_"+sglang.NewRID())}, false
	body := &response{ID: q.rids[0], Object: "response", CreatedAt: time.Now().Unix(), Model: cmp.Or(q.model, h.cfg.ServedModelName),
		Output: []responseItem{}, Status: "in_progress", ParallelToolCalls: true, ToolChoice: "auto", Tools: []any{}, MaxOutputTokens: q.maxTokens,
		Store: true, Truncation: "disabled"}
	if q.temperatureSet {
		t := pyjson.Float(q.temperature)
		body.Temperature = &t
	}
	if _, ok := f.Get("top_p"); ok {
		p := pyjson.Float(q.topP)
		body.TopP = &p
	}
	var messages []model.Message
	if s := f.Text("instructions", ""); s != "" {
		body.Instructions = &s
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
	if err := c.problemsOf(f); err != nil {
		return nil, nil, err
	}
	if q.maxTokens != nil {
		fewer := max(1, *q.maxTokens-responsesReserve)
		q.maxTokens = &fewer
	}
	q.prompts = [][]int{h.cfg.Model.Tokenizer().Chat(messages)}
	return q, body, nil
}

// complete turns a response in progress into the whole one.
func (r *response) complete(q *request, a *answer, output []responseItem) {
	r.Output, r.Status = output, "completed"
	r.Text = pyjson.Object{member("format", pyjson.Object{member("type", "text")})}
	switch {
	case a.failure != nil || a.finish == sglang.FinishAbort:
		message := "Aborted"
		if a.failure != nil {
			message = a.failure.Message
		}
		r.Status, r.Error = "failed", pyjson.Object{member("code", "server_error"), member("message", message)}
	case a.finish == "length":
		r.Status, r.IncompleteDetails = "incomplete", pyjson.Object{member("reason", "max_output_tokens")}
	}
	prompt, out := len(q.prompts[0]), len(a.tokens)
	r.Usage = &responseUsage{InputTokens: prompt, OutputTokens: out, TotalTokens: prompt + out,
		InputTokensDetails: inputDetails{CachedTokens: a.usage.Cached}}
}

func newItem(id, status, phase string, texts ...responseText) responseItem {
	return responseItem{ID: id, Content: append([]responseText{}, texts...), Role: "assistant", Status: status, Type: "message", Phase: phase}
}

func outputText(text string) responseText {
	return responseText{Annotations: []any{}, Text: text, Type: "output_text"}
}

// responseStream numbers the events of one streamed response.
type responseStream struct {
	*web.Stream
	number int
}

// lifecycle writes an event that has the whole response.
func (s *responseStream) lifecycle(name string, body *response) {
	s.Event(name, pyjson.Object{member("type", name), member("response", body), member("sequence_number", s.number)})
	s.number++
}

// part writes an event of an item, members in the order of their names.
func (s *responseStream) part(name string, members ...pyjson.Member) {
	event := pyjson.Object(append(members, member("sequence_number", s.number), member("type", name)))
	event.Sort()
	s.number++
	s.Event(name, event)
}

// streamResponse streams an answer. Its first two events come before the engine has begun, and say nothing of the hand-off.
func (r *run) streamResponse(body *response) {
	r.call.W.Header().Set("Cache-Control", "no-cache")
	r.call.W.Header().Set("Connection", "keep-alive")
	q, s := r.request, &responseStream{Stream: r.call.Stream()}
	s.lifecycle("response.created", body)
	s.lifecycle("response.in_progress", body)
	id := "msg_" + sglang.NewRID()
	at := []pyjson.Member{member("content_index", 0), member("item_id", id), member("output_index", 0)}
	var whole answer
	opened := false
	if _, ok := r.events(r.call.Ctx(), func(a *answer, _ int, out core.Output) bool {
		if whole = *a; a.failure != nil {
			return true
		}
		if !opened && out.Token >= 0 {
			opened = true
			s.part("response.output_item.added", member("item", newItem(id, "in_progress", finalPhase)), member("output_index", 0))
			s.part("response.content_part.added", append(at[:3:3], member("part", outputText("")))...)
		}
		if text := a.last(); text != "" && out.Token >= 0 {
			s.part("response.output_text.delta", append(at[:3:3], member("delta", text), member("logprobs", []any{}))...)
		}
		return true
	}); !ok {
		return
	}
	output := []responseItem{}
	if opened {
		item := newItem(id, "completed", finalPhase, outputText(whole.text()))
		s.part("response.output_text.done", append(at[:3:3], member("logprobs", []any{}), member("text", whole.text()))...)
		s.part("response.content_part.done", append(at[:3:3], member("part", outputText(whole.text())))...)
		s.part("response.output_item.done", member("item", item), member("output_index", 0))
		output = append(output, item)
	}
	body.complete(q, &whole, output)
	s.lifecycle("response."+body.Status, body)
}
