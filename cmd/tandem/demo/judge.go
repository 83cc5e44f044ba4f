package demo

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/pd"
)

// The promises.
const (
	promiseAnswers   = "every request answered"
	promiseDecisions = "decisions as expected"
	promisePods      = "pods of each request known"
	promiseTokens    = "tokens equal to the reference engine's"
	promiseKV        = "KV bytes moved"
	promiseStranded  = "blocks stranded"
	promiseLost      = "hand-off of a failed decode leg released at once"
	promisePhases    = "phases add up to the measured time"
	promiseCompared  = "comparison served as meant"
	promiseEnd       = "everything started has ended"
)

// judge compares the evidence with the promises.
func (e *evidence) judge() []report.Promise {
	all := []report.Promise{
		e.judgeAnswers(), e.judgeDecisions(), e.judgePods(), e.judgeTokens(), e.judgeKV(), e.judgeStranded(), e.judgeLost(), e.judgePhases(),
	}
	if e.compared != nil {
		all = append(all, e.judgeComparison())
	}
	return append(all, e.judgeEnd())
}

func promise(name string, kept bool, format string, args ...any) report.Promise {
	return report.Promise{Name: name, Kept: kept, Found: fmt.Sprintf(format, args...)}
}

// answered returns the exchanges that have a complete answer. The others break a promise of their own.
func (e *evidence) answered() (all []*exchange) {
	for i := range e.exchanges {
		if e.exchanges[i].failure == nil {
			all = append(all, &e.exchanges[i])
		}
	}
	return all
}

// tally counts the answered exchanges that keep a promise.
func (e *evidence) tally(kept func(*exchange) bool) (right, of int) {
	for _, x := range e.answered() {
		of++
		if kept(x) {
			right++
		}
	}
	return right, of
}

func (e *evidence) judgeAnswers() report.Promise {
	n := len(e.answered())
	return promise(promiseAnswers, n == len(e.exchanges) && n > 0, "%d of %d with status 200 and a complete answer", n, len(e.exchanges))
}

// judgeDecisions checks that each request was served as its class requires, and remote ones at the first attempt.
func (e *evidence) judgeDecisions() report.Promise {
	right, of := e.tally((*exchange).asExpected)
	verdicts := map[pd.Verdict]int{}
	for _, x := range e.answered() {
		verdicts[x.answer.decision.Verdict]++
	}
	return promise(promiseDecisions, right == of && of > 0, "%d of %d; %d prefilled remotely, %d locally", right, of,
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
// that each prefill engine counts as many ended hand-offs as the spans say.
func (e *evidence) judgePods() report.Promise {
	right, of := e.tally(func(x *exchange) bool {
		return x.pods.decode != "" && (x.pods.prefill != "") == (x.answer.decision.Attempts > 0)
	})
	handoffs := map[string]int64{}
	for _, x := range e.answered() {
		if x.isRemote() {
			handoffs[x.pods.prefill]++
		}
	}
	same := true
	var counts []string
	for i, name := range e.prefill {
		counted := e.engines[i].Released + e.engines[i].Expired
		counts = append(counts, name+" "+against(handoffs[name], counted, "hand-off"))
		same = same && handoffs[name] == counted
	}
	return promise(promisePods, right == of && of > 0 && same, "%d of %d; %s, as the engines count", right, of, strings.Join(counts, ", "))
}

func (e *evidence) judgeTokens() report.Promise {
	right, of := e.tally(func(x *exchange) bool {
		return len(x.answer.generated) == x.tokens && slices.Equal(x.answer.generated, x.reference.generated)
	})
	return promise(promiseTokens, right == of && of > 0, "%d of %d answers", right, of)
}

// blocks returns how many blocks the prompt fills.
func (x *exchange) blocks() int { return (len(x.reference.prompt) + blockSize - 1) / blockSize }

// isRemote reports whether the decode engine pulled KV for it.
func (x *exchange) isRemote() bool { return x.failure == nil && x.answer.decision.Verdict == pd.Remote }

// wanted returns how many blocks have to move for remote prompts, if the engines count so many of their tokens as pulled
// from another engine. These are the blocks that the decode engine's prefix cache does not have. They are whole blocks,
// except the last one of a prompt, which may not be full.
func wanted(tokens int64, remote ...*exchange) int64 {
	for _, x := range remote {
		tokens += int64(x.blocks()*blockSize - len(x.reference.prompt))
	}
	return tokens / blockSize
}

// moved summarizes the KV that moved.
type moved struct {
	remote       []*exchange
	offered      int // blocks of their prompts
	alone, right int // requests that ran alone, and how many of these pulled the right bytes
}

func (e *evidence) moved() (m moved) {
	for i := range e.exchanges {
		x := &e.exchanges[i]
		var self []*exchange
		if x.isRemote() {
			self = []*exchange{x}
			m.remote = append(m.remote, x)
			m.offered += x.blocks()
		}
		if x.alone == nil {
			continue
		}
		m.alone++
		if x.alone.bytes == wanted(x.alone.tokens, self...)*e.blockBytes && (x.alone.bytes > 0) == x.isRemote() {
			m.right++
		}
	}
	return m
}

// judgeKV compares the bytes that moved with the prompt tokens that the decode engines count as pulled, in sum and for every
// request that ran alone. It also checks that the prefill engines were notified of the end of every remote prompt, with all
// of its blocks.
func (e *evidence) judgeKV() report.Promise {
	m := e.moved()
	var released int64
	for _, engine := range e.engines {
		released += engine.KVBytesServed
	}
	pulled, offered := wanted(e.pulled.tokens, m.remote...), int64(m.offered)*e.blockBytes
	kept := m.right == m.alone && pulled > 0 && e.pulled.bytes == pulled*e.blockBytes && released == offered
	return promise(promiseKV, kept, "%s for %d blocks that were not cached, of %s offered for %d remote prompts; as expected for %d of %d requests that ran alone",
		against(e.pulled.bytes, pulled*e.blockBytes, "byte"), pulled, against(released, offered, "byte"), len(m.remote), m.right, m.alone)
}

// against formats a number of things, with the expected number if it differs.
func against(seen, want int64, what string) string {
	if seen == want {
		return fmt.Sprintf("%d %ss", seen, what)
	}
	return fmt.Sprintf("%d instead of %d %ss", seen, want, what)
}

// judgeStranded counts stranded blocks: those that are still held, and those of hand-offs whose lease expired.
func (e *evidence) judgeStranded() report.Promise {
	held := 0
	var released, expired int64
	for _, engine := range e.engines {
		held += engine.Blocks.Used
		released += engine.Released
		expired += engine.Expired
	}
	return promise(promiseStranded, held == 0 && expired == 0, "%d still held; %d hand-offs released, %d expired", held, released, expired)
}

const (
	// minExplained is the share of the measured time that the phases must explain in every class, for its median request.
	minExplained = 0.95
	// maxWays bounds what they may leave unexplained on a machine that is too busy for minExplained: the way between client and
	// sidecar is the same for all classes, so no class may lose more than so many times what the best one loses.
	maxWays = 3
)

// explained is how much of the time of a class's requests the phases account for.
type explained struct {
	class string
	share float64       // of the median request
	lost  time.Duration // of the median request: the way between client and sidecar
}

// explain returns the classes in the order in which they first appear.
func (e *evidence) explain() (all []explained) {
	var classes []string
	shares, lost := map[string][]float64{}, map[string][]time.Duration{}
	for _, x := range e.answered() {
		name := x.class.name
		if shares[name] == nil {
			classes = append(classes, name)
		}
		a := &x.answer
		shares[name] = append(shares[name], a.attributed().Seconds()/max(a.took, 1).Seconds())
		lost[name] = append(lost[name], a.took-a.attributed())
	}
	for _, name := range classes {
		all = append(all, explained{name, median(shares[name]), median(lost[name])})
	}
	return all
}

// median sorts values and returns the middle one, or the lower of the two in the middle.
func median[T cmp.Ordered](values []T) T {
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

func (e *evidence) judgePhases() report.Promise {
	right, of := e.tally((*exchange).wellTimed)
	all := e.explain()
	if len(all) == 0 {
		return promise(promisePhases, false, "of no request")
	}
	worst := slices.MinFunc(all, func(a, b explained) int { return cmp.Compare(a.share, b.share) })
	way := slices.MinFunc(all, func(a, b explained) int { return cmp.Compare(a.lost, b.lost) }).lost
	kept := right == of && !slices.ContainsFunc(all, func(c explained) bool { return c.share < minExplained && c.lost > maxWays*way })
	return promise(promisePhases, kept,
		"at least %.1f %% of it in each class, %.0f %% wanted or %d times the way through the proxy (%.1f ms), least for “%s”; "+
			"not above the measured time: %d of %d", 100*worst.share, 100*minExplained, maxWays, inMillis(way), worst.class, right, of)
}

// wellTimed reports whether the phases are those that the request went through, and not longer than the time measured here.
// Phases are rounded to microseconds, so each may be half a microsecond too long.
func (x *exchange) wellTimed() bool {
	for ph := range pd.Phase(pd.PhaseCount) + 1 { // PhaseEPP is the last
		if _, ok := x.answer.phases.Get(ph); ok != wantPhase(x.answer.decision, ph) {
			return false
		}
	}
	return x.answer.attributed() <= x.answer.took+time.Duration(pd.PhaseCount+1)*time.Microsecond
}

// wantPhase reports whether a request with this result goes through a phase.
func wantPhase(d pd.Result, ph pd.Phase) bool {
	switch ph {
	case pd.PhasePrefill:
		return d.Attempts > 0
	case pd.PhaseHandoff:
		return d.Verdict == pd.Remote
	}
	return true
}

func (e *evidence) judgeEnd() report.Promise {
	if e.ended != nil {
		return promise(promiseEnd, false, "%v", e.ended)
	}
	return promise(promiseEnd, true, "each program ended when told to")
}
