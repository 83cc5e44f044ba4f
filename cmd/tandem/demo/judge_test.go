package demo

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

var started = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// sound returns the evidence of a run without faults: a local request and a remote one of two and a half blocks, each alone,
// and then another remote one of two blocks, one of which the decode engine had cached.
func sound() *evidence {
	local := exchange{question: question{class: &singles[0]}, alone: &pulls{}}
	local.answer.decision = pd.Result{Verdict: pd.Local, Reason: pd.ShortPrompt}
	first := exchange{question: question{class: &firstTurn}, alone: &pulls{3 * 100, 2*vllmBlock + vllmBlock/2}}
	first.answer.decision = pd.Result{Verdict: pd.Remote, Reason: pd.Uncached, Attempts: 1}
	later := exchange{question: question{class: &laterTurn}}
	later.answer.decision = first.answer.decision
	e := &evidence{engine: &vllm, stack: []string{"a stack"}, started: started, blockBytes: 100, pulled: pulls{4 * 100, 3*vllmBlock + vllmBlock/2}}
	for i, x := range []exchange{local, first, later} {
		x.tokens = 4
		x.answer.generated, x.answer.completion = []int{7, 8, 9, 7}, 4
		x.reference = answer{promptTokens: []int{5, 2*vllmBlock + vllmBlock/2, 2 * vllmBlock}[i], generated: []int{7, 8, 9, 7}}
		for ph := range pd.Phase(pd.PhaseCount) + 1 {
			if wantPhase(x.answer.decision, ph, false) {
				x.answer.phases.Set(ph, time.Millisecond)
			}
		}
		x.traced.took = x.answer.phases.Sum()
		x.answer.took = x.answer.attributed() + 100*time.Microsecond
		x.start = started.Add(time.Duration(i) * time.Second)
		x.traced.decode = "decode-0"
		if x.isRemote() {
			x.traced.prefill = "prefill-1"
		}
		x.foretold = &epp.Explanation{Decision: x.answer.decision.Verdict.String(), Reason: x.answer.decision.Reason}
		e.exchanges = append(e.exchanges, x)
	}
	e.lost = lostLeg{exchange: exchange{question: question{class: &lostClass, tokens: 4}}, told: 1, handoffs: 1}
	e.lost.answer = answer{generated: []int{7, 8, 9, 7}, completion: 4, decision: pd.Result{Verdict: pd.Local, Reason: pd.TransferFailed, Attempts: 1}}
	e.lost.reference.generated = e.lost.answer.generated
	e.accounts = accountsOf(state{}, state{Released: 2, KVBytesServed: 5 * 100}, state{})
	return e
}

// accountsOf returns the accounts of two prefill engines, of a decode engine, and of plain ones.
func accountsOf(states ...state) (all []account) {
	for i, s := range states {
		role := []string{rolePrefill, rolePrefill, roleDecode, rolePlain}[i]
		name := []string{"prefill-0", "prefill-1", "decode-0", "plain-0"}[i]
		all = append(all, account{instance: instance{name: name, role: role}, state: s})
	}
	return all
}

func TestJudge(t *testing.T) {
	failure := errors.New("status 500")
	local := func(e *evidence) *exchange { return &e.exchanges[0] }
	remote := func(e *evidence) *exchange { return &e.exchanges[1] }
	tests := []judgement{
		{"nothing wrong", func(*evidence) {}, nil},
		{"one without an answer", func(e *evidence) { local(e).failure = failure }, []string{checkAnswers}},
		{"nothing asked", func(e *evidence) { e.exchanges = nil },
			[]string{checkAnswers, checkDecisions, checkPods, checkTokens, checkKV, checkPhases}},
		{"no answers", func(e *evidence) {
			for i := range e.exchanges {
				e.exchanges[i].failure = failure
			}
		}, []string{checkAnswers, checkDecisions, checkPods, checkTokens, checkKV, checkPhases}},
		{"decode pod unknown", func(e *evidence) { local(e).traced.decode = "" }, []string{checkPods}},
		{"prefill pod unknown", func(e *evidence) { remote(e).traced.prefill = "" }, []string{checkPods}},
		{"prefill pod of a local request", func(e *evidence) { local(e).traced.prefill = "prefill-0" }, []string{checkPods}},
		{"another prefill pod", func(e *evidence) { remote(e).traced.prefill = "prefill-0" }, []string{checkPods}},
		{"another reason", func(e *evidence) { local(e).answer.decision.Reason = pd.Bypassed }, []string{checkDecisions}},
		{"a reason without a decision", func(e *evidence) { local(e).answer.decision.Reason = pd.Uncached }, []string{checkDecisions}},
		{"second attempt", func(e *evidence) { remote(e).answer.decision.Attempts = 2 }, []string{checkDecisions}},
		{"other text", func(e *evidence) { remote(e).answer.text = "x" }, []string{checkTokens}},
		{"no token ids", func(e *evidence) {
			remote(e).answer.generated, remote(e).answer.text = nil, "abc"
			remote(e).reference = answer{promptTokens: remote(e).reference.promptTokens, text: "abc"}
		}, []string{checkTokens}},
		{"other token", func(e *evidence) { remote(e).answer.generated[3]++ }, []string{checkTokens}},
		{"one token less", func(e *evidence) {
			remote(e).answer.generated = remote(e).answer.generated[1:]
			remote(e).reference.generated = remote(e).answer.generated
		}, []string{checkTokens}},
		{"block not moved", func(e *evidence) { e.pulled.bytes -= 100 }, []string{checkKV}},
		{"block not counted", func(e *evidence) { e.pulled.tokens -= vllmBlock }, []string{checkKV}},
		{"block never released", func(e *evidence) { e.accounts[1].KVBytesServed -= 100 }, []string{checkKV}},
		{"moved for the wrong request", func(e *evidence) { local(e).alone, remote(e).alone = remote(e).alone, local(e).alone }, []string{checkKV}},
		{"all of it was cached", func(e *evidence) {
			e.pulled, remote(e).alone = pulls{}, nil
			remote(e).reference.promptTokens = 2 * vllmBlock
			e.accounts[1].KVBytesServed = 4 * 100
		}, []string{checkKV}},
		{"blocks held", func(e *evidence) { e.accounts[1].Blocks.Used = 1 }, []string{checkStranded}},
		{"lease ran out", func(e *evidence) { e.accounts[1].Released, e.accounts[1].Expired = 1, 1 }, []string{checkStranded}},
		{"failed leg without an answer", func(e *evidence) { e.lost.failure = failure }, []string{checkReleased}},
		{"failed leg with other tokens", func(e *evidence) { e.lost.reference.generated = []int{7, 8, 9, 8} }, []string{checkReleased}},
		{"failed leg with too few tokens", func(e *evidence) { e.lost.tokens++ }, []string{checkReleased}},
		{"leg that did not fail", func(e *evidence) { e.lost.answer.decision.Reason = pd.Uncached }, []string{checkReleased}},
		{"failed leg released by decode", func(e *evidence) { e.lost.told = 0 }, []string{checkReleased}},
		{"failed leg released twice", func(e *evidence) { e.lost.told = 2 }, []string{checkReleased}},
		{"failed leg not released", func(e *evidence) { e.lost.handoffs = 0 }, []string{checkReleased}},
		{"failed leg's lease ran out", func(e *evidence) { e.lost.expired = 1 }, []string{checkReleased}},
		{"failed leg's blocks held", func(e *evidence) { e.lost.held = 1 }, []string{checkReleased}},
		{"phases missing", func(e *evidence) { remote(e).answer.phases = pd.Phases{} }, []string{checkPhases}},
		{"an overlap of legs that follow each other", func(e *evidence) { remote(e).answer.phases.Set(pd.PhaseOverlap, 0) }, []string{checkPhases}},
		{"phase too many", func(e *evidence) { local(e).answer.phases.Set(pd.PhasePrefill, 0) }, []string{checkPhases}},
		{"more than measured", func(e *evidence) { local(e).answer.took = local(e).answer.phases.Sum() }, []string{checkPhases}},
		// The client's reader of local streams once took the time to the first byte from the headers, which do not have it yet.
		{"prefill of a local stream lost", func(e *evidence) { local(e).answer.phases.Set(pd.PhaseFirst, 0) }, []string{checkPhases}},
		{"time in the sidecar that no phase has", func(e *evidence) { remote(e).traced.took += 30 * time.Microsecond }, []string{checkPhases}},
		{"span unknown", func(e *evidence) { remote(e).traced.took = 0 }, []string{checkPhases}},
		{"slow proxy, on a busy machine", func(e *evidence) {
			for i := range e.exchanges {
				e.exchanges[i].answer.took += time.Duration(i+1) * time.Second
			}
		}, nil},
		{"did not end", func(e *evidence) { e.ended = errors.New("killed") }, []string{checkEnd}},
	}
	judgeEach(t, sound, tests)
}

// judgement is what is wrong with the evidence of a run, and the checks that fail then.
type judgement struct {
	name   string
	spoil  func(e *evidence)
	failed []string
}

// judgeEach spoils a sound run in each way, and compares the checks that fail.
func judgeEach(t *testing.T, sound func() *evidence, tests []judgement) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			seen := sound()
			test.spoil(seen)
			checks := seen.judge()
			var names []string
			for _, c := range checks {
				if !c.Passed {
					names = append(names, c.Name)
				}
			}
			if !slices.Equal(names, test.failed) {
				t.Errorf("failed: %q, want %q\n%+v", names, test.failed, checks)
			}
			err := failed(checks)
			exit, isExit := errors.AsType[boot.Exit](err)
			if isExit != (test.failed != nil) || isExit && exit.Code != boot.CodeFailed {
				t.Errorf("error %v", err)
			}
			for _, name := range test.failed {
				if !strings.Contains(err.Error(), name) {
					t.Errorf("%q is not named in %v", name, err)
				}
			}
		})
	}
}

func TestFindingNamesTheSlowestWay(t *testing.T) {
	seen := sound()
	for i := range seen.exchanges { // of 4, 6 and 6 ms of phases
		seen.exchanges[i].answer.took = seen.exchanges[i].answer.attributed() + 2*time.Millisecond
	}
	want := "3 of 3; the client's median time is 2.0 ms longer, and at most 33.3 % in a class (short chat): the time between client and sidecar"
	if got := seen.judgePhases().Got; got != want {
		t.Errorf("%s", got)
	}
}

func TestFindingNamesARequestThatLostAPhase(t *testing.T) {
	seen := sound()
	seen.exchanges[0].answer.phases.Set(pd.PhaseFirst, 0)
	want := "2 of 3; request 1 (short chat) has epp;dur=1, recv;dur=1, first;dur=0, decode;dur=1, " +
		"in the sidecar it took 3.000 ms, and the client measured 4.100 ms"
	if got := seen.judgePhases().Got; got != want {
		t.Errorf("%s", got)
	}
}

func TestFindingNamesMissingBytes(t *testing.T) {
	seen := sound()
	seen.pulled.bytes, seen.accounts[1].KVBytesServed = 300, 0
	want := "decode engines pulled 300 bytes (expected 400) for the 4 blocks that they had not cached; prefill engines released " +
		"0 bytes (expected 500) of 2 remote prompts; right for 2 of 2 requests that ran alone"
	if got := seen.judgePulled().Got; got != want {
		t.Errorf("%s", got)
	}
}

func TestData(t *testing.T) {
	seen := sound()
	x := &seen.exchanges[1]
	x.answer.first, x.answer.gaps = 3*time.Millisecond, []time.Duration{1500 * time.Microsecond, 0}
	x.answer.outcome = pd.AnswerSummary{End: pd.EndDone, Prompt: 80, Cached: -1, Completion: 4}
	seen.exchanges[0].failure = errors.New("status 503")
	seen.load = []report.LoadSample{{Endpoint: "decode-0"}}
	d := seen.data()
	if len(d.Requests) != 3 || len(d.Checks) != 9 || len(d.Load) != 1 || len(d.Stack) != 1 || !d.Started.Equal(started) {
		t.Fatalf("%+v", d)
	}
	failed, remote, crowd := d.Requests[0], d.Requests[1], d.Requests[2]
	if failed.Failure != "status 503" || failed.Decision != "" || failed.Number != 1 {
		t.Errorf("failed request: %+v", failed)
	}
	if remote.Class != firstTurn.name || remote.API != "chat" || !remote.Stream || remote.Decision != "remote" || remote.Reason != "uncached" ||
		remote.Attempts != 1 || remote.DecodePod != "decode-0" || remote.PrefillPod != "prefill-1" || remote.Prompt != 80 || remote.Cached != 0 || remote.Completion != 4 {
		t.Errorf("remote request: %+v", remote)
	}
	if remote.Start != 1000 || remote.TTFT != 3 || remote.Total != 6.1 || !slices.Equal(remote.ITL, []float64{1.5, 0}) {
		t.Errorf("times of the remote request: %+v", remote)
	}
	if len(remote.Phases) != 6 || remote.Phases["epp"] != 1 || remote.Phases["handoff"] != 1 {
		t.Errorf("phases of the remote request: %v", remote.Phases)
	}
	if remote.KVBytes != 300 || crowd.KVBytes != -1 || failed.KVBytes != 0 {
		t.Errorf("KV bytes %d, %d and %d", remote.KVBytes, crowd.KVBytes, failed.KVBytes)
	}
}

func TestWhy(t *testing.T) {
	seen := sound()
	why := seen.why()
	if len(why) != 2 || why[0].Question != "Why was request 2 (chat, first turn) remote?" || why[0].Request != 2 ||
		why[0].Explanation != seen.exchanges[1].foretold || why[1].Request != 1 {
		t.Errorf("%+v", why)
	}
	seen.exchanges[1].foretold.Reason = pd.BelowThreshold // other requests came in between
	if why := seen.why(); len(why) != 2 || why[0].Request != 3 {
		t.Errorf("%+v", why)
	}
}
