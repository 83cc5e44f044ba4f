package chaos

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// chaosKind is what is done to a program.
type chaosKind string

const (
	chaosKill   chaosKind = "kill"   // SIGKILL; started again at the same addresses, an engine with a new id, a keeper by its sidecar
	chaosPause  chaosKind = "pause"  // SIGSTOP, and SIGCONT
	chaosSlow   chaosKind = "slow"   // the engine sees requests late
	chaosCut    chaosKind = "cut"    // the engine breaks off some answers
	chaosRefuse chaosKind = "refuse" // the engine's port is closed

	// Of the wide form only.
	chaosHang chaosKind = "hang" // SIGSTOP for longer than the lease, and SIGCONT: the program's clocks jump
	chaosFull chaosKind = "full" // the program can open no descriptor more: no file, no connection
	chaosFar  chaosKind = "far"  // the pool has the pod at the end of a link of 200 ms
)

// chaosAction is one thing that goes wrong, and is over after a time.
type chaosAction struct {
	at, lasts time.Duration
	kind      chaosKind
	target    string // a program: prefill-0, decode-1, sidecar-1, keeper-1, epp-0, envoy-0
	fault     string // for the simulator, as JSON
	alone     bool   // no action of another kind, or on another role, is under way meanwhile
}

// name returns the kind, and the role of the target.
func (a chaosAction) name() string {
	role, _, _ := strings.Cut(a.target, "-")
	return string(a.kind) + " " + role
}

func (a chaosAction) String() string {
	return strings.TrimSpace(fmt.Sprintf("%6.2fs %-6s %-9s for %4d ms %s", a.at.Seconds(), a.kind, a.target, a.lasts.Milliseconds(), a.fault))
}

// chaosStep is the beginning or the end of an action.
type chaosStep struct {
	at     time.Duration
	begins bool
	chaosAction
}

// chaosSize is how many there are of each role. A decode pod is an engine and a sidecar.
type chaosSize struct{ prefill, decode, epp int }

const (
	chaosLease = 6 * time.Second
	// chaosSettle is how long after an action no request may rely on its target: a program that is back is found at once, but
	// requests that failed there just before still try again elsewhere.
	chaosSettle = 500 * time.Millisecond
	// chaosHangs bounds how long a program hangs: streams of a decode engine that hangs end after ten seconds.
	chaosHangs = chaosLease * 3 / 2
)

// chaosRow is a kind of actions, with its weight in the draw, and the roles of its targets.
type chaosRow struct {
	kind   chaosKind
	weight int
	roles  []string
}

// chaosKinds are the kinds of actions.
var chaosKinds = []chaosRow{
	{chaosKill, 11, []string{"prefill", "decode", "sidecar", "keeper", "epp"}},
	{chaosPause, 5, []string{"prefill", "decode", "sidecar", "keeper", "epp"}},
	{chaosSlow, 2, []string{"prefill", "decode"}},
	{chaosCut, 3, []string{"prefill", "decode"}},
	{chaosRefuse, 2, []string{"prefill", "decode"}},
}

// wideKinds are the kinds of actions of the wide form. Engines with full descriptors are not among them: they are simulated, and
// to the others they look like engines that hang. Nor is Envoy, which refuses requests then: it is the only one.
var wideKinds = append(slices.Clone(chaosKinds),
	chaosRow{chaosPause, 2, []string{"envoy"}},
	chaosRow{chaosFull, 3, []string{"sidecar", "keeper", "epp"}},
	chaosRow{chaosFar, 2, []string{"prefill", "decode"}},
	chaosRow{chaosHang, 1, []string{"prefill", "decode", "sidecar", "keeper", "epp", "envoy"}},
)

// planChaos draws the actions of a run. The same arguments give the same actions. At every moment one pod of each role, and
// one picker, is left alone.
func planChaos(seed uint64, lasts time.Duration, size chaosSize) []chaosAction {
	return drawPlan(rand.New(rand.NewPCG(seed, 0)), 0, lasts, size, chaosKinds)
}

// planWide draws the actions of a run of the wide form. In its first half each kind has each role by itself for a while, so that
// what it does can be told; in the second, everything happens at once.
func planWide(seed uint64, lasts time.Duration, size chaosSize) []chaosAction {
	random := rand.New(rand.NewPCG(seed, 1))
	var each []chaosRow
	for _, k := range wideKinds {
		for _, role := range k.roles {
			each = append(each, chaosRow{k.kind, 1, []string{role}})
		}
	}
	var plan []chaosAction
	at := time.Duration(0)
	for i, k := range each {
		share := max(time.Second, (lasts/2-at)/time.Duration(len(each)-i)) // of what those before it have left: the last action may take longer
		some := drawPlan(random, at, at+share, size, []chaosRow{k})
		at += share
		for j := range some {
			some[j].alone = true
			at = max(at, some[j].at+some[j].lasts)
		}
		at += 4 * chaosSettle // answers that waited come
		plan = append(plan, some...)
	}
	return append(plan, drawPlan(random, at, lasts, size, wideKinds)...)
}

// drawPlan draws actions that begin in a span of time.
func drawPlan(random *rand.Rand, from, to time.Duration, size chaosSize, kinds []chaosRow) (plan []chaosAction) {
	busy := map[string]time.Duration{} // until when no request may rely on a unit
	for at := from + 300*time.Millisecond; at < to; at += between(random, 150*time.Millisecond, 600*time.Millisecond) {
		a := drawChaos(random, size, kinds)
		if a.at = at; !leavesOne(busy, a, size) {
			continue
		}
		busy[unitOf(a.target)] = at + a.lasts + chaosSettle
		plan = append(plan, a)
	}
	return plan
}

func between(random *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(random.Int64N(int64(high-low)))
}

func drawChaos(random *rand.Rand, size chaosSize, kinds []chaosRow) chaosAction {
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	n, i := random.IntN(sum), 0
	for ; n >= kinds[i].weight; i++ {
		n -= kinds[i].weight
	}
	role := kinds[i].roles[random.IntN(len(kinds[i].roles))]
	a := chaosAction{kind: kinds[i].kind, target: role + "-" + strconv.Itoa(random.IntN(size.of(role)))}
	leg := role
	switch a.kind {
	case chaosKill:
		a.lasts = between(random, 200*time.Millisecond, 1500*time.Millisecond)
	case chaosPause:
		a.lasts = between(random, 100*time.Millisecond, chaosLease/3)
	case chaosSlow:
		a.lasts = between(random, 300*time.Millisecond, 1500*time.Millisecond)
		a.fault = fmt.Sprintf(`{"leg":%q,"fault":"slow","arg":"%d"}`, leg, 50+random.IntN(350))
	case chaosCut:
		a.lasts = between(random, 300*time.Millisecond, 800*time.Millisecond)
		how := []string{"reset-before", "reset-after", "truncate"}[random.IntN(3)]
		a.fault = fmt.Sprintf(`{"leg":%q,"fault":%q,"count":%d}`, leg, how, 1+random.IntN(4))
	case chaosRefuse:
		a.lasts = between(random, 200*time.Millisecond, 1000*time.Millisecond)
		a.fault = `{"leg":"any","fault":"refuse"}`
	case chaosHang:
		a.lasts = between(random, chaosLease+time.Second, chaosHangs)
	case chaosFull:
		a.lasts = between(random, 500*time.Millisecond, 3*time.Second)
	case chaosFar:
		a.lasts = between(random, time.Second, 4*time.Second)
	}
	return a
}

func (s chaosSize) of(role string) int {
	return map[string]int{"prefill": s.prefill, "decode": s.decode, "sidecar": s.decode, "keeper": s.decode, "epp": s.epp, "envoy": 1}[role]
}

// unitOf returns the pod that fails with a target: a decode pod fails with its engine or its sidecar. No request needs the
// keeper, but the release of hand-offs of a lost engine does.
func unitOf(target string) string {
	return strings.NewReplacer("sidecar", "decode", "keeper", "decode").Replace(target)
}

// leavesOne reports whether no other action is disturbing the target, and another unit of its role stays undisturbed. Envoy is the
// only one of its role: it may be stopped, but not while a picker is disturbed, because Envoy tells whether it has another one.
func leavesOne(busy map[string]time.Duration, a chaosAction, size chaosSize) bool {
	unit := unitOf(a.target)
	role, _, _ := strings.Cut(unit, "-")
	if busy[unit] > a.at || role == "epp" && busy["envoy-0"] > a.at {
		return false
	}
	if role == "envoy" {
		for i := range size.epp {
			if busy["epp-"+strconv.Itoa(i)] > a.at {
				return false
			}
		}
		return true
	}
	for i := range size.of(role) {
		if other := role + "-" + strconv.Itoa(i); other != unit && busy[other] <= a.at {
			return true
		}
	}
	return false
}

// stepsOf returns the beginnings and ends of actions, in order.
func stepsOf(plan []chaosAction) []chaosStep {
	var steps []chaosStep
	for _, a := range plan {
		steps = append(steps, chaosStep{a.at, true, a}, chaosStep{a.at + a.lasts, false, a})
	}
	slices.SortStableFunc(steps, func(a, b chaosStep) int { return cmp.Compare(a.at, b.at) })
	return steps
}

// carryOut does the steps of a plan, each at its time. A step that takes long, because it waits for a program, delays all later steps, so that
// none come closer together than planned. No action begins when the time is over; those that have begun end at their times.
func carryOut(ctx context.Context, plan []chaosAction, lasts time.Duration, do func(chaosStep)) {
	start := time.Now()
	late := time.Duration(0)
	begun := map[chaosAction]bool{}
	for _, s := range stepsOf(plan) {
		at := s.at + late
		if s.begins && at >= lasts || !s.begins && !begun[s.chaosAction] {
			continue
		}
		begun[s.chaosAction] = true
		pause(ctx, time.Until(start.Add(at)))
		began := time.Now()
		do(s)
		late += time.Since(began)
	}
}

// TestChaosPlan: a seed gives one plan, plans have every kind and role, and always leave one unit of each role alone. Those of the
// wide form have every kind and role by itself as well.
func TestChaosPlan(t *testing.T) {
	size := chaosSize{2, 3, 2}
	for _, c := range []struct {
		name  string
		plan  func(seed uint64) []chaosAction
		kinds []chaosRow
		alone bool // every kind and role comes by itself, too
	}{
		{"short", func(seed uint64) []chaosAction { return planChaos(seed, 2*time.Minute, size) }, chaosKinds, false},
		{"wide", func(seed uint64) []chaosAction { return planWide(seed, 5*time.Minute, size) }, wideKinds, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := map[string]int{}
			for seed := range uint64(20) {
				plan := c.plan(seed)
				if !slices.Equal(plan, c.plan(seed)) {
					t.Fatalf("seed %d makes two plans", seed)
				}
				alone := map[string]int{}
				follow(plan, func(a chaosAction, others []chaosAction) {
					if fault := broken(a, others, size); fault != "" {
						t.Errorf("seed %d: %v %s", seed, a, fault)
					}
					if a.alone {
						alone[a.name()]++
					} else {
						seen[a.name()]++
					}
				})
				if c.alone {
					mustHaveAll(t, fmt.Sprintf("seed %d by itself", seed), c.kinds, alone)
				}
			}
			mustHaveAll(t, "any plan", c.kinds, seen)
			if slices.Equal(c.plan(1), c.plan(2)) {
				t.Error("two seeds make the same plan")
			}
		})
	}
}

// TestCarryOut: the actions of a plan begin within its time, in the planned distances, however long its steps take; and all of them end.
func TestCarryOut(t *testing.T) {
	const lasts = time.Minute
	plan := planChaos(1, lasts, chaosSize{2, 3, 2})
	for name, c := range map[string]struct {
		takes time.Duration // each step
		whole bool          // all actions of the plan are carried out
	}{"at once": {0, true}, "slowly": {100 * time.Millisecond, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				begun, under := 0, map[chaosAction]time.Time{}
				carryOut(t.Context(), plan, lasts, func(s chaosStep) {
					if s.begins {
						if began := time.Since(start); began < s.at || began >= lasts {
							t.Errorf("%v begins after %v", s.chaosAction, began)
						}
						begun++
						under[s.chaosAction] = time.Now()
					} else {
						if lasted := time.Since(under[s.chaosAction]); lasted < s.lasts {
							t.Errorf("%v lasts %v", s.chaosAction, lasted)
						}
						delete(under, s.chaosAction)
					}
					pause(t.Context(), c.takes)
				})
				if whole := begun == len(plan); whole != c.whole || begun == 0 || len(under) > 0 {
					t.Errorf("%d of %d actions have begun, %d have not ended", begun, len(plan), len(under))
				}
				if took := time.Since(start); took > lasts+chaosHangs {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// follow calls begins for each action of a plan, with those that are under way when it begins.
func follow(plan []chaosAction, begins func(a chaosAction, others []chaosAction)) {
	var under []chaosAction
	for _, s := range stepsOf(plan) {
		if s.begins {
			begins(s.chaosAction, under)
			under = append(under, s.chaosAction)
		} else {
			i := slices.Index(under, s.chaosAction)
			under = slices.Delete(under, i, i+1)
		}
	}
}

// broken says which rule an action breaks that begins while others are under way; "": none.
func broken(a chaosAction, others []chaosAction, size chaosSize) string {
	unit, _, _ := strings.Cut(unitOf(a.target), "-")
	down := 1 // units of its role
	for _, o := range others {
		role, _, _ := strings.Cut(unitOf(o.target), "-")
		switch {
		case role == unit:
			down++
		case role == "envoy" && unit == "epp", role == "epp" && unit == "envoy":
			return "begins during " + o.String()
		}
		if (a.alone || o.alone) && o.name() != a.name() {
			return "is not by itself: " + o.String()
		}
	}
	switch {
	case unit == "envoy" && down > 1:
		return "begins while Envoy is stopped"
	case unit != "envoy" && down >= size.of(unit):
		return "leaves no " + unit
	case a.kind == chaosPause && a.lasts > chaosLease/3:
		return "is longer than a third of the lease"
	case a.kind == chaosHang && (a.lasts <= chaosLease || a.lasts > 9500*time.Millisecond):
		return "is not longer than the lease, or too long for streams that wait"
	}
	return ""
}

// mustHaveAll fails unless every kind and role was seen.
func mustHaveAll(t *testing.T, where string, kinds []chaosRow, seen map[string]int) {
	t.Helper()
	for _, k := range kinds {
		for _, role := range k.roles {
			if seen[string(k.kind)+" "+role] == 0 {
				t.Errorf("%s: there is no %s %s", where, k.kind, role)
			}
		}
	}
}
