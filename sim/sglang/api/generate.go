package api

import (
	"encoding/json"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/web"
)

// generateDefaultTokens is the length of an answer to /generate without max_new_tokens, in tokens.
const generateDefaultTokens = 128

// generated is the answer of /generate, and each event of its stream.
type generated struct {
	Text      string        `json:"text"`
	OutputIDs []int         `json:"output_ids"`
	MetaInfo  pyjson.Object `json:"meta_info"`
}

func (h *handler) serveGenerate(c *call) {
	h.serve(c, form{h.readGenerate, generateDefaultTokens, (*run).streamGenerated, func(r *run, answers []answer) any {
		list := make([]generated, len(answers))
		for i := range answers {
			list[i] = r.generated(&answers[i], true, true)
		}
		if r.request.batch || r.request.n > 1 {
			return list
		}
		return list[0]
	}})
}

func (h *handler) readGenerate(c *call, f *web.Fields) (*request, error) {
	q, err := c.readCommon(f)
	if err != nil {
		return nil, err
	}
	sampling := &web.Fields{Members: map[string]json.RawMessage{}}
	if raw := f.Object("sampling_params"); raw != nil {
		sampling = web.ReadObject(raw)
	}
	q.readSampling(sampling, "max_new_tokens")
	f.Problems = append(f.Problems, sampling.Problems...)
	q.addPrompts(f, "text", h.cfg.Model.Tokenizer())
	if len(q.prompts) == 0 {
		q.addPrompts(f, "input_ids", h.cfg.Model.Tokenizer())
	}
	if f.Boolean("return_logprob") {
		q.logprobs = f.Integer("top_logprobs_num", 0)
		q.promptFrom = f.Integer("logprob_start_len", -1)
	}
	if err := c.problemsOf(f); err != nil {
		return nil, err
	}
	if len(q.prompts) == 0 {
		return nil, badValue("Either text, input_ids or input_embeds should be provided.")
	}
	return q, nil
}

// generated describes an answer so far. first and last say whether this is its first and its last description.
func (r *run) generated(a *answer, first, last bool) generated {
	q, cfg := r.request, &r.handler.cfg
	now := time.Now()
	prefills := cfg.Mode != sglang.Decode && a.failure == nil
	m := pyjson.Object{member("id", q.rids[a.prompt]), member("finish_reason", a.finishReason(cfg)), member("prompt_tokens", len(q.prompts[a.prompt])),
		member("weight_version", "default"), member("num_retractions", 0)}
	if prefills && last {
		m = append(m, member("storage_prefetch_wait", pyjson.Float(0)), member("storage_staging_wait", pyjson.Float(0)))
	}
	if a.failure == nil {
		m = append(m, member("forward_entry_time", seconds(a.first)))
	}
	if prefills && last {
		m = append(m, member("prefill_finished_time", seconds(a.first)))
	}
	m = append(m, member("queue_time", pyjson.Float(0)))
	if q.logprobs >= 0 {
		input := []tokenLogprob{}
		if q.promptFrom >= 0 && cfg.Mode != sglang.Decode { // decode has never seen the prompt
			input = tokenLogprobs(q.prompts[a.prompt][min(q.promptFrom, len(q.prompts[a.prompt])):], q.promptFrom == 0)
		}
		m = append(m, member("input_token_logprobs", input), member("output_token_logprobs", tokenLogprobs(a.tokens, false)),
			member("output_token_logprobs_length", len(a.tokens)))
	}
	m = append(m, member("reasoning_tokens", 0), member("completion_tokens", len(a.tokens)), member("cached_tokens", a.usage.Cached))
	if last {
		m = append(m, member("weight_versions", weightVersions(len(a.tokens))))
	}
	m = append(m, member("cached_tokens_details", cachedDetails(a.usage.Cached)), member("dp_rank", r.dpRank(a.prompt)))
	if last {
		took := now.Sub(q.received).Seconds()
		m = append(m, member("e2e_latency", took), member("request_received_ts", seconds(q.received)), member("first_token_latency", took),
			member("api_server_dispatch_finish_ts", seconds(q.received)))
		if q.stream && a.failure == nil {
			m = append(m, member("response_sent_to_client_ts", seconds(a.first)))
		}
		m = append(m, member("request_finished_ts", seconds(now)))
		if len(a.tokens) > 1 && (q.stream || cfg.Mode == sglang.Plain) {
			m = append(m, member("decode_throughput", float64(len(a.tokens))/max(took, 1e-6)))
		}
	}
	if first && (!q.stream || a.failure != nil) || first && !last {
		m = append(m, member("response_sent_to_client_ts", seconds(now)))
	}
	ids := a.tokens
	if ids == nil {
		ids = []int{}
	}
	return generated{Text: a.text(), OutputIDs: ids, MetaInfo: m}
}

func seconds(t time.Time) pyjson.Float { return pyjson.Float(float64(t.UnixMicro()) / 1e6) }

// weightVersions says which weights generated which tokens of an answer.
func weightVersions(tokens int) any {
	return []any{pyjson.Object{member("version", "default"), member("start", 0), member("end", tokens)}}
}

func cachedDetails(cached int) any {
	if cached == 0 {
		return nil
	}
	return pyjson.Object{member("device", cached), member("host", 0)}
}

// dpRank returns the rank that computes a prompt, or nil if there is only one.
func (r *run) dpRank(prompt int) any {
	if r.handler.cfg.Ranks == 1 {
		return nil
	}
	return r.request.ranks[prompt]
}

// streamGenerated streams answers. Each event has all of its answer so far.
func (r *run) streamGenerated() {
	s := r.call.Stream()
	several := r.request.batch || r.request.n > 1
	if _, ok := r.events(r.call.Ctx(), func(a *answer, index int, _ core.Output) bool {
		event := r.generated(a, len(a.tokens) <= 1, a.finish != "" || a.failure != nil)
		if !several {
			s.Data(event)
			return true
		}
		s.Data(struct {
			generated
			Index int `json:"index"`
		}{event, index})
		return true
	}); !ok {
		return
	}
	s.Done()
}
