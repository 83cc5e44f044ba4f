package cluster

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// scenarioUpgrade: another threshold is rolled out under load, and back; in CI, which has little time, not back.
var scenarioUpgrade = scenario{name: "upgrade", release: true, ci: true, run: func(t *testing.T, r *run) {
	const middle = threshold / 2 // tokens of a prompt that the one has stay and the other go
	r.mustDecide(t, middle, "local;reason=short-prompt")
	l := r.press(t, r.llm, 0)
	l.await(t, 16)
	began := time.Now()
	r.llm.upgrade(t, r, "epp.threshold=64")
	r.llm.awaitSettled(t, "epp", time.Minute)
	upgraded := time.Since(began)
	r.mustDecide(t, middle, "remote;reason=uncached")
	l.await(t, 16)
	r.saw("threshold 64 rolled out in %.0f s: %d tokens local before, remote after", upgraded.Seconds(), middle)
	if !*onlyCI {
		r.rollBack(t)
		r.mustDecide(t, middle, "local;reason=short-prompt")
		l.await(t, 16)
	}
	n := l.end(t)
	r.saw("%d requests right meanwhile, none failed", n.right)
}}

// rollBack gives the release llm the values that it had before.
func (r *run) rollBack(t *testing.T) {
	t.Helper()
	began := time.Now()
	if _, err := r.helm(r.ctx, t, "rollback", r.llm.name, "-n", namespace, "--wait", "--timeout", helmTimeout); err != nil {
		t.Fatalf("%v\n%s", err, r.llm.state(r.ctx))
	}
	r.llm.awaitSettled(t, "epp", time.Minute)
	r.saw("rolled back in %.0f s: local again", time.Since(began).Seconds())
}

// mustDecide sends a prompt of so many tokens some times, so that each picker is asked, and holds what becomes of it.
func (r *run) mustDecide(t *testing.T, tokens int, want string) {
	t.Helper()
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))
	for range 6 {
		got := r.ask(t, r.llm, call{api: pd.APICompletions, prompt: drawTokens(random, tokens), tokens: 4})
		if got.Status != 200 || plain(got.Decision) != want {
			t.Errorf("a prompt of %d tokens: status %d, decision %q, want %q", tokens, got.Status, plain(got.Decision), want)
		}
		n := tally{right: 1}
		if got.Decision.Verdict == pd.Remote {
			n.remote = 1
		}
		r.row.add(n)
	}
}
