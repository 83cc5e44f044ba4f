package matrix

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/trtllm"
)

// TensorRT-LLM's two protocols. Its generation engines serve whole requests, too.
var (
	contextFirst = &protocol{name: "trtllm", dialect: trtllmDialect("trtllm"), text: "testdata/trtllm.txt", head: contextFirstHead, list: contextFirstFailures,
		effects: effects, ways: ways, start: startTRTLLM, apis: trtllmAPIs, firstEvents: trtllmEvents}
	generationFirst = &protocol{name: "trtllm-generation-first", dialect: trtllmDialect("trtllm-generation-first"), text: "testdata/trtllm-generation-first.txt",
		head: generationFirstHead, list: generationFirstFailures, effects: generationFirstEffects(), ways: nil, start: startTRTLLM, apis: trtllmAPIs, firstEvents: trtllmEvents}
)

var (
	trtllmAPIs   = []pd.API{pd.APICompletions, pd.APIChat}
	trtllmEvents = map[pd.API]int{pd.APICompletions: 1, pd.APIChat: 2}
)

func trtllmDialect(name string) dialect.Dialect {
	d, _ := dialect.New(name, dialect.Options{Ask: askPatiently})
	return d
}

// startTRTLLM serves an engine of TensorRT-LLM's until the test ends, or the test closes it. What it keeps for another engine, only a
// read frees, but for a leg whose context engine is gone: that is given up after a while, as kv_transfer_timeout_ms has it.
func startTRTLLM(t *testing.T, r row, role pd.Role) *engine {
	t.Helper()
	data, admin := listen(t)
	cfg := trtllm.Config{MaxSeqLen: 512, Blocks: 40, Times: trtllm.Times{Transfer: lease}}
	if role == pd.RoleDecode && (r.action == kill || r.prefill.Fault != "" || r.protocol.name == "trtllm-generation-first") {
		cfg.Times.Transfer = shortly
	}
	s, err := server.ServeTRTLLM(cfg, data, admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	of := func(st trtllm.State) load {
		return load{requests: st.Requests, held: st.Held, used: st.Blocks.Used, pinned: st.Kept, live: st.Live, read: st.KVBytesRead, foreign: st.ForeignReads, expired: st.Expired}
	}
	return &engine{s.URL, s.Faults, s.Handler, s.Close, s.Engine.Done(), func() load { return of(s.Engine.State()) },
		func(ctx context.Context, ok func(load) bool) (load, error) {
			st, err := s.Engine.WaitState(ctx, func(st trtllm.State) bool { return ok(of(st)) })
			return of(st), err
		}, data}
}

// contextFirstFailures are those of a serial protocol whose decode engine tells prefill only that it has read.
func contextFirstFailures() []failure {
	list := withoutNotices(slices.Concat(
		in(received, bodyFailures),
		in(prefilling, withConnection(without("no-handoff", without("stale", prefillFailures)))),
		in(handedOff, without("hand-off too old", handoffFailures)),
		in(beforeHeaders, without("prefill stands still", headerFailures), againFailures()),
		in(beforeEvent, eventFailures),
		in(streaming, streamFailures),
	))
	for i := range list {
		s := &list[i]
		again := strings.HasPrefix(s.name, every)
		switch {
		case s.state == streaming:
			s.form = stream // of a whole answer the client has nothing before the sidecar has all
		case s.state == beforeEvent, s.action == kill, s.decode.At == "headers", s.effect == redoLost, s.effect == decodeGone:
			s.either = true
		case s.decode.Fault == "refuse" && s.effect == transferFails, s.decode.Fault == "reset-before" && s.effect == transferFails:
			s.either, s.lost = true, maybeRead
		case again && s.status == 503:
			s.lost = decodeLost
		case s.state == beforeHeaders && s.action == outwait:
			s.lost = decodeSilent
		}
	}
	return list
}

// withConnection has a crash end the connection: no other process answers.
func withConnection(list []failure) []failure {
	list = slices.Clone(list)
	for i := range list {
		if list[i].prefill.Fault == "crash" {
			list[i].cause = "connection"
		}
	}
	return list
}

// generationFirstFailures are those of a pair whose prefill engine answers before decode has the KV cache.
func generationFirstFailures() []failure {
	list := withoutNotices(slices.Concat(
		in(received, bodyFailures),
		in(prefilling, []failure{{name: "port closed", prefill: fault.Fault{Fault: "refuse"}, effect: candidateSilent, cause: "attempt"}},
			withConnection(without("port closed", without("no-handoff", without("stale", without("slow, stop, all of the engine", prefillFailures)))))),
		in(beforeHeaders, []failure{{name: "prefill dies", decode: onDecode("slow", "stop"), action: kill, effect: candidateFails, cause: "connection"}},
			without("prefill crashes", without("prefill stands still", headerFailures)), againFailures()),
		in(beforeEvent, eventFailures),
		in(streaming, streamFailures),
	))
	for i := range list {
		s := &list[i]
		s.lost, s.release = notLost, notReleased // both legs end
		if s.state == streaming {
			s.form = stream
		}
	}
	return list
}

func generationFirstEffects() map[effect][situations]outcome {
	m := maps.Clone(concurrentEffects())
	m[candidateSilent] = [situations]outcome{
		another:     {200, "remote;reason=external;attempts=1;candidate=1", rightTokens, 1},
		last:        {200, "local;reason=prefill-failed", rightTokens, 1},
		forced:      {502, "refused;reason=prefill-failed", refusal, 0},
		budgetEmpty: {503, "refused;reason=budget", refusal, 0},
	}
	return m
}

const contextFirstHead = `What a client gets from TensorRT-LLM's engines, context first, as matrix.txt shows it for vLLM's.

Each case holds for streams and whole answers, for chat and completions, unless it says otherwise. The engines are simulated. A context
engine keeps its blocks until a generation engine has read them, or for kv_transfer_timeout_ms. The sidecar has decode read each
hand-off that is not used [by decode].
`

const generationFirstHead = `What a client gets from TensorRT-LLM's engines, generation first, as matrix.txt shows it for vLLM's.

Each case holds for streams and whole answers, for chat and completions, unless it says otherwise. The engines are simulated. Both legs
are sent at once, and both are cancelled when an attempt is given up: neither engine then holds anything of it. Only a generation engine
that waits for a context leg which was cancelled on its way keeps its blocks for kv_transfer_timeout_ms.
`

// bodyOfTRTLLM is body for TensorRT-LLM's engines, which refuse members that they do not know.
func (r row) bodyOfTRTLLM() []byte {
	m := map[string]any{"model": "tiny", "max_tokens": 8, "temperature": 0, "ignore_eos": true, "stream": r.stream}
	ids := make([]int, 100)
	for i := range ids {
		ids[i] = 20 + i*7
	}
	if m["prompt"] = ids; r.api == pd.APIChat {
		delete(m, "prompt")
		m["messages"] = []any{map[string]any{"role": "user", "content": strings.Repeat("the quick brown fox ", 6)}}
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return b
}
