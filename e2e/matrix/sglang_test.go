package matrix

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/sglang"
)

// sglangPair is SGLang's protocol. Its decode engine computes no prompts.
var sglangPair = &protocol{name: "sglang", dialect: sglangDialect(), text: "testdata/sglang.txt", head: sglangHead, list: sglangFailures,
	effects: sglangEffects(), ways: sglangWays(),
	start: func(t *testing.T, r row, role pd.Role) *engine {
		if role == pd.RolePrefill|pd.RoleDecode {
			return startSGLang(t, sglang.Plain, time.Hour)
		}
		return startSGLang(t, map[pd.Role]sglang.Mode{pd.RolePrefill: sglang.Prefill, pd.RoleDecode: sglang.Decode}[role], r.poll())
	},
	apis:        []pd.API{pd.APICompletions, pd.APIChat, pd.APIResponses, pd.APIMessages, pd.APISGLang},
	firstEvents: map[pd.API]int{pd.APICompletions: 1, pd.APIChat: 2, pd.APIResponses: 5, pd.APIMessages: 3, pd.APISGLang: 1}}

func sglangDialect() dialect.Dialect {
	d, _ := dialect.New("sglang", dialect.Options{Ask: askPatiently})
	return d
}

// askPatiently asks a prefill pod: the sidecar itself takes a second without an answer for a failure, for which machines may stand still.
func askPatiently(ctx context.Context, prefill pd.Target, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+prefill.String()+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

const (
	// transferFailsPair is a decode leg that fails. The next candidate gets both legs, since decode cannot compute the prompt.
	transferFailsPair effect = "transfer fails, of a pair"
	// candidateSilent is a prefill pod that does not say where its bootstrap server is: it gets no leg, and decode none for it.
	candidateSilent effect = "candidate silent"
)

// startSGLang serves an engine of SGLang's until the test ends, or the test closes it. What it holds of a leg, only an abort or the end
// of a stream's connection frees: its own time-outs are long, except for the one after which decode frees pages into which a prefill
// engine that has died might still write. poll is how often it looks whether the client of a whole answer has left.
func startSGLang(t *testing.T, mode sglang.Mode, poll time.Duration) *engine {
	t.Helper()
	data, admin := listen(t)
	host, _, err := net.SplitHostPort(data.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	cfg := sglang.Config{Mode: mode, HeaderOverrides: true, ContextLength: 512, Times: sglang.Times{Bootstrap: lease, Waiting: lease,
		Poll: poll, Release: time.Second, CrashHang: time.Millisecond, Health: time.Millisecond}}
	if mode == sglang.Prefill {
		cfg.Bootstrap = net.JoinHostPort(host, "0")
	}
	s, err := server.ServeSGLang(cfg, data, admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	of := func(st sglang.State) load {
		return load{requests: st.Requests, held: st.Held, used: st.Blocks.Used, live: st.Live + st.Deferred, read: st.KVBytesRead, foreign: st.ForeignReads}
	}
	return &engine{s.URL, s.Faults, s.Handler, s.Close, s.Engine.Done(), func() load { return of(s.Engine.State()) },
		func(ctx context.Context, ok func(load) bool) (load, error) {
			st, err := s.Engine.WaitState(ctx, func(st sglang.State) bool { return ok(of(st)) })
			return of(st), err
		}, data}
}

// poll returns how often the engines look whether clients have left: hardly ever, so that only aborts end legs, unless one leg may fail
// before the other one has come to its engine, which then takes no notice of the abort.
func (r row) poll() time.Duration {
	if r.action != noAction || r.quick {
		return time.Hour
	}
	return time.Second
}

// sglangFailures are those of a pair whose prefill engine answers when decode has the KV cache: until then decode waits for prefill, or
// prefill for decode.
func sglangFailures() []failure {
	list := slices.Concat(
		in(received, bodyFailures),
		in(prefilling, []failure{
			{name: "port closed", prefill: fault.Fault{Fault: "refuse"}, effect: candidateSilent, cause: "attempt"},
			{name: "crash", prefill: onPrefill("crash", ""), effect: candidateFails, cause: "connection"},
		}, named(prefillFailures, "refuse", "reset-before", "slow", "slow, stop", "status 400", "status 404", "status 408", "status 429",
			"status 500", "status 502", "status 503", "status 504", "client gone", "drain deadline")),
		in(handedOff, []failure{
			{name: "prefill does not answer", prefill: at("headers", onPrefill("slow", "stop")), effect: served},
		}),
		in(beforeHeaders, []failure{
			{name: "prefill dies", decode: onDecode("slow", "stop"), action: kill, effect: candidateFails, cause: "connection"},
		}, without("prefill crashes", without("prefill stands still", headerFailures))),
		in(beforeEvent, eventFailures),
		in(streaming, streamFailures),
	)
	for i := range list {
		s := &list[i]
		s.release, s.lost = byEffect, notLost
		if s.effect == transferFails {
			s.effect = transferFailsPair
		}
		if s.state == streaming {
			s.form = stream // of a whole answer the client has nothing before the sidecar has all
		}
	}
	return list
}

// named returns the failures with these names.
func named(list []failure, names ...string) []failure {
	return slices.DeleteFunc(slices.Clone(list), func(s failure) bool { return !slices.Contains(names, s.name) })
}

// computesNone is the refusal of a request for which no prefill candidate is left.
func computesNone(attempts string, decodes int) outcome {
	return outcome{503, "refused;reason=decode-only" + attempts, refusal, decodes}
}

func sglangEffects() map[effect][situations]outcome {
	m := maps.Clone(concurrentEffects())
	m[candidateFails] = [situations]outcome{
		another:     {200, "remote;reason=external;attempts=2;candidate=1", rightTokens, 2},
		last:        computesNone(";attempts=1;candidate=0", 1),
		forced:      forbidden(1),
		budgetEmpty: computesNone(";attempts=1;candidate=0", 1),
	}
	m[transferFailsPair] = m[candidateFails]
	m[candidateSilent] = [situations]outcome{
		another:     {200, "remote;reason=external;attempts=1;candidate=1", rightTokens, 1},
		last:        computesNone("", 0),
		forced:      {502, "refused;reason=prefill-failed", refusal, 0},
		budgetEmpty: computesNone("", 0),
	}
	return m
}

func sglangWays() map[effect]way {
	m := maps.Clone(concurrentWays)
	m[transferFailsPair] = byAbort
	return m
}

const sglangHead = `What a client gets from SGLang's engines, as matrix.txt shows it for vLLM's.

Each case holds for streams and whole answers, for chat, completions, responses, messages and SGLang's own call, unless it says
otherwise. Both legs are sent at once. Prefill answers when decode has the KV cache, and decode computes no prompts. The sidecar
asks both engines to abort each attempt that it gives up [by abort]. Neither then holds anything of it, but decode keeps pages for
a time of its own if prefill has died. Two prompts, and two choices, in one whole answer have the same outcomes.
`

// ofSGLang returns the row if it is run. Where a forced request or an empty budget has another outcome, and where seconds pass, half of
// the forms and APIs are run, as in the short form of the tests.
func (r row) ofSGLang() []row {
	half := r.stream == (r.api == pd.APIChat || r.api == pd.APIMessages)
	status := r.prefill.Fault == "status" || r.decode.Fault == "status"
	switch {
	case r.situation > last && (!half || r.expected(r.situation) == r.expected(last)), r.quick && (!half || r.situation != last), testing.Short() && !half:
		return nil
	case r.api == pd.APIResponses && status && !slices.Contains([]string{"400", "500"}, r.prefill.Arg+r.decode.Arg):
		return nil // it has no others
	}
	r.keeper = none
	list := []row{r}
	if !r.stream && !r.quick && r.situation <= last && (r.api == pd.APICompletions || r.api == pd.APISGLang) {
		for _, k := range []several{twoPrompts, twoChoices} {
			r.several = k
			list = append(list, r)
		}
	}
	return list
}

// bodyOfSGLang is body for SGLang's engines.
func (r row) bodyOfSGLang() []byte {
	m := map[string]any{"model": "tiny", "max_tokens": 8, "temperature": 0, "ignore_eos": true, "stream": r.stream}
	text := strings.Repeat("the quick brown fox ", 6)
	ids := make([]int, 100)
	for i := range ids {
		ids[i] = 20 + i*7
	}
	choices, prompt := 1, any(ids)
	switch r.several {
	case twoChoices:
		choices = 2
	case twoPrompts:
		prompt = [][]int{ids, ids[1:]}
	}
	switch r.api {
	case pd.APIChat, pd.APIMessages:
		m["messages"] = []any{map[string]any{"role": "user", "content": text}}
	case pd.APIResponses:
		delete(m, "max_tokens")
		m["max_output_tokens"], m["input"] = 10, text // it generates two less
	case pd.APISGLang:
		m = map[string]any{"input_ids": prompt, "stream": r.stream,
			"sampling_params": map[string]any{"max_new_tokens": 8, "temperature": 0, "ignore_eos": true, "n": choices}}
	default:
		m["prompt"], m["n"] = prompt, choices
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return b
}
