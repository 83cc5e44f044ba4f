package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/web"
)

// request is what all APIs have in common once their bodies are read.
type request struct {
	model   string
	id      string // of the answer: the first request id
	rids    []string
	ridList bool // they came as a list
	prompts [][]int
	batch   bool // prompts came as a list
	n       int
	meeting meeting

	stream, includeUsage bool
	returnTokenIDs       bool
	temperature, topP    float64
	temperatureSet       bool
	maxTokens            *int
	sampling             core.Sampling
	salt                 string

	logprobs   int // alternatives for each token; -1: none wanted
	promptFrom int // first token of the prompt whose log probability is wanted; -1: none
	received   time.Time
	ranks      []int // that each prompt was sent to
}

// readSampling reads sampling parameters, whose names differ between the APIs in that of the limit.
func (q *request) readSampling(f *web.Fields, limit string) {
	q.n = f.Integer("n", 1)
	q.maxTokens = f.OptionalInteger(limit)
	_, q.temperatureSet = f.Get("temperature")
	q.temperature, q.topP = f.Float("temperature", 1), f.Float("top_p", 1)
	q.sampling = core.Sampling{
		IgnoreEOS:  f.Boolean("ignore_eos"),
		Stop:       f.Texts("stop"),
		StopTokens: f.Integers("stop_token_ids"),
	}
	for _, name := range []string{"min_tokens", "min_new_tokens"} {
		q.sampling.MinTokens += f.Integer(name, 0)
	}
	for _, name := range []string{"seed", "sampling_seed"} {
		q.sampling.Seed += uint64(f.Integer(name, 0))
	}
	q.sampling.IncludeStop = f.Boolean("no_stop_trim")
}

// readCommon reads the members that all APIs have in common.
func (c *call) readCommon(f *web.Fields) (*request, error) {
	q := &request{model: f.Text("model", ""), stream: f.Boolean("stream"), salt: f.Text("cache_salt", "") + f.Text("extra_key", ""),
		returnTokenIDs: f.Boolean("return_token_ids"), logprobs: -1, promptFrom: -1, received: time.Now()}
	if raw := f.Object("stream_options"); raw != nil {
		if options := web.ReadObject(raw); options != nil {
			q.includeUsage = options.Boolean("include_usage")
			f.Problems = append(f.Problems, options.Problems...)
		}
	}
	if raw, ok := f.Get("rid"); ok {
		var one string
		switch {
		case json.Unmarshal(raw, &one) == nil:
			q.rids = []string{one}
		case json.Unmarshal(raw, &q.rids) != nil:
			f.Wrong("string_type", "rid", "Input should be a valid string", raw)
		default:
			q.ridList = true
		}
	}
	var err error
	q.meeting, err = c.readMeeting(f)
	return q, err
}

// name gives every prompt its request id. The error breaks the handler.
func (q *request) name() error {
	switch {
	case q.ridList && (!q.batch || len(q.rids) < len(q.prompts)):
		return errBroken
	case q.ridList:
	case len(q.rids) == 1 && q.batch:
		base := q.rids[0]
		q.rids = nil
		for i := range q.prompts {
			q.rids = append(q.rids, base+"_"+strconv.Itoa(i))
		}
	case len(q.rids) == 0:
		for range q.prompts {
			q.rids = append(q.rids, sglang.NewRID())
		}
	}
	q.id = q.rids[0]
	return nil
}

// check returns what the handler refuses: values, and prompts that are too long with their answers.
func (q *request) check(cfg *sglang.Config) error {
	switch {
	case q.temperature < 0:
		return badValue("temperature must be a non-negative finite number, got %s.", pyjson.FormatFloat(q.temperature))
	case q.topP <= 0 || q.topP > 1:
		return badValue("top_p must be in (0, 1], got %s.", pyjson.FormatFloat(q.topP))
	case q.maxTokens != nil && *q.maxTokens < 0:
		return badValue("max_new_tokens must be at least 0, got %d.", *q.maxTokens)
	case q.maxTokens != nil && q.sampling.MinTokens > *q.maxTokens:
		return badValue("min_new_tokens must be in [0, max_new_tokens(%d)], got %d.", *q.maxTokens, q.sampling.MinTokens)
	case q.n < 1:
		return badValue("n must be at least 1, got %d.", q.n)
	}
	limit := cfg.ContextLength
	for _, p := range q.prompts {
		if len(p) >= limit {
			return badValue("The input (%d tokens) is longer than the model's context length (%d tokens).", len(p), limit)
		}
		if q.maxTokens != nil && len(p)+*q.maxTokens > limit {
			return badValue("Requested token count exceeds the model's maximum context length of %d tokens. You requested a total of %d tokens: "+
				"%d tokens from the input messages and %d tokens for the completion. Please reduce the number of tokens in the input messages or "+
				"the completion to fit within the limit.", limit, len(p)+*q.maxTokens, len(p), *q.maxTokens)
		}
	}
	if r := q.meeting.rank; r != nil && (*r < 0 || *r >= cfg.Ranks) {
		return badValue("routed_dp_rank=%d out of range [0, %d)", *r, cfg.Ranks)
	}
	return nil
}

// requests makes what the engine gets for each prompt. maxTokens is the API's default for answers without a limit.
func (q *request) requests(cfg *sglang.Config, maxTokens int) ([]*sglang.Request, error) {
	if q.maxTokens != nil {
		maxTokens = *q.maxTokens
	}
	list := make([]*sglang.Request, len(q.prompts))
	for i, p := range q.prompts {
		at, err := q.meeting.of(i, q.batch)
		if err != nil {
			return nil, err
		}
		r := &sglang.Request{RID: q.rids[i], Prompt: p, Sampling: q.sampling, Salt: q.salt, Stream: q.stream, Rendezvous: at, Rank: q.meeting.rank}
		if q.promptFrom >= 0 {
			r.Salt += r.RID // the log probabilities of a prompt need it to be computed
		}
		r.Sampling.MaxTokens = max(1, min(maxTokens, cfg.ContextLength-len(p)))
		list[i] = r
	}
	return list, nil
}

// addPrompts reads the four shapes of a prompt: text, list of texts, token ids, list of lists of token ids.
func (q *request) addPrompts(f *web.Fields, name string, t model.Tokenizer) {
	raw, ok := f.Get(name)
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
		q.prompts = append(q.prompts, t.Split(text))
	case json.Unmarshal(raw, &ids) == nil:
		q.prompts = append(q.prompts, ids)
	case json.Unmarshal(raw, &texts) == nil:
		q.batch = true
		for _, text := range texts {
			q.prompts = append(q.prompts, t.Split(text))
		}
	case json.Unmarshal(raw, &lists) == nil:
		q.batch = true
		q.prompts = append(q.prompts, lists...)
	default:
		f.Wrong("list_type", name, "Input should be a valid list", raw)
	}
}

// run is the generation of all answers to a request.
type run struct {
	handler *handler
	call    *call
	request *request
	parts   []*core.Generation // one for each prompt
	release func()
}

// form is how the requests of one API are read and answered.
type form struct {
	read      func(c *call, f *web.Fields) (*request, error)
	maxTokens int // of a request that names no limit
	stream    func(r *run)
	whole     func(r *run, answers []answer) any // the body of an answer that is no stream
}

// serve serves a call that generates.
func (h *handler) serve(c *call, in form) {
	f := c.object()
	if f == nil {
		return
	}
	q, err := in.read(c, f)
	if err != nil {
		c.fail(err)
		return
	}
	r := h.submit(c, q, in.maxTokens)
	if r == nil {
		return
	}
	defer r.end()
	if q.stream {
		in.stream(r)
		return
	}
	if answers, ok := r.collect(); ok {
		c.JSON(http.StatusOK, in.whole(r, answers))
	}
}

// submit checks a request and queues it, or answers and returns nil. The caller calls end on the result.
func (h *handler) submit(c *call, q *request, maxTokens int) *run {
	err := q.name()
	if err == nil {
		err = q.check(&h.cfg)
	}
	if err == nil && web.LoneSurrogate(c.Body) {
		err = badValue("TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]")
	}
	var list []*sglang.Request
	if err == nil {
		list, err = q.requests(&h.cfg, maxTokens)
	}
	if err != nil {
		c.fail(err)
		return nil
	}
	release, used := h.engine.Take(q.rids)
	if release == nil {
		c.fail(badValue("Duplicate request ID detected: %s", used))
		return nil
	}
	r := &run{handler: h, call: c, request: q, release: release}
	for _, one := range list {
		g, rank, err := h.engine.Submit(one, q.n)
		if err != nil { // a scheduler has died
			r.end()
			h.hang(c.R)
		}
		r.parts = append(r.parts, g)
		q.ranks = append(q.ranks, rank)
	}
	return r
}

// end frees what is left of a run.
func (r *run) end() {
	for _, g := range r.parts {
		g.Abort()
	}
	r.release()
}

// answer is what the engine has generated for one prompt and choice.
type answer struct {
	prompt     int // its index
	tokens     []int
	pieces     []string // of text, one for each token
	finish     string
	stopReason any
	usage      core.PromptUsage
	first      time.Time
	failure    *sglang.Failure
}

func (a *answer) add(out core.Output) {
	if a.first.IsZero() {
		a.first = time.Now()
	}
	a.finish, a.stopReason = out.Finish, out.StopReason
	if out.Token < 0 {
		return
	}
	a.usage = out.Usage
	a.tokens = append(a.tokens, out.Token)
	if _, ok := out.StopReason.(int); ok { // the token that ends an answer has no text
		out.Text = ""
	}
	a.pieces = append(a.pieces, out.Text)
}

func (a *answer) text() string {
	text := ""
	for _, p := range a.pieces {
		text += p
	}
	return text
}

// last returns the text of the last token.
func (a *answer) last() string {
	if len(a.pieces) == 0 {
		return ""
	}
	return a.pieces[len(a.pieces)-1]
}

// finishName returns the finish reason in the OpenAI APIs.
func (a *answer) finishName() *string {
	if a.finish == "" {
		return nil
	}
	return &a.finish
}

// matched returns what ended the answer, if anything in it did.
func (a *answer) matched() any {
	if a.finish == "stop" && a.stopReason == nil {
		return model.EOS
	}
	return a.stopReason
}

// finishReason is the finish reason of /generate.
func (a *answer) finishReason(cfg *sglang.Config) any {
	switch {
	case a.failure != nil:
		return pyjson.Object{member("type", "abort"), member("message", a.failure.Message), member("status_code", a.failure.Status), member("err_type", nil)}
	case a.finish == "":
		return nil
	case a.finish == sglang.FinishAbort:
		return pyjson.Object{member("type", "abort"), member("message", "Aborted"), member("status_code", nil), member("err_type", nil)}
	case a.finish == "length":
		length := len(a.tokens)
		if cfg.Mode == sglang.Prefill {
			length = 0
		}
		return pyjson.Object{member("type", "length"), member("length", length)}
	}
	return pyjson.Object{member("type", "stop"), member("matched", a.matched())}
}

// newAnswers makes an empty answer for each prompt and choice.
func (q *request) newAnswers() []answer {
	list := make([]answer, len(q.prompts)*q.n)
	for i := range list {
		list[i].prompt = i / q.n
	}
	return list
}

// collect waits for all whole answers. If one fails, collect answers with its failure and returns false, as it does when the client
// has left. The engine looks for that only once in a while.
func (r *run) collect() ([]answer, bool) {
	ctx, cancel := r.poll()
	defer cancel()
	var failed *sglang.Failure
	answers, ok := r.events(ctx, func(a *answer, _ int, _ core.Output) bool {
		failed = a.failure
		return failed == nil
	})
	if failed != nil {
		r.call.fail(failed)
	}
	return answers, ok
}

// event is one output of one of the prompts.
type event struct {
	prompt int
	out    core.Output
	err    error
}

// events calls see for each output until all answers have ended, see returns false or ctx ends. Of the last two it returns false.
func (r *run) events(ctx context.Context, see func(a *answer, index int, out core.Output) bool) ([]answer, bool) {
	answers := r.request.newAnswers()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	next := r.merge(ctx)
	for open := len(answers); open > 0; {
		e := next()
		if e.err != nil {
			return nil, false
		}
		index := e.prompt*r.request.n + e.out.Index
		a := &answers[index]
		a.add(e.out)
		if e.out.Err != nil {
			var alive bool
			if a.failure, alive = failureOf(e.out.Err); !alive {
				r.handler.hang(r.call.R)
			}
		}
		if a.finish != "" || a.failure != nil {
			open--
		}
		if !see(a, index, e.out) {
			return nil, false
		}
	}
	return answers, true
}

// merge returns a function that waits for the next output of any prompt.
func (r *run) merge(ctx context.Context) (next func() event) {
	of := func(prompt int) event {
		out, err := r.parts[prompt].Next(ctx)
		return event{prompt, out, err}
	}
	if len(r.parts) == 1 {
		return func() event { return of(0) }
	}
	all := make(chan event)
	for i := range r.parts {
		go func() {
			for e := of(i); e.err == nil; e = of(i) {
				select {
				case all <- e:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return func() event {
		select {
		case e := <-all:
			return e
		case <-ctx.Done():
			return event{err: ctx.Err()}
		}
	}
}

// poll returns a context that ends at the first look at the client after it has left.
func (r *run) poll() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	tick := time.NewTicker(r.handler.cfg.Times.Poll)
	go func() {
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if r.call.Ctx().Err() != nil {
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, cancel
}
