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
	"github.com/tandem-serving/tandem/sim"
)

var started = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// sound returns the evidence of a run without faults: a local request and a remote one of two and a half blocks, each alone,
// and then another remote one of two blocks, one of which the decode engine had cached.
func sound() *evidence {
	local := exchange{question: question{class: &singles[0]}, alone: &pulls{}}
	local.answer.decision = pd.Result{Verdict: pd.Local, Reason: pd.ShortPrompt}
	first := exchange{question: question{class: &firstTurn}, alone: &pulls{3 * 100, 2*blockSize + blockSize/2}}
	first.answer.decision = pd.Result{Verdict: pd.Remote, Reason: pd.Uncached, Attempts: 1}
	later := exchange{question: question{class: &laterTurn}}
	later.answer.decision = first.answer.decision
	e := &evidence{stack: []string{"a stack"}, started: started, blockBytes: 100, pulled: pulls{4 * 100, 3*blockSize + blockSize/2}}
	for i, x := range []exchange{local, first, later} {
		x.tokens = 4
		x.answer.generated = []int{7, 8, 9, 7}
		x.reference = answer{prompt: make([]int, []int{5, 2*blockSize + blockSize/2, 2 * blockSize}[i]), generated: []int{7, 8, 9, 7}}
		for ph := range pd.Phase(pd.PhaseCount) + 1 {
			if wantPhase(x.answer.decision, ph) {
				x.answer.phases.Set(ph, time.Millisecond)
			}
		}
		x.answer.took = x.answer.attributed() + 100*time.Microsecond
		x.start = started.Add(time.Duration(i) * time.Second)
		x.pods.decode = "decode-0"
		if x.isRemote() {
			x.pods.prefill = "prefill-1"
		}
		x.foretold = &epp.Explanation{Decision: x.answer.decision.Verdict.String(), Reason: x.answer.decision.Reason}
		e.exchanges = append(e.exchanges, x)
	}
	e.lost = lostLeg{exchange: exchange{question: question{class: &lostClass, tokens: 4}}, told: 1, released: 1}
	e.lost.answer = answer{generated: []int{7, 8, 9, 7}, decision: pd.Result{Verdict: pd.Local, Reason: pd.TransferFailed, Attempts: 1}}
	e.lost.reference.generated = e.lost.answer.generated
	e.prefill = []string{"prefill-0", "prefill-1"}
	e.engines = []sim.State{{}, {Released: 2, KVBytesServed: 5 * 100}, {}}
	return e
}

func TestJudge(t *testing.T) {
	failed := errors.New("status 500")
	local := func(e *evidence) *exchange { return &e.exchanges[0] }
	remote := func(e *evidence) *exchange { return &e.exchanges[1] }
	tests := []struct {
		name   string
		spoil  func(e *evidence)
		broken []string
	}{
		{"nothing wrong", func(*evidence) {}, nil},
		{"one without an answer", func(e *evidence) { local(e).failure = failed }, []string{promiseAnswers}},
		{"nothing asked", func(e *evidence) { e.exchanges = nil },
			[]string{promiseAnswers, promiseDecisions, promisePods, promiseTokens, promiseKV, promisePhases}},
		{"no answers", func(e *evidence) {
			for i := range e.exchanges {
				e.exchanges[i].failure = failed
			}
		}, []string{promiseAnswers, promiseDecisions, promisePods, promiseTokens, promiseKV, promisePhases}},
		{"decode pod unknown", func(e *evidence) { local(e).pods.decode = "" }, []string{promisePods}},
		{"prefill pod unknown", func(e *evidence) { remote(e).pods.prefill = "" }, []string{promisePods}},
		{"prefill pod of a local request", func(e *evidence) { local(e).pods.prefill = "prefill-0" }, []string{promisePods}},
		{"another prefill pod", func(e *evidence) { remote(e).pods.prefill = "prefill-0" }, []string{promisePods}},
		{"another reason", func(e *evidence) { local(e).answer.decision.Reason = pd.Bypassed }, []string{promiseDecisions}},
		{"a reason without a decision", func(e *evidence) { local(e).answer.decision.Reason = pd.Uncached }, []string{promiseDecisions}},
		{"second attempt", func(e *evidence) { remote(e).answer.decision.Attempts = 2 }, []string{promiseDecisions}},
		{"other token", func(e *evidence) { remote(e).answer.generated[3]++ }, []string{promiseTokens}},
		{"one token less", func(e *evidence) {
			remote(e).answer.generated = remote(e).answer.generated[1:]
			remote(e).reference.generated = remote(e).answer.generated
		}, []string{promiseTokens}},
		{"block not moved", func(e *evidence) { e.pulled.bytes -= 100 }, []string{promiseKV}},
		{"block not counted", func(e *evidence) { e.pulled.tokens -= blockSize }, []string{promiseKV}},
		{"block never released", func(e *evidence) { e.engines[1].KVBytesServed -= 100 }, []string{promiseKV}},
		{"moved for the wrong request", func(e *evidence) { local(e).alone, remote(e).alone = remote(e).alone, local(e).alone }, []string{promiseKV}},
		{"all of it was cached", func(e *evidence) {
			e.pulled, remote(e).alone = pulls{}, nil
			remote(e).reference.prompt = remote(e).reference.prompt[:2*blockSize]
			e.engines[1].KVBytesServed = 4 * 100
		}, []string{promiseKV}},
		{"blocks held", func(e *evidence) { e.engines[1].Blocks.Used = 1 }, []string{promiseStranded}},
		{"lease ran out", func(e *evidence) { e.engines[1].Released, e.engines[1].Expired = 1, 1 }, []string{promiseStranded}},
		{"failed leg without an answer", func(e *evidence) { e.lost.failure = failed }, []string{promiseLost}},
		{"failed leg with other tokens", func(e *evidence) { e.lost.reference.generated = []int{7, 8, 9, 8} }, []string{promiseLost}},
		{"failed leg with too few tokens", func(e *evidence) { e.lost.tokens++ }, []string{promiseLost}},
		{"leg that did not fail", func(e *evidence) { e.lost.answer.decision.Reason = pd.Uncached }, []string{promiseLost}},
		{"failed leg released by decode", func(e *evidence) { e.lost.told = 0 }, []string{promiseLost}},
		{"failed leg released twice", func(e *evidence) { e.lost.told = 2 }, []string{promiseLost}},
		{"failed leg not released", func(e *evidence) { e.lost.released = 0 }, []string{promiseLost}},
		{"failed leg's lease ran out", func(e *evidence) { e.lost.expired = 1 }, []string{promiseLost}},
		{"failed leg's blocks held", func(e *evidence) { e.lost.held = 1 }, []string{promiseLost}},
		{"phases missing", func(e *evidence) { remote(e).answer.phases = pd.Phases{} }, []string{promisePhases}},
		{"phase too many", func(e *evidence) { local(e).answer.phases.Set(pd.PhasePrefill, 0) }, []string{promisePhases}},
		{"more than measured", func(e *evidence) { local(e).answer.took = local(e).answer.phases.Sum() }, []string{promisePhases}},
		{"a class that loses its prefill", func(e *evidence) { local(e).answer.took += time.Millisecond }, []string{promisePhases}},
		{"a slow way to the sidecar", func(e *evidence) {
			for i := range e.exchanges {
				e.exchanges[i].answer.took += time.Second
			}
		}, nil},
		{"did not end", func(e *evidence) { e.ended = errors.New("killed") }, []string{promiseEnd}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			seen := sound()
			test.spoil(seen)
			promises := seen.judge()
			var names []string
			for _, p := range promises {
				if !p.Kept {
					names = append(names, p.Name)
				}
			}
			if !slices.Equal(names, test.broken) {
				t.Errorf("broken: %q, want %q\n%+v", names, test.broken, promises)
			}
			err := broken(promises)
			exit, isExit := errors.AsType[boot.Exit](err)
			if isExit != (test.broken != nil) || isExit && exit.Code != boot.CodeFailed {
				t.Errorf("error %v", err)
			}
			for _, name := range test.broken {
				if !strings.Contains(err.Error(), name) {
					t.Errorf("%q is not named in %v", name, err)
				}
			}
		})
	}
}

func TestFindingNamesMissingBytes(t *testing.T) {
	seen := sound()
	seen.pulled.bytes, seen.engines[1].KVBytesServed = 300, 0
	want := "300 instead of 400 bytes for 4 blocks that were not cached, of 0 instead of 500 bytes offered for 2 remote prompts; as expected for 2 of 2 requests that ran alone"
	if got := seen.judgeKV().Found; got != want {
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
	if len(d.Requests) != 3 || len(d.Promises) != 9 || len(d.Load) != 1 || len(d.Stack) != 1 || !d.Started.Equal(started) {
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
