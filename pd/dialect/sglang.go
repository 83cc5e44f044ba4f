package dialect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// sglang is the concurrent protocol of SGLang's disaggregation modes: both engines get the request at once, with the number of a
// room. Decode finds prefill at its bootstrap server, prefill sends the KV cache into the room, and both answer. Measured on
// SGLang 0.5.23.
type sglang struct {
	port    int // of bootstrap servers; 0: each prefill pod says it
	ask     func(ctx context.Context, prefill pd.Target, path string) ([]byte, error)
	mu      sync.Mutex
	servers map[pd.Target]sglangServer
	proved  map[pd.Target]string // the last process of each pod that has handed a request over
}

// sglangServer is what a prefill pod says of itself.
type sglangServer struct {
	port  int // of its bootstrap server
	ranks int // data-parallel ranks
	// started differs between two processes; "" if the pod has not said it.
	started string
	asked   time.Time
}

const (
	// serverTrust is how long the answer of a prefill pod is used. A pod that is started anew may have another port.
	serverTrust = time.Minute
	// serverDoubt is how old the answer must be for a failed attempt to have the pod asked again: the answer has 37 KB.
	serverDoubt = time.Second
	// sglangBootstrapPort is SGLang's default.
	sglangBootstrapPort = 8998
	// maxRoom is the largest room: those of a batch follow the first, and SGLang reads them as unsigned 64-bit numbers. Room 0 hangs
	// the decode engine, and a negative one ends the prefill engine.
	maxRoom = 1<<63 - 1 - maxSGLangPrompts
	// maxSGLangPrompts is the most prompts of a request that is split.
	maxSGLangPrompts = 1024
	// maxSGLangChoices is the most choices of a request that is split.
	maxSGLangChoices = 128
)

func newSGLang(o Options) Dialect {
	return &sglang{port: o.BootstrapPort, ask: o.Ask, servers: map[pd.Target]sglangServer{}, proved: map[pd.Target]string{}}
}

// Shape implements Dialect.
func (*sglang) Shape() Shape { return Concurrent }

// Attempt implements Dialect.
func (d *sglang) Attempt(ctx context.Context, r *request.Request, prefill pd.Target) (Attempt, error) {
	server, err := d.server(ctx, prefill)
	if err != nil {
		return nil, err
	}
	a := &sglangAttempt{dialect: d, request: r, api: r.API, lacks: r.PrefillLogprobs(), prefill: prefill, room: 1 + rand.Uint64N(maxRoom), server: server}
	if server.ranks > 1 {
		a.rank = pd.RankOf(rand.IntN(server.ranks))
	}
	for i := range a.ids {
		a.ids[i] = fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
	}
	return a, nil
}

// server returns what a prefill pod says of itself. With a port of the operator's, a pod that cannot be asked is taken to have one
// rank.
func (d *sglang) server(ctx context.Context, prefill pd.Target) (sglangServer, error) {
	known, current := d.known(prefill)
	if current {
		return known, nil
	}
	s, err := d.askServer(ctx, prefill)
	if err != nil {
		d.forget(prefill, 0)
		if d.port == 0 {
			return s, fmt.Errorf("asking the prefill pod for its bootstrap port: %w", err)
		}
		return sglangServer{port: d.port, ranks: 1}, nil
	}
	if d.port != 0 {
		s.port = d.port
	}
	s.asked = time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.servers) >= maxServers {
		clear(d.servers)
	}
	d.servers[prefill] = s
	return s, nil
}

// known returns what is known of a prefill pod. current is false for the one caller that is to ask it again: for others, what is known
// serves until then.
func (d *sglang) known(prefill pd.Target) (s sglangServer, current bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.servers[prefill]
	if ok && time.Since(s.asked) >= serverTrust {
		s.asked = time.Now()
		d.servers[prefill] = s
		return s, false
	}
	return s, ok
}

// maxServers bounds the prefill pods that are remembered.
const maxServers = 4096

var errNotPrefill = errors.New("the engine runs in another mode than prefill: start it with --disaggregation-mode prefill")

// askServer reads a prefill pod's /server_info.
func (d *sglang) askServer(ctx context.Context, prefill pd.Target) (sglangServer, error) {
	if d.ask == nil {
		return sglangServer{port: sglangBootstrapPort, ranks: 1}, nil
	}
	answer, err := d.ask(ctx, prefill, "/server_info")
	if err != nil {
		return sglangServer{}, err
	}
	var info struct {
		Mode  string `json:"disaggregation_mode"`
		Port  int    `json:"disaggregation_bootstrap_port"`
		Ranks int    `json:"dp_size"`
		// Which process it is: by default a random number, and how long its start took to the nanosecond.
		Seed  json.RawMessage `json:"random_seed"`
		Start json.RawMessage `json:"startup_time"`
	}
	if err := json.Unmarshal(answer, &info); err != nil {
		return sglangServer{}, fmt.Errorf("reading its /server_info: %w", err)
	}
	if info.Mode != sglangPrefill {
		return sglangServer{}, errNotPrefill
	}
	if info.Port < 1 || info.Port > 65535 {
		return sglangServer{}, fmt.Errorf("its /server_info names the bootstrap port %d", info.Port)
	}
	return sglangServer{port: info.Port, ranks: info.Ranks, started: string(info.Seed) + string(info.Start)}, nil
}

// forget has a prefill pod asked again at its next attempt, if what is known of it is at least so old.
func (d *sglang) forget(prefill pd.Target, age time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.servers[prefill].asked) >= age {
		delete(d.servers, prefill)
	}
}

// Strips implements Stripper: besides the bootstrap members, the ids by whose beginnings requests are aborted, and the ranks.
func (*sglang) Strips() []string {
	return []string{"rid", "request_id", "bootstrap_pair_key", "decode_tp_size", "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"}
}

// StripsHeader implements HeaderStripper: headers that stand for members of the body.
func (*sglang) StripsHeader(name string) bool {
	return strings.HasPrefix(name, sglangOverride) || name == rankHeader
}

// sglangOverride begins the names of headers that stand for members of the body.
const sglangOverride = "X-Override-"

// MaxChoices implements PerChoice: all choices of a request would share one room, which hangs or ends an engine.
func (*sglang) MaxChoices() int { return maxSGLangChoices }

// Fit implements Fitter.
func (*sglang) Fit(r *request.Request) request.Fit { return r.FitSGLang() }

// APIs implements Caller.
func (*sglang) APIs() []pd.API { return []pd.API{pd.APISGLang} }

// sglangPages are the calls, besides those that generate, that clients, pickers and monitors may send to an engine. Others end the
// requests of all clients (/abort_request, /flush_cache), show every flag, an API key among them (/server_info), or have the engine
// generate without a hand-off.
var sglangPages = map[string][]string{
	http.MethodGet:  {"/health", "/health_generate", "/ready", "/ping", "/metrics", "/metrics/", "/v1/models", "/v1/loads", "/model_info", "/get_model_info"},
	http.MethodPost: {"/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize", "/v1/messages/count_tokens"},
}

// Passes implements PathLimiter. The name of a model may have slashes, but no path leads out of the list.
func (*sglang) Passes(method, of string) bool {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	return slices.Contains(sglangPages[method], of) || method == http.MethodGet && strings.HasPrefix(of, "/v1/models/") && path.Clean(of) == of
}

// KeepsLimits implements LimitKeeper.
func (*sglang) KeepsLimits() {}

// Regenerates implements Regenerator.
func (*sglang) Regenerates() {}

// Checks implements Checker: responses and messages always have a prompt, which the engine's template makes.
func (*sglang) Checks(api pd.API) bool {
	return api == pd.APICompletions || api == pd.APIChat || api == pd.APISGLang
}

// Check implements Checker.
func (*sglang) Check(r *request.Request) error {
	switch n, empty, ok := r.Prompts(); {
	case !r.OnlyIDs():
		return errNotIDs
	case empty:
		return errEmptyPrompt
	case !ok || n > maxSGLangPrompts:
		return fmt.Errorf("its prompts cannot be read: it must have 1 to %d, all of them texts, or all of them lists of token ids", maxSGLangPrompts)
	}
	return nil
}

// errNotIDs: SGLang looks at no token id before it looks up its embedding. One that is negative, or that is not in the vocabulary, ends
// the engine.
var errNotIDs = errors.New("its token ids must be integers from 0 to 999999, without a fraction or an exponent")

// errEmptyPrompt: an empty prompt ends the engines that compute it.
var errEmptyPrompt = errors.New("a prompt of it is empty, and SGLang computes none")

// AnswersAfterTransfer implements AfterTransfer.
func (*sglang) AnswersAfterTransfer() {}

// HealthPath implements Prober: /health has the engine generate a token, which takes a second.
func (*sglang) HealthPath() string { return "/ready" }

// The modes of an engine.
const (
	sglangPlain   = "null"
	sglangPrefill = "prefill"
	sglangDecode  = "decode"
)

// ModePath implements Moded.
func (*sglang) ModePath() string { return "/model_info" }

// Whole implements Moded: only an engine without disaggregation serves requests alone.
func (*sglang) Whole(answer []byte) (bool, error) {
	var info struct {
		Mode *string `json:"disaggregation_mode"`
	}
	if err := json.Unmarshal(answer, &info); err != nil {
		return false, fmt.Errorf("reading its /model_info: %w", err)
	}
	return info.Mode == nil || *info.Mode == sglangPlain || *info.Mode == "", nil
}

// What answers to requests that were aborted have in them: those of chat and completions, of SGLang's own call, and of responses. Quotes
// in a text are escaped, so no text contains them. Messages that were aborted end as others do.
var (
	sglangAbort          = body.NewMark(`"abort"`, 'b') // in the next two: one search for most events
	sglangAborted        = []byte(`"finish_reason":"abort"`)
	sglangAbortedOwn     = []byte(`"finish_reason":{"type":"abort"`)
	sglangFailedResponse = body.NewMark(`"error":{"code":"server_error"`, 'v')
)

// Unfinished implements Unfinisher. An engine aborts requests for its own time-outs, for a transfer that failed, and when an operator
// posts /abort_request.
func (*sglang) Unfinished(answer []byte) bool {
	return sglangAbort.In(answer) && (bytes.Contains(answer, sglangAborted) || bytes.Contains(answer, sglangAbortedOwn)) ||
		sglangFailedResponse.In(answer)
}

// ClientsAbort implements Unfinisher: /abort_request is not for clients.
func (*sglang) ClientsAbort() bool { return false }

// OwnFailure implements StatusReader: /v1/responses wraps other statuses into a 400, whose message begins with them.
func (*sglang) OwnFailure(answer []byte) bool {
	var wrapped struct{ Error struct{ Message string } }
	return json.Unmarshal(answer, &wrapped) == nil && strings.HasPrefix(wrapped.Error.Message, "5") && strings.Index(wrapped.Error.Message, ": ") == len("500")
}

// sglangAttempt is an attempt, and its hand-off.
type sglangAttempt struct {
	dialect *sglang
	request *request.Request // only until decode has answered, which may be before prefill: its body is dropped then
	api     pd.API
	lacks   bool // decode's answer lacks what only prefill computes
	prefill pd.Target
	room    uint64
	server  sglangServer
	rank    pd.Rank         // of the prefill engine; none if it has one only
	decode  pd.Rank         // of the decode engine; none: that chooses
	ids     [2]string       // of the legs, prefill's first. No id is the beginning of another: engines abort by beginnings.
	missing *sglangLogprobs // in decode's answer; nil before Accept, or if it lacks none
}

// sglangID is the member that has the id of a leg. Messages have none: SGLang takes their id from a header, if it is started with
// SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1, and else notices a client that left by its connection.
var sglangID = map[pd.API]string{pd.APIChat: "rid", pd.APICompletions: "rid", pd.APISGLang: "rid", pd.APIResponses: "request_id"}

// id returns the id of a leg in the form of its API.
func (a *sglangAttempt) id(leg int) string {
	if a.api == pd.APIResponses {
		return "resp_" + a.ids[leg]
	}
	return a.ids[leg]
}

// SetHeader implements HeaderSetter.
func (a *sglangAttempt) SetHeader(role pd.Role, of http.Header) {
	if a.api == pd.APIMessages {
		of.Set(sglangOverride+"Rid", a.id(legOf(role)))
	}
}

// legOf returns the index of a role's leg.
func legOf(role pd.Role) int {
	if role == pd.RolePrefill {
		return 0
	}
	return 1
}

// edit begins a leg: the client's request with the room.
func (a *sglangAttempt) edit(leg int) (*request.Edit, error) {
	e, err := a.request.Edit()
	if err != nil {
		return nil, err
	}
	if member := sglangID[a.request.API]; member != "" {
		e.Set(member, strconv.AppendQuote(nil, a.id(leg)))
	}
	e.Set("bootstrap_host", strconv.AppendQuote(nil, a.prefill.Host))
	e.Set("bootstrap_port", strconv.AppendInt(nil, int64(a.server.port), 10))
	e.Set("bootstrap_room", strconv.AppendUint(nil, a.room, 10))
	setRank(e, "disagg_prefill_dp_rank", a.rank)
	return e, nil
}

// setRank names a rank, if there is one to name.
func setRank(e *request.Edit, member string, r pd.Rank) {
	if number, ok := r.Number(); ok {
		e.Set(member, strconv.AppendInt(nil, int64(number), 10))
	}
}

// UseRanks implements Ranked.
func (a *sglangAttempt) UseRanks(prefill, decode pd.Rank) {
	if number, ok := prefill.Number(); ok && number < a.server.ranks && a.server.ranks > 1 {
		a.rank = prefill
	}
	a.decode = decode
}

// Prefill implements Attempt. The engine computes one token, whatever the limit; it must not stream, and not store a response. An
// engine with ranks chooses one by the room, unless it is told; disagg_prefill_dp_rank alone only says where decode looks.
func (a *sglangAttempt) Prefill() (request.Payload, error) {
	e, err := a.edit(0)
	if err != nil {
		return request.Payload{}, err
	}
	setRank(e, "routed_dp_rank", a.rank)
	if a.request.Stream() {
		e.Set("stream", jsonFalse)
		e.Drop("stream_options")
	}
	if a.request.API == pd.APIResponses {
		e.Set("store", jsonFalse)
	}
	return e.Payload()
}

// Decode implements Handoff.
func (a *sglangAttempt) Decode() (request.Payload, error) {
	e, err := a.edit(1)
	if err != nil {
		return request.Payload{}, err
	}
	setRank(e, "routed_dp_rank", a.decode)
	return e.Payload()
}

// Handoff implements Rendezvous.
func (a *sglangAttempt) Handoff() Handoff { return a }

// sglangAnswers are the members, one of which an answer has: choices of chat and completions, the output of a response, the content of
// a message, and meta_info of SGLang's own call, whose answer to several prompts is a list.
var sglangAnswers = body.NewTable(body.Want{Path: "choices"}, body.Want{Path: "output"}, body.Want{Path: "content"}, body.Want{Path: "meta_info"})

// Accept implements Attempt. Prefill answers when it has sent the KV cache; of the answer only its end matters.
func (a *sglangAttempt) Accept(answer []byte) (Handoff, error) {
	var s body.Scanner
	if err := s.Scan(sglangAnswers, body.Limits{}, answer); err != nil {
		return nil, fmt.Errorf("reading the prefill answer: %w", err)
	}
	list := s.Root().Kind == body.Array && s.Root().Count > 0 && s.Root().First == body.Object && a.api == pd.APISGLang
	if len(s.Members()) == 0 && !list {
		return nil, ErrNoHandoff
	}
	if a.dialect.Unfinished(answer) {
		return nil, errAborted
	}
	a.dialect.prove(a.prefill, a.server.started)
	if a.lacks {
		var err error
		if a.missing, err = readSGLangLogprobs(a.api, answer); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Lacks implements Completer.
func (a *sglangAttempt) Lacks() bool { return a.lacks }

// Complete implements Completer.
func (a *sglangAttempt) Complete(answer []byte) []byte { return a.missing.complete(answer) }

var errAborted = errors.New("the prefill engine ended its leg early")

// Abort implements Aborter.
func (a *sglangAttempt) Abort(role pd.Role) (path string, b []byte) {
	a.dialect.forget(a.prefill, serverDoubt)
	return "/abort_request", []byte(`{"rid":` + strconv.Quote(a.id(legOf(role))) + `}`)
}

var (
	_ Dialect        = (*sglang)(nil)
	_ Stripper       = (*sglang)(nil)
	_ HeaderStripper = (*sglang)(nil)
	_ Fitter         = (*sglang)(nil)
	_ PerChoice      = (*sglang)(nil)
	_ Unfinisher     = (*sglang)(nil)
	_ StatusReader   = (*sglang)(nil)
	_ Checker        = (*sglang)(nil)
	_ Moded          = (*sglang)(nil)
	_ AfterTransfer  = (*sglang)(nil)
	_ Prober         = (*sglang)(nil)
	_ Caller         = (*sglang)(nil)
	_ PathLimiter    = (*sglang)(nil)
	_ LimitKeeper    = (*sglang)(nil)
	_ Regenerator    = (*sglang)(nil)
	_ Rendezvous     = (*sglangAttempt)(nil)
	_ Aborter        = (*sglangAttempt)(nil)
	_ HeaderSetter   = (*sglangAttempt)(nil)
	_ Ranked         = (*sglangAttempt)(nil)
	_ Completer      = (*sglangAttempt)(nil)
	_ Rerouter       = (*sglangAttempt)(nil)
)
