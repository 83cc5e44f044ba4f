package shadow

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
)

// TestImaginedQueues: where prompts go to another endpoint, that one's queue grows while they come faster than it computes them, the other's shrinks, and
// both return to what they are.
func TestImaginedQueues(t *testing.T) {
	a, b := endpoint(0, "prefill"), endpoint(1, "prefill")
	decode := endpoint(2, "decode")
	now := time.Unix(100, 0)
	m := &imagined{}
	const work = 500 * time.Millisecond
	for range 8 { // four in the time of two
		c := &sched.Comparison{Now: now, Live: decision(1000, 0, decode, a), Shadow: decision(1000, 0, decode, b)}
		m.add(c, &latency.Work{At: a, Tokens: 1000, Own: work}, &latency.Work{At: b, Tokens: 1000, Own: work})
		now = now.Add(work / 2)
	}
	see := func() (one, other epp.InFlight) {
		all := []epp.Candidate{{Endpoint: a, InFlight: epp.InFlight{Requests: 6, Tokens: 6000}}, {Endpoint: b}}
		m.apply(now, all)
		return all[0].InFlight, all[1].InFlight
	}
	left, come := see()
	if want := (epp.InFlight{Requests: 2, Tokens: 2000}); left != want {
		t.Errorf("where the prompts do not go, %+v are in flight, want %+v", left, want)
	}
	if want := (epp.InFlight{Requests: 4, Tokens: 4000}); come != want {
		t.Errorf("where they go, %+v are in flight, want %+v", come, want)
	}
	now = now.Add(time.Minute)
	if left, come = see(); left.Tokens != 6000 || come != (epp.InFlight{}) {
		t.Errorf("later: %+v and %+v", left, come)
	}
}

// TestImaginedAnswers: an answer elsewhere is one more there and one less here until it ends.
func TestImaginedAnswers(t *testing.T) {
	a, b := endpoint(0, "decode"), endpoint(1, "decode")
	now := time.Unix(100, 0)
	m := &imagined{}
	live := decision(1000, 0, a, nil)
	m.add(&sched.Comparison{Now: now, Live: live, Shadow: decision(1000, 0, b, nil)}, &latency.Work{At: a}, &latency.Work{At: b})
	see := func() [2]int {
		all := []epp.Candidate{{Endpoint: a, InFlight: epp.InFlight{Requests: 5}}, {Endpoint: b, InFlight: epp.InFlight{Requests: 5}}}
		m.apply(now, all)
		return [2]int{all[0].InFlight.Requests, all[1].InFlight.Requests}
	}
	if got := see(); got != [2]int{4, 6} {
		t.Errorf("while it lasts: %v", got)
	}
	m.end(live)
	if got := see(); got != [2]int{5, 5} {
		t.Errorf("after it: %v", got)
	}
	if len(m.elsewhere) != 0 {
		t.Errorf("%d answers are kept", len(m.elsewhere))
	}
}

// TestOtherAnswersGain: prompts that are computed where four answers are generated delay these; the shadow has a prefill endpoint compute them.
func TestOtherAnswersGain(t *testing.T) {
	gain := func(prefill *epp.Endpoint) float64 {
		f := newTraffic()
		for i := range 400 {
			ahead := 4000 * (i % 2) // so that the time of a token is known
			d := decision(1000, ahead, f.to, prefill)
			if prefill != nil {
				d.Picks[1].Seen.Load.Signals.Set(epp.Running, 0)
			}
			f.serve(d, ahead, 100*time.Millisecond)
		}
		return f.View().All.ITL.Mean
	}
	here, there := gain(nil), gain(endpoint(1, "prefill"))
	// Each prompt takes 0.1 s, and four answers wait for it; an answer has 50 tokens after the first.
	const want = 4 * 0.1 / 50
	if here != 0 || there < 0.7*want || there > 1.5*want {
		t.Errorf("the gain of each token is %v s, want about %v, and %v if the shadow does the same", there, want, here)
	}
}

// TestWork: the endpoint that computes the prompt is busy with it, and its answers wait.
func TestWork(t *testing.T) {
	f := newTraffic()
	for range 200 {
		f.serve(nil, 0, 100*time.Millisecond)
	}
	local := f.model.Work(f.clock.now, decision(2000, 0, f.to, nil))
	if local.At != f.to || local.Own < 100*time.Millisecond || local.Own > 300*time.Millisecond || local.Stalled != 4*local.Own {
		t.Errorf("local: %+v", local)
	}
	p := endpoint(1, "prefill")
	if remote := f.model.Work(f.clock.now, decision(2000, 0, f.to, p)); remote.At != p || remote.Own <= 0 {
		t.Errorf("remote: %+v", remote)
	}
	if d := decision(2000, 0, f.to, nil); d.Verdict == pd.Local {
		d.Picks[0].Seen = nil
		if w := f.model.Work(f.clock.now, d); w.At != nil {
			t.Errorf("of a pick that noted nothing: %+v", w)
		}
	}
}
