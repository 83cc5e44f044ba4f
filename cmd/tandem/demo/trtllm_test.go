package demo

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// soundTRTLLM returns the evidence of a run without faults: a request that a generation engine served alone, a remote one of two and a
// half blocks, each by itself, and then a remote chat of two blocks. No answer has token ids.
func soundTRTLLM() *evidence {
	local := exchange{question: question{class: &singles[1]}, alone: &pulls{}}
	local.answer.decision = pd.Result{Verdict: pd.Local, Reason: pd.ShortPrompt}
	first := exchange{question: question{class: &singles[3]}, alone: &pulls{bytes: 3 * 100}}
	first.answer.decision = pd.Result{Verdict: pd.Remote, Reason: pd.Uncached, Attempts: 1}
	chat := exchange{question: question{class: &laterTurn}}
	chat.answer.decision = first.answer.decision
	e := &evidence{engine: &trtllm, started: started, blockBytes: 100, pulled: pulls{bytes: 5 * 100}}
	for i, x := range []exchange{local, first, chat} {
		x.tokens = 4
		x.answer.completion, x.answer.text = 4, "abcd"
		x.reference = x.answer
		x.reference.promptTokens = []int{5, 2*trtllmBlock + trtllmBlock/2, 2 * trtllmBlock}[i]
		for ph := range pd.PhaseOverlap + 1 {
			if wantPhase(x.answer.decision, ph, false) {
				x.answer.phases.Set(ph, time.Millisecond)
			}
		}
		x.traced = traced{decode: "decode-0", took: x.answer.phases.Sum()}
		if x.isRemote() {
			x.traced.prefill = "prefill-1"
		}
		x.answer.took = x.answer.attributed() + 100*time.Microsecond
		e.exchanges = append(e.exchanges, x)
	}
	e.lost = lostLeg{exchange: exchange{question: question{class: &lostClass, tokens: 4}}, told: 1, handoffs: 1}
	e.lost.answer = answer{text: "abcd", completion: 4, decision: pd.Result{Verdict: pd.Local, Reason: pd.TransferFailed, Attempts: 1}}
	e.lost.reference = answer{text: "abcd", completion: 4}
	e.accounts = accountsOf(state{}, state{Requests: 2, KVBytesServed: 5 * 100}, state{Requests: 3, KVBytesRead: 5 * 100})
	return e
}

func TestJudgeTRTLLM(t *testing.T) {
	local := func(e *evidence) *exchange { return &e.exchanges[0] }
	remote := func(e *evidence) *exchange { return &e.exchanges[1] }
	judgeEach(t, soundTRTLLM, []judgement{
		{"nothing wrong", func(*evidence) {}, nil},
		{"a leg that no request had", func(e *evidence) { e.accounts[0].Requests++ }, []string{checkPods}},
		{"a leg that its engine did not get", func(e *evidence) { e.accounts[2].Requests-- }, []string{checkPods}},
		{"another text of a completion", func(e *evidence) { remote(e).answer.text = "abcx" }, []string{checkTokens}},
		{"no text", func(e *evidence) { remote(e).answer.text, remote(e).reference.text = "", "" }, []string{checkTokens}},
		{"a token less", func(e *evidence) { remote(e).answer.completion-- }, []string{checkTokens}},
		{"a block not read", func(e *evidence) { e.pulled.bytes -= 100 }, []string{checkKV}},
		{"a block not sent", func(e *evidence) { e.accounts[1].KVBytesServed -= 100 }, []string{checkKV}},
		{"moved for the wrong request", func(e *evidence) { local(e).alone, remote(e).alone = remote(e).alone, local(e).alone }, []string{checkKV}},
		{"a block held", func(e *evidence) { e.accounts[2].Blocks.Used = 1 }, []string{checkKept}},
		{"a leg that waits", func(e *evidence) { e.accounts[2].Live = 1 }, []string{checkKept}},
		{"a hand-off that waits", func(e *evidence) { e.accounts[0].Kept = 1 }, []string{checkKept}},
		{"a hand-off that was not read in time", func(e *evidence) { e.accounts[0].Expired = 1 }, []string{checkKept}},
		{"failed leg without an answer", func(e *evidence) { e.lost.failure = errors.New("status 500") }, []string{checkRead}},
		{"failed leg with another text", func(e *evidence) { e.lost.reference.text = "abcx" }, []string{checkRead}},
		{"leg that did not fail", func(e *evidence) { e.lost.answer.decision.Reason = pd.Uncached }, []string{checkRead}},
		{"failed leg whose hand-off no engine read", func(e *evidence) { e.lost.told = 0 }, []string{checkRead}},
		{"failed leg prefilled twice", func(e *evidence) { e.lost.handoffs = 2 }, []string{checkRead}},
		{"failed leg kept until the time-out", func(e *evidence) { e.lost.expired = 1 }, []string{checkRead}},
		{"failed leg still held", func(e *evidence) { e.lost.held = 1 }, []string{checkRead}},
		{"no pause between the legs", func(e *evidence) { remote(e).answer.phases = pd.Phases{} }, []string{checkPhases}},
	})
}

// TensorRT-LLM refuses requests with members that it does not know.
func TestNoMemberIsStrange(t *testing.T) {
	for _, class := range []*class{&singles[0], &singles[1]} {
		for of, want := range map[*engine]bool{&trtllm: false, &vllm: true} {
			q, err := turn{class: class, words: "hello", tokens: 16}.ask(of, nil)
			if has := strings.Contains(string(q.body), "return_token_ids"); err != nil || has != want {
				t.Errorf("%s asks for token ids: %t, want %t (%v): %s", of.title, has, want, err, q.body)
			}
		}
	}
}
