package cluster

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// scenarioThreshold: prompts are split between pods where it pays, and where the client says so.
var scenarioThreshold = scenario{name: "threshold", release: true, ci: true, run: func(t *testing.T, r *run) {
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	fresh := func(n int) []int { return drawTokens(random, n) }
	cases := []struct {
		name   string
		prompt []int
		mode   string
		want   string
	}{
		{"one token short of the threshold", fresh(threshold - 1), "", "local;reason=short-prompt"},
		{"at the threshold", fresh(threshold), "", "remote;reason=uncached"},
		{"short, forced", fresh(threshold / 4), "force", "remote;reason=forced"},
		{"long, bypassed", fresh(2 * threshold), "bypass", "local;reason=bypassed"},
	}
	for _, c := range cases {
		r.split(t, c.name, c.prompt, c.mode, c.want)
	}
	r.converse(t, fresh(3*threshold), fresh(threshold/2))
	r.saw("255 tokens local, 256 remote; force, bypass; a second turn local, from decode's own cache")
	r.refusesNonsense(t)
}}

// split sends a prompt, and holds what becomes of it.
func (r *run) split(t *testing.T, name string, prompt []int, mode, want string) (got reply) {
	t.Helper()
	q := call{api: pd.APICompletions, prompt: prompt, tokens: 8, header: map[string]string{}}
	if mode != "" {
		q.header[pd.HeaderMode] = mode
	}
	got = r.ask(t, r.llm, q)
	if got.Status != http.StatusOK || !slices.Contains(strings.Split(want, " or "), plain(got.Decision)) {
		t.Errorf("%s (%d tokens): status %d, decision %q, want %q; %s", name, len(prompt), got.Status, plain(got.Decision), want, got.Body)
		return got
	}
	if want, err := r.plain.ask(r.ctx, q); err != nil || !slices.Equal(got.Tokens, want) {
		t.Errorf("%s: tokens %v, an undisturbed engine gives %v %v", name, got.Tokens, want, err)
	}
	if timing := got.Header.Get(pd.HeaderTiming); strings.Contains(timing, "handoff;dur=") != (got.Decision.Verdict == pd.Remote) {
		t.Errorf("%s: %s is %q", name, pd.HeaderTiming, timing)
	}
	n := tally{right: 1}
	if got.Decision.Verdict == pd.Remote {
		n.remote = 1
	}
	r.row.add(n)
	return got
}

// converse has a conversation of two turns. A picker knows what decode has cached from the requests that it has picked for
// itself, so the other one still has the second turn computed elsewhere when it sees it for the first time.
func (r *run) converse(t *testing.T, first, more []int) {
	t.Helper()
	const remote, local = "remote;reason=uncached", "local;reason=below-threshold"
	r.split(t, "a conversation's first turn", first, "", remote)
	turn := slices.Concat(first, more)
	for range 8 {
		got := r.split(t, "its second turn", turn, "", remote+" or "+local)
		if plain(got.Decision) != local {
			continue
		}
		if got.Cached < len(first)-threshold/8 {
			t.Errorf("the second turn was local, but of %d tokens %d were cached", len(turn), got.Cached)
		}
		return
	}
	t.Error("the second turn was remote again and again, although decode had most of it")
}

// refusesNonsense holds that an unknown mode is refused, in the API's shape.
func (r *run) refusesNonsense(t *testing.T) {
	t.Helper()
	got := r.ask(t, r.llm, call{api: pd.APICompletions, prompt: []int{300}, tokens: 1, header: map[string]string{pd.HeaderMode: "perhaps"}})
	if got.Status != http.StatusBadRequest || plain(got.Decision) != "refused;reason=bad-pd-header" || !strings.Contains(got.Body, `"message"`) {
		t.Errorf("an unknown mode: status %d, decision %q, %s", got.Status, plain(got.Decision), got.Body)
	}
}
