package demo

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// soundSGLang returns the evidence of a run without faults: a request that a plain engine served, and a remote one of two and a half
// pages, each alone, and then a chat of two pages, whose answer has no token ids.
func soundSGLang() *evidence {
	local := exchange{question: question{class: &sglang.singles[1]}, alone: &pulls{}}
	local.answer.decision = pd.Result{Verdict: pd.Local, Reason: pd.ShortPrompt}
	first := exchange{question: question{class: &sglang.singles[3]}, alone: &pulls{bytes: 3 * 100}}
	first.answer.decision = pd.Result{Verdict: pd.Remote, Reason: pd.Uncached, Attempts: 1}
	chat := exchange{question: question{class: &sglang.laterTurns}}
	chat.answer.decision = first.answer.decision
	e := &evidence{engine: &sglang, started: started, blockBytes: 100, pulled: pulls{bytes: 5 * 100}}
	for i, x := range []exchange{local, first, chat} {
		x.tokens = 4
		x.answer.generated, x.answer.completion, x.answer.text = []int{7, 8, 9, 7}, 4, "abcd"
		if x.class == &sglang.laterTurns {
			x.answer.generated = nil
		}
		x.reference = x.answer
		x.reference.promptTokens = []int{5, 2*sglangPage + sglangPage/2, 2 * sglangPage}[i]
		for ph := range pd.PhaseOverlap + 1 {
			if wantPhase(x.answer.decision, ph, true) {
				x.answer.phases.Set(ph, time.Millisecond)
			}
		}
		x.traced = traced{decode: "plain-0", took: x.answer.phases.Sum()}
		if x.isRemote() {
			x.traced.decode, x.traced.prefill = "decode-0", "prefill-1"
		}
		x.answer.took = x.answer.attributed() + 100*time.Microsecond
		e.exchanges = append(e.exchanges, x)
	}
	e.lost = lostLeg{exchange: exchange{question: question{class: &lostClass, tokens: 4}}, told: 1, handoffs: 2}
	e.lost.answer = answer{generated: []int{7, 8, 9, 7}, completion: 4, decision: pd.Result{Verdict: pd.Remote, Reason: pd.Uncached, Attempts: 2, Candidate: 1}}
	e.lost.reference.generated = e.lost.answer.generated
	e.accounts = accountsOf(state{}, state{Requests: 2, KVBytesServed: 5 * 100}, state{Requests: 2, KVBytesRead: 5 * 100}, state{Requests: 1})
	return e
}

func TestJudgeSGLang(t *testing.T) {
	local := func(e *evidence) *exchange { return &e.exchanges[0] }
	remote := func(e *evidence) *exchange { return &e.exchanges[1] }
	chat := func(e *evidence) *exchange { return &e.exchanges[2] }
	judgeEach(t, soundSGLang, []judgement{
		{"nothing wrong", func(*evidence) {}, nil},
		{"decode engine computed a prompt", func(e *evidence) { local(e).traced.decode = "decode-0" }, []string{checkPods}},
		{"a leg that no request had", func(e *evidence) { e.accounts[0].Requests++ }, []string{checkPods}},
		{"a leg that its engine did not get", func(e *evidence) { e.accounts[2].Requests-- }, []string{checkPods}},
		{"later turn on a plain engine", func(e *evidence) {
			chat(e).answer.decision = pd.Result{Verdict: pd.Local, Reason: pd.BelowThreshold}
		}, []string{checkDecisions, checkPods, checkKV, checkPhases}},
		{"another text", func(e *evidence) { chat(e).answer.text = "abcx" }, []string{checkTokens}},
		{"no text", func(e *evidence) { chat(e).answer.text, chat(e).reference.text = "", "" }, []string{checkTokens}},
		{"a token less, of a text", func(e *evidence) { chat(e).answer.completion-- }, []string{checkTokens}},
		{"no token ids, where there should be some", func(e *evidence) { remote(e).answer.generated, remote(e).reference.generated = nil, nil }, []string{checkTokens}},
		{"a page not moved", func(e *evidence) { e.pulled.bytes -= 100 }, []string{checkKV}},
		{"a page not sent", func(e *evidence) { e.accounts[1].KVBytesServed -= 100 }, []string{checkKV}},
		{"moved for the wrong request", func(e *evidence) { local(e).alone, remote(e).alone = remote(e).alone, local(e).alone }, []string{checkKV}},
		{"a page held", func(e *evidence) { e.accounts[2].Blocks.Used = 1 }, []string{checkIdle}},
		{"a leg that waits for the other", func(e *evidence) { e.accounts[0].Live = 1 }, []string{checkIdle}},
		{"pages that wait for prefill", func(e *evidence) { e.accounts[2].Deferred = 1 }, []string{checkIdle}},
		{"the live load is not idle", func(e *evidence) { e.accounts[3].waiting = 1 }, []string{checkIdle}},
		{"the live load has tokens", func(e *evidence) { e.accounts[3].tokens = sglangPage }, []string{checkIdle}},
		{"failed leg without an answer", func(e *evidence) { e.lost.failure = errors.New("status 503") }, []string{checkAborted}},
		{"failed leg with other tokens", func(e *evidence) { e.lost.reference.generated = []int{7, 8, 9, 8} }, []string{checkAborted}},
		{"leg that did not fail", func(e *evidence) { e.lost.answer.decision.Attempts = 1 }, []string{checkAborted}},
		{"failed leg not aborted", func(e *evidence) { e.lost.told = 0 }, []string{checkAborted}},
		{"failed leg tried twice more", func(e *evidence) { e.lost.handoffs = 3 }, []string{checkAborted}},
		{"failed leg still held", func(e *evidence) { e.lost.held = 1 }, []string{checkAborted}},
		{"overlap missing", func(e *evidence) { remote(e).answer.phases = serialPhases() }, []string{checkPhases}},
	})
}

// serialPhases are those of legs that follow each other.
func serialPhases() (p pd.Phases) {
	for ph := range pd.Phase(pd.PhaseCount) + 1 {
		p.Set(ph, time.Millisecond)
	}
	return p
}

func TestReadLoads(t *testing.T) {
	page := `{"loads":[{"dp_rank":0,"num_running_reqs":1,"num_waiting_reqs":2,"num_used_tokens":48},{"dp_rank":1,"num_running_reqs":1,"num_waiting_reqs":0,"num_used_tokens":16}]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/loads" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		fmt.Fprint(w, page)
	}))
	defer server.Close()
	s, a := &stage{http: server.Client()}, account{instance: instance{name: "decode-0", address: strings.TrimPrefix(server.URL, "http://")}}
	if err := readLoads(t.Context(), s, &a); err != nil || a.loads != (loads{2, 2, 64}) {
		t.Errorf("%+v, %v", a.loads, err)
	}
	page = `{"loads":[]}`
	if err := readLoads(t.Context(), s, &a); err == nil || !strings.Contains(err.Error(), "decode-0") {
		t.Errorf("of an engine without ranks: %v", err)
	}
}

// SGLang's own call has its text and its limit elsewhere.
func TestOwnCall(t *testing.T) {
	own := &sglang.singles[len(sglang.singles)-1]
	q, err := turn{class: own, words: "hello", tokens: 16}.ask(&sglang, nil)
	if want := `{"sampling_params":{"ignore_eos":true,"max_new_tokens":16,"temperature":0},"text":"hello"}`; err != nil || string(q.body) != want {
		t.Errorf("%s, %v", q.body, err)
	}
}
