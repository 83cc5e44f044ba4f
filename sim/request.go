package sim

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// generateRequest is what completions, chat, responses and messages have in common once their bodies are read.
type generateRequest struct {
	model   string
	id      string // of the answer: prefix and X-Request-Id
	params  transferParams
	prompts [][]int
	texts   []string // of the prompts, for echo
	n       int

	stream, includeUsage, continuousUsage bool
	returnTokenIDs, echo                  bool
	logprobs                              int // alternatives per token; -1: none wanted
	temperature, topP                     float64
	maxTokens                             *int
	maxTokensName                         string // what errors call it
	sampling                              sampling
	salt                                  string
	instructions                          *string // of /v1/responses, which repeats them
	fault                                 *Fault
}

// maxLogprobs is the engine's default limit.
const maxLogprobs = 20

// readCommon reads the members that the OpenAI APIs share. Types that are wrong are collected in f.
func readCommon(f *fields) *generateRequest {
	q := &generateRequest{
		model:          f.text("model", ""),
		maxTokens:      f.optionalInteger("max_tokens"),
		maxTokensName:  "max_tokens",
		n:              f.integer("n", 1),
		stream:         f.boolean("stream"),
		temperature:    f.float("temperature", 1),
		topP:           f.float("top_p", 1),
		returnTokenIDs: f.boolean("return_token_ids"),
		echo:           f.boolean("echo"),
		salt:           f.text("cache_salt", ""),
		logprobs:       -1,
		sampling: sampling{
			minTokens:   f.integer("min_tokens", 0),
			ignoreEOS:   f.boolean("ignore_eos"),
			stop:        f.texts("stop"),
			stopTokens:  f.integers("stop_token_ids"),
			includeStop: f.boolean("include_stop_str_in_output"),
			seed:        uint64(f.integer("seed", 0)),
		},
		params: parseTransferParams(f.object("kv_transfer_params")),
	}
	if raw := f.object("stream_options"); raw != nil {
		options := fields{members: map[string]json.RawMessage{}}
		if json.Unmarshal(raw, &options.members) == nil {
			q.includeUsage = options.boolean("include_usage")
			q.continuousUsage = q.includeUsage && options.boolean("continuous_usage_stats")
			f.problems = append(f.problems, options.problems...)
		}
	}
	return q
}

// checkBefore is what the request models check before they look at types.
func checkBefore(f *fields) *apiError {
	if f.truthy("stream_options") && !f.truthy("stream") {
		return badParameter("stream_options", "", "Stream options can only be defined when `stream=True`.").inSchema()
	}
	return nil
}

// checkLimits is the check of the request model for limits of the answer. Whether it came before the hook that releases
// a hand-off differed from run to run with the real engine; here it always does, which is worse for the caller.
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

// tooMany is for answers that would not fit without any prompt. Those that do not fit with theirs are cut without a word.
func tooMany(name string, maxTokens, limit int) *apiError {
	return badParameter(name, strconv.Itoa(maxTokens),
		"%s=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", name, maxTokens, limit)
}

// check is what the handler refuses: values, and prompts that do not fit.
func (q *generateRequest) check(e *Engine) *apiError {
	if q.model != "" && q.model != e.cfg.ServedModelName {
		return unknownModel(q.model, e.cfg.ServedModelName)
	}
	if limit := e.cfg.MaxModelLen; q.maxTokens != nil && *q.maxTokens > limit {
		return tooMany(q.maxTokensName, *q.maxTokens, limit)
	}
	if err := q.checkPrompts(e); err != nil {
		return err
	}
	switch {
	case q.n < 1:
		return badRequest("n must be at least 1, got %d.", q.n)
	case q.temperature < 0:
		v := formatPython(q.temperature)
		return badParameter("temperature", v, "temperature must be non-negative, got %s.", v)
	case q.topP <= 0 || q.topP > 1:
		v := formatPython(q.topP)
		return badParameter("top_p", v, "top_p must be in (0, 1], got %s.", v)
	case q.sampling.minTokens < 0:
		return badRequest("min_tokens must be greater than or equal to 0, got %d.", q.sampling.minTokens)
	case q.maxTokens != nil && q.sampling.minTokens > *q.maxTokens:
		return badRequest("min_tokens must be less than or equal to max_tokens=%d, got %d.", *q.maxTokens, q.sampling.minTokens)
	case q.n > 1 && q.temperature == 0:
		return badRequest("n must be 1 when using greedy sampling, got %d.", q.n)
	case q.logprobs > maxLogprobs:
		v := strconv.Itoa(q.logprobs)
		return badParameter("logprobs", v, "Requested sample logprobs of %s, which is greater than max allowed: %d", v, maxLogprobs)
	}
	return nil
}

func (q *generateRequest) checkPrompts(e *Engine) *apiError {
	if len(q.prompts) == 0 {
		return badRequest("You must pass at least one prompt")
	}
	for _, p := range q.prompts {
		if len(p) == 0 {
			return badRequest("The decoder prompt cannot be empty")
		}
		if i := slices.IndexFunc(p, func(t int) bool { return t >= e.cfg.Model.Vocabulary }); i >= 0 {
			return badRequest("Token id %d is out of vocabulary", p[i])
		}
		switch limit := e.cfg.MaxModelLen; {
		case len(p) > limit:
			return tooLong(limit)
		case len(p) == limit: // the limit of the answer has been clipped to nothing
			return noTokens(0)
		}
	}
	return nil
}

// tooLong never counts further than to the first token too many.
func tooLong(limit int) *apiError {
	v := strconv.Itoa(limit + 1)
	return badParameter("input_tokens", v,
		"This model's maximum context length is %d tokens. However, your prompt contains at least %s input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.", limit, v)
}

// formatPython shows a float as the engine's language does.
func formatPython(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e16 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// sequences makes one sequence per prompt and choice, in the order of their indexes. maxTokens, where the request has
// none, is the API's own default; all are clipped to the model's length without a word.
func (q *generateRequest) sequences(e *Engine, maxTokens int, engineID func(prompt int) string) []*sequence {
	if q.maxTokens != nil {
		maxTokens = *q.maxTokens
	}
	out := newMailbox()
	var seqs []*sequence
	for i, prompt := range q.prompts {
		id := engineID(i) + "-" + randomHex(4)
		for choice := range q.n {
			s := &sequence{id: id, index: len(seqs), sampling: q.sampling, params: q.params, salt: q.salt, fault: q.fault,
				tokens: slices.Clone(prompt), prompt: len(prompt), out: out}
			s.sampling.choice = uint64(choice)
			s.sampling.maxTokens = min(maxTokens, e.cfg.MaxModelLen-len(prompt))
			if q.n > 1 {
				s.id = strconv.Itoa(choice) + "_" + id
			}
			if q.fault.is(faultNoHandoff) {
				s.params.remoteDecode = false
			}
			seqs = append(seqs, s)
		}
	}
	return seqs
}

// readPrompts reads the four shapes of prompt: text, list of texts, token ids, list of lists of token ids.
func (q *generateRequest) readPrompts(f *fields, t tokenizer) {
	raw, ok := f.get("prompt")
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
		// The real engine lists what is wrong with each of the shapes; that there is an error, and where, is enough here.
		f.wrong("list_type", "prompt", "Input should be a valid list", raw)
	}
}

func (q *generateRequest) addText(text string, t tokenizer) {
	q.prompts = append(q.prompts, t.split(text))
	q.texts = append(q.texts, text)
}

// addTokens has negative ids refused by the request model; those too large are the handler's to refuse.
func (q *generateRequest) addTokens(f *fields, ids []int) {
	if i := slices.IndexFunc(ids, func(id int) bool { return id < 0 }); i >= 0 {
		raw := json.RawMessage(strconv.Itoa(ids[i]))
		f.wrong("greater_than_equal", "prompt."+strconv.Itoa(i), "Input should be greater than or equal to 0", raw)
	}
	q.prompts = append(q.prompts, ids)
	q.texts = append(q.texts, joinTokens(ids))
}

// chatMessage is one turn, its content as text.
type chatMessage struct{ role, text string }

// readMessages reads the messages of chat and of /v1/messages: content is text, or a list of parts whose texts count.
func readMessages(f *fields) []chatMessage {
	raw, ok := f.require("messages")
	if !ok {
		return nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || string(raw) == "null" {
		f.wrong("list_type", "messages", "Input should be a valid list", raw)
		return nil
	}
	messages := make([]chatMessage, 0, len(list))
	for i, raw := range list {
		where := "messages." + strconv.Itoa(i)
		var m map[string]json.RawMessage
		if json.Unmarshal(raw, &m) != nil || m == nil {
			f.wrong("dict_type", where, "Input should be a valid dictionary", raw)
			continue
		}
		one := fields{members: m}
		role, ok := one.members["role"]
		if !ok {
			f.wrong("missing", where+".role", "Field required", raw)
			continue
		}
		var c chatMessage
		if json.Unmarshal(role, &c.role) != nil {
			f.wrong("string_type", where+".role", "Input should be a valid string", role)
		}
		c.text = contentText(m["content"])
		messages = append(messages, c)
	}
	return messages
}

// contentText joins the text parts of a message; parts of other kinds have no tokens here.
func contentText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// requestID is the caller's, of several lines the first, or a fresh one.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	return randomHex(8)
}

// loneSurrogate finds \ud800…\udfff without its other half, which no tokenizer takes.
func loneSurrogate(body []byte) bool {
	text := string(body)
	for {
		i := strings.Index(text, `\u`)
		if i < 0 || i+6 > len(text) {
			return false
		}
		if i > 0 && escaped(text[:i]) {
			text = text[i+2:]
			continue
		}
		code, err := strconv.ParseUint(text[i+2:i+6], 16, 32)
		text = text[i+6:]
		if err != nil || code < 0xD800 || code > 0xDFFF {
			continue
		}
		if code >= 0xDC00 || len(text) < 6 || text[:2] != `\u` {
			return true
		}
		low, err := strconv.ParseUint(text[2:6], 16, 32)
		if err != nil || low < 0xDC00 || low > 0xDFFF {
			return true
		}
		text = text[6:]
	}
}

// escaped tells whether what follows text begins inside of an escape: an odd number of backslashes before it.
func escaped(text string) bool {
	n := len(text) - len(strings.TrimRight(text, `\`))
	return n%2 == 1
}
