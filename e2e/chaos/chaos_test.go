package chaos

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
)

// The runs that count: make chaos, and make chaos-long.
var (
	chaosSeed     = flag.Uint64("chaos.seed", 1, "seed of TestChaos: the same seed gives the same actions and requests")
	chaosFor      = flag.Duration("chaos.for", 8*time.Second, "how long TestChaos has things go wrong, on a busy machine too: fewer then")
	chaosRequests = flag.Int("chaos.requests", 500, "how many requests TestChaos sends meanwhile; on a machine that is too busy for them, fewer")
	chaosWide     = flag.Bool("chaos.wide", false, "TestChaos has more kinds of things go wrong, first each by itself, then all: minutes")
)

// TestChaos sends a mixed load through Envoy while engines, sidecars, their keepers and one of two pickers are killed, stopped,
// restarted, slowed, cut and refused; in the wide form Envoy is stopped as well, programs hang for longer than a lease or have all
// their descriptors in use, and links are long. As long as a pod of each role works, clients may see only
//
//   - a cut stream when its sidecar is killed: no process is left that could go on with it. Envoy ends the connection in the middle of the
//     stream, or answers 502 if it has passed nothing of it on yet;
//   - a stream that its decode engine broke off, and that could not go on at another one, as where these fail as well: it ends with a
//     well-formed error event;
//   - a refusal because the budget for prefill on decode pods is used up;
//   - a refusal of a request that the client forced to be prefilled remotely without a fallback, if each prefill pod, or each decode pod,
//     failed at some time while it ran: it has no other one.
//
// Failures and load end with the time that they are to last, however busy the machine is. Before it comes a warm-up of a twentieth of it at
// most; after it, answers that are under way have chaosPatience to end, and each program has harness.Patience to become idle.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	size := chaosSize{prefill: 2, decode: 3, epp: 2}
	plan := planChaos(*chaosSeed, *chaosFor, size)
	if *chaosWide {
		plan = planWide(*chaosSeed, *chaosFor, size)
	}
	c := newChaosStack(t, size, chaosForm{wide: *chaosWide})
	c.awaitPickers(t)
	idle := c.holdings(t)
	load := &chaosLoad{f: c.Fleet, seed: *chaosSeed}
	warmup := max(50, *chaosRequests/20)
	load.run(t.Context(), 0, warmup, time.Duration(float64(*chaosFor)*float64(warmup)/float64(*chaosRequests)))
	c.awaitIdle(t)
	warm := c.holdings(t)

	t.Logf("seed %d:\n%s", *chaosSeed, lines(plan))
	ctx, stop := context.WithCancel(t.Context())
	var loading sync.WaitGroup
	defer loading.Wait()
	defer stop()
	began := time.Now()
	loading.Go(func() { load.run(ctx, warmup, warmup+*chaosRequests, *chaosFor) })
	done := c.follow(t, plan, *chaosFor)
	loading.Wait()
	took := time.Since(began)
	c.awaitIdle(t)
	c.mustSettle(t, idle, warm)
	c.mustHaveKeepers(t)

	r := chaosReport{load: load, size: size, wanted: warmup + *chaosRequests, planned: len(plan), done: done, counts: c.counts(t), strands: c.strands}
	r.kept, r.dropped = c.assessLosses(done)
	t.Log(r.table(took, idle, warm, c.holdings(t)))
	if *chaosWide {
		t.Logf("for docs/chaos.md:\n%s", r.kinds())
	}
	r.check(t)
	if t.Failed() {
		t.Logf("again: go test ./e2e/chaos -run 'TestChaos$' -chaos.seed=%d -chaos.for=%v -chaos.requests=%d -chaos.wide=%v", *chaosSeed, *chaosFor,
			*chaosRequests, *chaosWide)
	}
}

func lines[T fmt.Stringer](list []T) string {
	var b strings.Builder
	for _, v := range list {
		fmt.Fprintln(&b, "\t", v)
	}
	return b.String()
}

// chaosReport has the results of a run.
type chaosReport struct {
	load    *chaosLoad
	size    chaosSize
	wanted  int // requests that were to be sent
	planned int // actions that were to be carried out
	done    []chaosDone
	counts  chaosCounts
	strands map[string]int // how many hand-offs may be stranded, by cause
	kept    int            // how many hand-offs, at most, a keeper had to release
	dropped int64          // how many of those it did not release
}

// during reports whether one of the actions was under way while a call ran.
func (r *chaosReport) during(res chaosResult, is func(a chaosAction) bool) bool {
	return slices.ContainsFunc(r.done, func(d chaosDone) bool {
		return is(d.action) && d.begin.Before(res.end) && (d.end.IsZero() || d.end.After(res.begin))
	})
}

func killsSidecar(a chaosAction) bool {
	return a.kind == chaosKill && strings.HasPrefix(a.target, "sidecar")
}

func killsPicker(a chaosAction) bool {
	return a.kind == chaosKill && strings.HasPrefix(a.target, "epp")
}

// prefillAway reports whether a prefill engine that has answered may not hand its KV cache over.
func prefillAway(a chaosAction) bool {
	return strings.HasPrefix(a.target, "prefill") && slices.Contains([]chaosKind{chaosKill, chaosPause, chaosHang, chaosCut}, a.kind)
}

// eachFailed reports whether each pod of a role failed at some time while a call ran, so that the call may have met no other one.
func (r *chaosReport) eachFailed(res chaosResult, role string) bool {
	for i := range r.size.of(role) {
		pod := role + "-" + strconv.Itoa(i)
		fails := func(a chaosAction) bool {
			slower := a.kind == chaosSlow || a.kind == chaosFar || strings.HasPrefix(a.target, "keeper")
			return unitOf(a.target) == pod && !slower
		}
		if !r.during(res, fails) {
			return false
		}
	}
	return true
}

func decodeBrokeOff(a chaosAction) bool {
	return (a.kind == chaosKill || a.kind == chaosCut) && strings.HasPrefix(a.target, "decode")
}

// history lists the actions while a call ran, and shortly before. Times count from the call's beginning.
func (r *chaosReport) history(res chaosResult) string {
	var b strings.Builder
	since := func(at time.Time) time.Duration { return at.Sub(res.begin).Round(time.Millisecond) }
	fmt.Fprintf(&b, "\t%v: its end\n", since(res.end))
	for _, d := range r.done {
		if d.end.After(res.begin.Add(-time.Second)) && d.begin.Before(res.end) {
			fmt.Fprintf(&b, "\t%v to %v: %s %s %s\n", since(d.begin), since(d.end), d.action.kind, d.action.target, d.action.fault)
		}
	}
	return b.String()
}

// check fails the test for answers, reads and lost hand-offs that no action explains.
func (r *chaosReport) check(t *testing.T) {
	t.Helper()
	budget, picks, forced, events := 0, 0, 0, 0
	for _, res := range r.load.results {
		ok := true
		switch res.how {
		case endEvent:
			events++
			ok = r.during(res, decodeBrokeOff)
		case endCut:
			ok = r.during(res, killsSidecar)
		case endBudget:
			budget++
		case endPick:
			picks++
			ok = r.during(res, killsPicker)
		case endForced:
			forced++
			ok = r.eachFailed(res, "prefill") || r.eachFailed(res, "decode")
		case endFailed, endWrong:
			ok = false
		}
		if !ok {
			t.Errorf("%s %s (%s, %v, stream %v, large %v): %s\n%s", res.call.id, res.how, res.call.behaviour, res.call.API, res.call.Stream,
				res.call.large, res.detail, r.history(res))
		}
	}
	if most := len(r.load.results) / 50; budget > most {
		t.Errorf("%d of %d requests were refused by the budget, more than %d", budget, len(r.load.results), most)
	}
	if most := max(1, len(r.load.results)/2000); events > most {
		t.Errorf("%d of %d streams did not go on at another engine, more than %d", events, len(r.load.results), most)
	}
	if most := max(1, len(r.load.results)/10_000); forced > most {
		t.Errorf("%d of %d requests were refused because prefill was forced, more than %d", forced, len(r.load.results), most)
	}
	// A kill interrupts an answer once in 185 times (package epp/extproc): two in one run are a defect.
	if picks > 1 {
		t.Errorf("%d requests got no pick because a picker was killed, more than 1", picks)
	}
	late := r.strands[sidecarHung] + r.strands[prefillHung] + r.strands[decodeHung] // hand-offs that expire before they can be released
	// Prefill may hear twice of each: from the leg, which goes on when decode does, and from the release that the sidecar has asked for.
	if most := 2 * late; r.counts.stale > int64(most) || r.counts.foreign != 0 {
		t.Errorf("%d stale and %d foreign reads, want at most %d and 0", r.counts.stale, r.counts.foreign, most)
	}
	// A sidecar counts each hand-off that it failed to release, unless it was killed itself, or its client left meanwhile.
	unknown, most := r.strands[sidecarKilled]+r.strands[prefillCut]+late, r.strands[decodeGone]+r.strands[decodeCut]+r.strands[prefillCut]+late
	if r.counts.expired > r.counts.stranded+int64(unknown) {
		t.Errorf("%d hand-offs expired, %d of which sidecars know, want at most %d others: %v", r.counts.expired, r.counts.stranded, unknown, r.strands)
	}
	if r.dropped > 0 {
		t.Errorf("sidecars could not release %d hand-offs when decode was lost, and their keepers and prefill were up", r.dropped)
	}
	if r.counts.stranded > int64(most) {
		t.Errorf("sidecars could not release %d hand-offs, want at most %d: %v", r.counts.stranded, most, r.strands)
	}
}

// table returns the summary.
func (r *chaosReport) table(took time.Duration, idle, warm, now map[string]harness.Holdings) string {
	var b strings.Builder
	row := func(what string, values ...any) { fmt.Fprintf(&b, "%-40s %s\n", what, fmt.Sprint(values...)) }
	fmt.Fprintln(&b)
	row("seed", *chaosSeed)
	row("time", took.Round(10*time.Millisecond))
	row("requests", len(r.load.results), " of ", r.wanted)
	for _, how := range []chaosEnd{endRight, endLeft, endEvent, endCut, endBudget, endPick, endForced, endFailed, endWrong} {
		n := 0
		for _, res := range r.load.results {
			if res.how == how {
				n++
			}
		}
		row("  "+string(how), n)
	}
	kinds := map[string]int{}
	for _, d := range r.done {
		kinds[d.action.name()]++
	}
	row("actions", len(r.done), " of ", r.planned)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		row("  "+kind, kinds[kind])
	}
	row("hand-offs", r.counts.handoffs)
	row("stranded", r.counts.expired)
	row("  as sidecars know", r.counts.stranded)
	for _, cause := range slices.Sorted(maps.Keys(r.strands)) {
		row("  "+cause, "at most ", r.strands[cause])
	}
	row("released directly", r.counts.direct)
	row("  perhaps, and again by way of decode", r.counts.unsure)
	row("  in flight when only a keeper could", "at most ", r.kept)
	row("stale reads", r.counts.stale)
	row("foreign reads", r.counts.foreign)
	for _, name := range slices.Sorted(maps.Keys(now)) {
		row(name, "before    ", idle[name])
		row("", "light load", warm[name])
		row("", "now       ", now[name])
	}
	return b.String()
}

// effect is what one kind of actions did to requests.
type effect struct {
	actions, hit                       int
	failed, wrong, cut, event, refused int
	wait                               time.Duration // the longest that was under way during such an action
}

func (e *effect) add(res chaosResult) {
	e.hit++
	switch res.how {
	case endFailed:
		e.failed++
	case endWrong:
		e.wrong++
	case endCut:
		e.cut++
	case endEvent:
		e.event++
	case endPick, endBudget, endForced:
		e.refused++
	}
}

// kinds returns a table in Markdown: what each kind of actions did that came by itself, and all of them together.
func (r *chaosReport) kinds() string {
	const together = "all of them together"
	var names []string
	effects := map[string]*effect{}
	spans := map[string][]wait{} // of the actions
	for _, d := range r.done {
		name := together
		if d.action.alone {
			name = d.action.name()
		}
		if effects[name] == nil {
			names, effects[name] = append(names, name), &effect{}
		}
		effects[name].actions++
		spans[name] = append(spans[name], wait{d.begin, d.end})
	}
	for _, res := range r.load.results {
		for name, e := range effects {
			if meets(spans[name], wait{res.begin, res.end}) {
				e.add(res)
			}
			if meets(spans[name], res.wait) {
				e.wait = max(e.wait, res.wait.took())
			}
		}
	}
	var b strings.Builder
	fmt.Fprintln(&b, "| Failure, of what | times | requests meanwhile | failed | wrong | cut | error events | refused | longest wait |\n|---|---|---|---|---|---|---|---|---|")
	for _, name := range names {
		e := effects[name]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d | %d | %.1f s |\n", name, e.actions, e.hit, e.failed, e.wrong, e.cut, e.event, e.refused, e.wait.Seconds())
	}
	return b.String()
}

// meets reports whether a time overlaps one of several.
func meets(spans []wait, w wait) bool {
	return slices.ContainsFunc(spans, func(s wait) bool { return s.begin.Before(w.end) && w.begin.Before(s.end) })
}
