package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/web"
)

// generateRequest is what completions, chat, responses and messages have in common once their bodies are read.
type generateRequest struct {
	model   string
	id      string // of the answer: prefix and X-Request-Id
	params  sim.TransferParams
	prompts [][]int
	images  []sim.Image // of a chat
	// imageTokens is how many tokens of the prompt are those of images.
	imageTokens int
	texts       []string // of the prompts, for echo
	n           int

	stream, includeUsage, continuousUsage bool
	returnTokenIDs, echo                  bool
	logprobs                              int // alternatives per token; -1: none wanted
	temperature, topP                     float64
	maxTokens                             *int
	maxTokensName                         string // what errors call it
	keep                                  *int   // tokens of each prompt; nil: all
	keepFirst                             bool   // and not the last ones
	sampling                              sim.Sampling
	salt                                  string
	instructions                          *string       // of /v1/responses, which repeats them
	fault                                 *fault.Fault  // nil: none hits the request
	requests                              []sim.Request // what the engine got: one per prompt and choice
}

// maxLogprobs is the engine's default limit.
const maxLogprobs = 20

// readCommon reads the members that all APIs have in common. f collects wrong types.
func readCommon(f *web.Fields) *generateRequest {
	q := &generateRequest{
		model:          f.Text("model", ""),
		maxTokens:      f.OptionalInteger("max_tokens"),
		maxTokensName:  "max_tokens",
		keep:           f.OptionalInteger("truncate_prompt_tokens"),
		keepFirst:      f.Text("truncation_side", "left") == "right",
		n:              f.Integer("n", 1),
		stream:         f.Boolean("stream"),
		temperature:    f.Float("temperature", 1),
		topP:           f.Float("top_p", 1),
		returnTokenIDs: f.Boolean("return_token_ids"),
		echo:           f.Boolean("echo"),
		salt:           f.Text("cache_salt", ""),
		logprobs:       -1,
		sampling: sim.Sampling{
			MinTokens:   f.Integer("min_tokens", 0),
			IgnoreEOS:   f.Boolean("ignore_eos"),
			Stop:        f.Texts("stop"),
			StopTokens:  f.Integers("stop_token_ids"),
			Allowed:     f.Integers("allowed_token_ids"),
			IncludeStop: f.Boolean("include_stop_str_in_output"),
			Seed:        uint64(f.Integer("seed", 0)),
		},
		params: sim.ParseTransferParams(f.Object("kv_transfer_params")),
	}
	if raw := f.Object("stream_options"); raw != nil {
		options := web.Fields{Members: map[string]json.RawMessage{}}
		if json.Unmarshal(raw, &options.Members) == nil {
			q.includeUsage = options.Boolean("include_usage")
			q.continuousUsage = q.includeUsage && options.Boolean("continuous_usage_stats")
			f.Problems = append(f.Problems, options.Problems...)
		}
	}
	return q
}

// checkBefore returns what the request models refuse before they check types.
func checkBefore(f *web.Fields) *apiError {
	if f.Truthy("stream_options") && !f.Truthy("stream") {
		return badParameter("stream_options", "", "Stream options can only be defined when `stream=True`.").inSchema()
	}
	return nil
}

// checkLimits returns what the request model refuses of the answer's limits. In some runs of the real engine this check came
// before the hook that releases a hand-off, in others after it. Here it always comes before: a coordinator has to expect that
// the hand-off stays.
func (q *generateRequest) checkLimits() *apiError {
	if q.maxTokens != nil && *q.maxTokens < 1 {
		return noTokens(*q.maxTokens).inSchema()
	}
	return nil
}

func noTokens(maxTokens int) *apiError {
	v := strconv.Itoa(maxTokens)
	return badParameter("max_tokens", v, "max_tokens must be at least 1, got %s.", v)
}

// tooMany refuses an answer that is longer than the model even without a prompt. An answer that is too long only with its prompt
// is shortened without a message.
func tooMany(name string, maxTokens, limit int) *apiError {
	return badParameter(name, strconv.Itoa(maxTokens),
		"%s=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", name, maxTokens, limit)
}

// check returns what the handler refuses: values, and prompts that are too long.
func (q *generateRequest) check(cfg *sim.Config) *apiError {
	if q.model != "" && q.model != cfg.ServedModelName {
		return unknownModel(q.model, cfg.ServedModelName)
	}
	if limit := cfg.MaxModelLen; q.maxTokens != nil && *q.maxTokens > limit {
		return tooMany(q.maxTokensName, *q.maxTokens, limit)
	}
	if err := q.checkPrompts(cfg); err != nil {
		return err
	}
	switch {
	case q.n < 1:
		return badRequest("n must be at least 1, got %d.", q.n)
	case q.temperature < 0:
		v := pyjson.FormatFloat(q.temperature)
		return badParameter("temperature", v, "temperature must be non-negative, got %s.", v)
	case q.topP <= 0 || q.topP > 1:
		v := pyjson.FormatFloat(q.topP)
		return badParameter("top_p", v, "top_p must be in (0, 1], got %s.", v)
	case q.sampling.MinTokens < 0:
		return badRequest("min_tokens must be greater than or equal to 0, got %d.", q.sampling.MinTokens)
	case q.maxTokens != nil && q.sampling.MinTokens > *q.maxTokens:
		return badRequest("min_tokens must be less than or equal to max_tokens=%d, got %d.", *q.maxTokens, q.sampling.MinTokens)
	case q.n > 1 && q.temperature == 0:
		return badRequest("n must be 1 when using greedy sampling, got %d.", q.n)
	case q.logprobs > maxLogprobs:
		v := strconv.Itoa(q.logprobs)
		return badParameter("logprobs", v, "Requested sample logprobs of %s, which is greater than max allowed: %d", v, maxLogprobs)
	}
	return nil
}

// cutPrompts drops what is more of a prompt than the request wants.
func (q *generateRequest) cutPrompts() {
	for i, p := range q.prompts {
		switch n := q.keep; {
		case n == nil || *n < 0 || *n >= len(p):
		case q.keepFirst:
			q.prompts[i] = p[:*n:*n]
		default:
			q.prompts[i] = p[len(p)-*n:]
		}
	}
}

func (q *generateRequest) checkPrompts(cfg *sim.Config) *apiError {
	if len(q.prompts) == 0 {
		return badRequest("You must pass at least one prompt")
	}
	for _, p := range q.prompts {
		if len(p) == 0 {
			return badRequest("The decoder prompt cannot be empty")
		}
		if i := slices.IndexFunc(p, func(t int) bool { return t >= cfg.Model.Vocabulary }); i >= 0 {
			return badRequest("Token id %d is out of vocabulary", p[i])
		}
		switch limit := cfg.MaxModelLen; {
		case len(p) > limit:
			return tooLong(limit)
		case len(p) == limit: // the limit of the answer has been clipped to nothing
			return noTokens(0)
		}
	}
	return nil
}

// tooLong refuses a prompt. The engine stops counting at the first token too many.
func tooLong(limit int) *apiError {
	v := strconv.Itoa(limit + 1)
	return badParameter("input_tokens", v,
		"This model's maximum context length is %d tokens. However, your prompt contains at least %s input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.", limit, v)
}

// engineRequests makes one request per prompt and choice, in the order of their indexes. maxTokens is the API's default for
// answers without a limit; all limits are cut to the model's length. engineID returns the id of a prompt.
func (q *generateRequest) engineRequests(cfg *sim.Config, maxTokens int, engineID func(prompt int) string) []sim.Request {
	if q.maxTokens != nil {
		maxTokens = *q.maxTokens
	}
	params := q.params
	if q.fault.Is(fault.NoHandoff) {
		params.RemoteDecode = false
	}
	list := make([]sim.Request, 0, len(q.prompts)*q.n)
	for i, prompt := range q.prompts {
		id := engineID(i) + "-" + sim.RandomHex(4)
		for choice := range q.n {
			r := sim.Request{ID: id, Prompt: slices.Clone(prompt), Sampling: q.sampling, Transfer: params, Salt: q.salt,
				Stale: q.fault.Is(fault.Stale)}
			r.Sampling.Choice = uint64(choice)
			r.Sampling.MaxTokens = min(maxTokens, cfg.MaxModelLen-len(prompt))
			if q.n > 1 {
				r.ID = strconv.Itoa(choice) + "_" + id
			}
			list = append(list, r)
		}
	}
	return list
}

// readPrompts reads the four shapes of prompt: text, list of texts, token ids, list of lists of token ids.
func (q *generateRequest) readPrompts(f *web.Fields, t model.Tokenizer) {
	raw, ok := f.Get("prompt")
	if !ok {
		return
	}
	var (
		text  string
		texts []string
		ids   []int
		lists [][]int
	)
	switch {
	case json.Unmarshal(raw, &text) == nil:
		q.addText(text, t)
	case json.Unmarshal(raw, &ids) == nil:
		if len(ids) > 0 {
			q.addTokens(f, ids)
		}
	case json.Unmarshal(raw, &texts) == nil:
		for _, text := range texts {
			q.addText(text, t)
		}
	case json.Unmarshal(raw, &lists) == nil:
		for _, ids := range lists {
			q.addTokens(f, ids)
		}
	default:
		// The real engine lists what is wrong with each of the shapes.
		f.Wrong("list_type", "prompt", "Input should be a valid list", raw)
	}
}

func (q *generateRequest) addText(text string, t model.Tokenizer) {
	q.prompts = append(q.prompts, t.Split(text))
	q.texts = append(q.texts, text)
}

// addTokens adds a prompt of token ids. The request model refuses negative ids; the handler refuses too large ones, later.
func (q *generateRequest) addTokens(f *web.Fields, ids []int) {
	if i := slices.IndexFunc(ids, func(id int) bool { return id < 0 }); i >= 0 {
		raw := json.RawMessage(strconv.Itoa(ids[i]))
		f.Wrong("greater_than_equal", "prompt."+strconv.Itoa(i), "Input should be greater than or equal to 0", raw)
	}
	q.prompts = append(q.prompts, ids)
	q.texts = append(q.texts, model.Join(ids))
}

// requestID returns the caller's id, of several headers the first, or a new one.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	return sim.RandomHex(8)
}
