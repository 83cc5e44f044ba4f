package chaos

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
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
)

// chaosAction is one thing that goes wrong, and is over after a time.
type chaosAction struct {
	at, lasts time.Duration
	kind      chaosKind
	target    string // a program: prefill-0, decode-1, sidecar-1, keeper-1, epp-0
	fault     string // for the simulator, as JSON
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
)

// chaosKinds are the kinds of actions, with their weights in the draw, and the roles of their targets.
var chaosKinds = []struct {
	kind   chaosKind
	weight int
	roles  []string
}{
	{chaosKill, 11, []string{"prefill", "decode", "sidecar", "keeper", "epp"}},
	{chaosPause, 5, []string{"prefill", "decode", "sidecar", "keeper", "epp"}},
	{chaosSlow, 2, []string{"prefill", "decode"}},
	{chaosCut, 3, []string{"prefill", "decode"}},
	{chaosRefuse, 2, []string{"prefill", "decode"}},
}

// planChaos draws the actions of a run. The same arguments give the same actions. At every moment one pod of each role, and
// one picker, is left alone.
func planChaos(seed uint64, lasts time.Duration, size chaosSize) []chaosAction {
	random := rand.New(rand.NewPCG(seed, 0))
	busy := map[string]time.Duration{} // until when no request may rely on a unit
	var plan []chaosAction
	for at := 300 * time.Millisecond; at < lasts; at += between(random, 150*time.Millisecond, 600*time.Millisecond) {
		a := drawChaos(random, size)
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

func drawChaos(random *rand.Rand, size chaosSize) chaosAction {
	sum := 0
	for _, k := range chaosKinds {
		sum += k.weight
	}
	n, i := random.IntN(sum), 0
	for ; n >= chaosKinds[i].weight; i++ {
		n -= chaosKinds[i].weight
	}
	role := chaosKinds[i].roles[random.IntN(len(chaosKinds[i].roles))]
	a := chaosAction{kind: chaosKinds[i].kind, target: role + "-" + strconv.Itoa(random.IntN(size.of(role)))}
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
	}
	return a
}

func (s chaosSize) of(role string) int {
	return map[string]int{"prefill": s.prefill, "decode": s.decode, "sidecar": s.decode, "keeper": s.decode, "epp": s.epp}[role]
}

// unitOf returns the pod that fails with a target: a decode pod fails with its engine or its sidecar. No request needs the
// keeper, but the release of hand-offs of a lost engine does.
func unitOf(target string) string {
	return strings.NewReplacer("sidecar", "decode", "keeper", "decode").Replace(target)
}

// leavesOne reports whether no other action is disturbing the target, and another unit of its role stays undisturbed.
func leavesOne(busy map[string]time.Duration, a chaosAction, size chaosSize) bool {
	unit := unitOf(a.target)
	role, _, _ := strings.Cut(unit, "-")
	if busy[unit] > a.at {
		return false
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

// TestChaosPlan: a seed gives one plan, plans have every kind and role, and always leave one unit of each role alone.
func TestChaosPlan(t *testing.T) {
	size := chaosSize{2, 3, 2}
	seen := map[string]int{}
	for seed := range uint64(20) {
		plan := planChaos(seed, 2*time.Minute, size)
		if again := planChaos(seed, 2*time.Minute, size); !slices.Equal(plan, again) {
			t.Fatalf("seed %d makes two plans", seed)
		}
		down := map[string]int{}
		for _, s := range stepsOf(plan) {
			role, _, _ := strings.Cut(s.target, "-")
			unit, _, _ := strings.Cut(unitOf(s.target), "-")
			if !s.begins {
				down[unit]--
				continue
			}
			seen[string(s.kind)+" "+role]++
			if down[unit]++; down[unit] >= size.of(unit) {
				t.Errorf("seed %d: %v leaves no %s", seed, s.chaosAction, unit)
			}
			if s.kind == chaosPause && s.lasts > chaosLease/3 {
				t.Errorf("seed %d: %v is longer than a third of the lease", seed, s.chaosAction)
			}
		}
	}
	for _, k := range chaosKinds {
		for _, role := range k.roles {
			if seen[string(k.kind)+" "+role] == 0 {
				t.Errorf("no plan has %s %s", k.kind, role)
			}
		}
	}
	if slices.Equal(planChaos(1, time.Minute, size), planChaos(2, time.Minute, size)) {
		t.Error("two seeds make the same plan")
	}
}
