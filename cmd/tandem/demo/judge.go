package demo

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/pd"
)

// The checks that all engines have.
const (
	checkAnswers   = "every request answered"
	checkDecisions = "prefilled where expected"
	checkPods      = "pods of each request known"
	checkTokens    = "tokens equal to the reference engine's"
	checkKV        = "KV bytes moved as expected"
	checkPhases    = "phases add up to the time in the sidecar"
	checkCompared  = "prefilled where expected in the comparison"
	checkEnd       = "all programs ended"
)

// judge makes all checks.
func (e *evidence) judge() []report.Check {
	all := []report.Check{
		e.judgeAnswers(), e.judgeDecisions(), e.judgePods(), e.judgeTokens(), e.engine.judgeKV(e), e.engine.judgeHeld(e),
		e.engine.judgeLost(e), e.judgePhases(),
	}
	if e.compared != nil {
		all = append(all, e.judgeComparison())
	}
	return append(all, e.judgeEnd())
}

func check(name string, passed bool, format string, args ...any) report.Check {
	return report.Check{Name: name, Passed: passed, Got: fmt.Sprintf(format, args...)}
}

// answered returns the exchanges that have a complete answer. A check of its own counts the others.
func (e *evidence) answered() (all []*exchange) {
	for i := range e.exchanges {
		if e.exchanges[i].failure == nil {
			all = append(all, &e.exchanges[i])
		}
	}
	return all
}

// tally counts the answered exchanges that pass.
func (e *evidence) tally(passes func(*exchange) bool) (right, of int) {
	for _, x := range e.answered() {
		of++
		if passes(x) {
			right++
		}
	}
	return right, of
}

func (e *evidence) judgeAnswers() report.Check {
	n := len(e.answered())
	return check(checkAnswers, n == len(e.exchanges) && n > 0, "%d of %d with status 200 and a complete answer", n, len(e.exchanges))
}

// judgeDecisions checks that each request was served as its class requires, and remote ones at the first attempt.
func (e *evidence) judgeDecisions() report.Check {
	right, of := e.tally((*exchange).asExpected)
	verdicts := map[pd.Verdict]int{}
	for _, x := range e.answered() {
		verdicts[x.answer.decision.Verdict]++
	}
	return check(checkDecisions, right == of && of > 0, "%d of %d; %d prefilled remotely, %d locally", right, of,
		verdicts[pd.Remote], verdicts[pd.Local])
}

func (x *exchange) asExpected() bool {
	d := x.answer.decision
	attempts := 0
	if d.Verdict == pd.Remote {
		attempts = 1
	}
	return slices.Contains(x.class.want, d.Reason) && d.Reason.Explains(d.Verdict) && d.Attempts == attempts
}

// judgePods checks that the spans name the decode pod of each request and the prefill pod of each that was tried remotely, and
// that the engines count as many hand-offs, or legs, as the spans say.
func (e *evidence) judgePods() report.Check {
	right, of := e.tally(func(x *exchange) bool {
		return x.traced.decode != "" && (x.traced.prefill != "") == (x.answer.decision.Attempts > 0)
	})
	legs := map[string]int64{}
	for _, x := range e.answered() {
		legs[x.traced.decode]++
		if x.isRemote() {
			legs[x.traced.prefill]++
		}
	}
	same := true
	var counts []string
	for i := range e.accounts {
		a := &e.accounts[i]
		counted, ok := e.engine.served(a)
		if !ok {
			continue
		}
		counts = append(counts, a.name+" "+against(legs[a.name], counted, e.engine.what))
		same = same && legs[a.name] == counted
	}
	return check(checkPods, right == of && of > 0 && same, "%d of %d; %s, as the engines count", right, of, strings.Join(counts, ", "))
}

func (e *evidence) judgeTokens() report.Check {
	right, of := e.tally(func(x *exchange) bool { return x.asReference(e.engine) })
	how := ""
	if len(e.engine.textOnly) > 0 {
		how = "; " + apiWords(e.engine.textOnly) + " by their text, because their answers have no token ids"
	}
	return check(checkTokens, right == of && of > 0, "%d of %d answers%s", right, of, how)
}

// apiWords names what is asked for over APIs.
func apiWords(apis []pd.API) string {
	words := map[pd.API]string{pd.APIChat: "chats", pd.APICompletions: "completions"}
	var all []string
	for _, api := range apis {
		all = append(all, words[api])
	}
	return strings.Join(all, " and ")
}

// asReference reports whether the answer has all tokens that were asked for, and they are the reference's. Some answers have them
// as text alone.
func (x *exchange) asReference(of *engine) bool {
	a := &x.answer
	complete := len(a.generated) == x.tokens || len(a.generated) == 0 && a.text != "" && slices.Contains(of.textOnly, x.class.api)
	return complete && a.completion == x.tokens && slices.Equal(a.generated, x.reference.generated) && a.text == x.reference.text
}

// isRemote reports whether the decode engine pulled KV for it.
func (x *exchange) isRemote() bool { return x.failure == nil && x.answer.decision.Verdict == pd.Remote }

// moved summarizes the KV that moved.
type moved struct {
	remote          []*exchange
	pulled          int64 // blocks that decode engines had to pull
	offered, served int64 // bytes of their prompts, and what prefill engines count
	alone, right    int   // requests that ran alone, and how many of these pulled the right bytes
	all             bool  // that had to be pulled was, and no more
}

func (m *moved) passed() bool { return m.all && m.right == m.alone && m.served == m.offered }

func (e *evidence) moved() (m moved) {
	for i := range e.exchanges {
		x := &e.exchanges[i]
		var self []*exchange
		if x.isRemote() {
			self = []*exchange{x}
			m.remote = append(m.remote, x)
			m.offered += int64(x.blocks(e.engine.blockSize)) * e.blockBytes
		}
		if x.alone == nil {
			continue
		}
		m.alone++
		if x.alone.bytes == e.engine.wanted(x.alone.tokens, e.engine.blockSize, self...)*e.blockBytes && (x.alone.bytes > 0) == x.isRemote() {
			m.right++
		}
	}
	for _, a := range e.accounts {
		m.served += a.KVBytesServed
	}
	m.pulled = e.engine.wanted(e.pulled.tokens, e.engine.blockSize, m.remote...)
	m.all = m.pulled > 0 && e.pulled.bytes == m.pulled*e.blockBytes
	return m
}

// against formats a number of things, and the expected number if it differs.
func against(seen, want int64, what string) string {
	if seen == want {
		return fmt.Sprintf("%d %ss", seen, what)
	}
	return fmt.Sprintf("%d %ss (expected %d)", seen, what, want)
}

// judgePhases compares the phases that the client was sent with the length of the sidecar's span, which is exact on the busiest
// machine. What the client measures on top is the way through proxy and picker. How long that is depends on the machine, so it is
// shown and not judged.
func (e *evidence) judgePhases() report.Check {
	wellTimed := func(x *exchange) bool { return x.wellTimed(e.engine.concurrent) }
	right, of := e.tally(wellTimed)
	found := fmt.Sprintf("%d of %d", right, of)
	for i := range e.exchanges {
		if x := &e.exchanges[i]; x.failure == nil && !wellTimed(x) {
			return check(checkPhases, false, "%s; request %d (%s) has %s, in the sidecar it took %.3f ms, and the client measured %.3f ms", found,
				i+1, x.class.name, x.answer.phases.AppendTiming(nil, pd.PhaseEPP), inMillis(x.traced.took), inMillis(x.answer.took))
		}
	}
	if of == 0 {
		return check(checkPhases, false, "%s", found)
	}
	way, share, class := e.outside()
	return check(checkPhases, true, "%s; the client's median time is %.1f ms longer, and at most %.1f %% in a class (%s): the time between client and sidecar",
		found, inMillis(way), 100*share, class)
}

// outside returns how much more time than the phases the client measured: of the median request, and as a share of the measured
// time of the median request of the class in which that is largest.
func (e *evidence) outside() (way time.Duration, share float64, class string) {
	var ways []time.Duration
	shares := map[string][]float64{}
	for _, x := range e.answered() {
		more := x.answer.took - x.answer.attributed()
		ways = append(ways, more)
		shares[x.class.name] = append(shares[x.class.name], more.Seconds()/max(x.answer.took, 1).Seconds())
	}
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		if s := median(shares[name]); class == "" || s > share {
			share, class = s, name
		}
	}
	return median(ways), share, class
}

// median sorts values and returns the middle one, or the lower of the two in the middle.
func median[T cmp.Ordered](values []T) T {
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// rounding is how much a sum of phases may differ from what it is compared with: each is rounded to microseconds.
const rounding = time.Duration(pd.PhaseCount+1) * time.Microsecond

// wellTimed reports whether the phases are those that the request went through, add up to the time in the sidecar, and are with
// the picker's not longer than the time measured here.
func (x *exchange) wellTimed(concurrent bool) bool {
	for ph := range pd.PhaseOverlap + 1 { // the last
		if _, ok := x.answer.phases.Get(ph); ok != wantPhase(x.answer.decision, ph, concurrent) {
			return false
		}
	}
	missing := x.traced.took - x.answer.phases.Sum()
	return missing.Abs() <= rounding && x.answer.attributed() <= x.answer.took+rounding
}

// wantPhase reports whether a request with this result goes through a phase. Between legs that are sent at once is none.
func wantPhase(d pd.Result, ph pd.Phase, concurrent bool) bool {
	switch ph {
	case pd.PhaseEncode:
		return false // no encoder is started
	case pd.PhasePrefill:
		return d.Attempts > 0
	case pd.PhaseHandoff:
		return d.Verdict == pd.Remote && !concurrent
	case pd.PhaseOverlap:
		return d.Verdict == pd.Remote && concurrent
	}
	return true
}

func (e *evidence) judgeEnd() report.Check {
	if e.ended != nil {
		return check(checkEnd, false, "%v", e.ended)
	}
	return check(checkEnd, true, "each program ended when told to")
}
