package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/pd"
)

const (
	// slowLink is what a prefill pod may send while its link is slow, bits in a second: the KV cache of a long prompt, 512
	// bytes for each token, takes most of a second then, and milliseconds else.
	slowLink   = 16_000_000
	longPrompt = 3500
)

// scenarioPartition: packets between one prefill and one decode pod vanish, without a word, as a network that is cut does
// it. Requests between the two go on with another prefill pod, or are computed where they are decoded; then the link is
// there again, and then both prefill pods have a slow one.
var scenarioPartition = scenario{name: "partition", release: true,
	local: "loses packets between two pods, and slows a pod's link",
	run: func(t *testing.T, r *run) {
		prefill, decode := r.llm.readyPods(r.ctx, t, "prefill"), r.llm.readyPods(r.ctx, t, "decode")
		l := r.press(t, r.llm, 0)
		l.await(t, 10)

		// A leg that was abandoned may have been finished behind the cut: its hand-off cannot be released then.
		r.strands = cutLimit
		heal := r.partition(t, prefill[0], decode[0])
		began := time.Now()
		l.await(t, 40)
		redone := r.awaitDetour(t)
		heal()
		l.await(t, 20)
		r.awaitStraight(t)
		r.saw("%v of a partition: %s; straight again after it", time.Since(began).Round(time.Second), redone)

		r.slowLinks(t, prefill, l)
		l.end(t)
	}}

// cutLimit bounds how many hand-offs a partition may leave to run out: as many legs as can be on their way.
const cutLimit = 4 * clients

// partition has packets between two pods vanish, in both directions. The other direction is healed by what it gives, which
// may be done twice.
func (r *run) partition(t *testing.T, one, other corev1.Pod) (heal func()) {
	t.Helper()
	ends := [][2]corev1.Pod{{one, other}, {other, one}}
	for _, e := range ends {
		if err := r.sandbox(t, e[0]).Drop(netip.MustParseAddr(e[1].Status.PodIP)); err != nil {
			t.Fatal(err)
		}
	}
	healed := false
	heal = func() {
		if healed {
			return
		}
		healed = true
		for _, e := range ends {
			if err := r.sandbox(t, e[0]).Restore(netip.MustParseAddr(e[1].Status.PodIP)); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(heal)
	return heal
}

// longCall returns a request that has to be prefilled elsewhere, if that can be.
func longCall(random *rand.Rand, tokens int) call {
	return call{api: pd.APICompletions, prompt: drawTokens(random, tokens), tokens: 4,
		header: map[string]string{pd.HeaderMode: "force;fallback"}}
}

// awaitDetour asks until a request has met the cut: it was right all the same. It tells what became of it.
func (r *run) awaitDetour(t *testing.T) (how string) {
	t.Helper()
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	r.await(t, "a request meets the cut", 90*time.Second, func(ctx context.Context) (string, bool) {
		got := r.mustBeRight(t, longCall(random, 2*threshold))
		d := got.Decision
		how = fmt.Sprintf("a request between the two became %v", d)
		return d.String(), d.Verdict == pd.Local || d.Attempts > 1
	})
	return how
}

// awaitStraight asks until as many requests in a row as there are pairs were prefilled where it was tried first.
func (r *run) awaitStraight(t *testing.T) {
	t.Helper()
	const want = 8
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))
	straight := 0
	r.await(t, "requests go straight again", time.Minute, func(context.Context) (string, bool) {
		d := r.mustBeRight(t, longCall(random, 2*threshold)).Decision
		if straight++; d.Verdict != pd.Remote || d.Attempts != 1 {
			straight = 0
		}
		return fmt.Sprintf("%d in a row, the last became %v", straight, d), straight == want
	})
}

// mustBeRight makes a request, which has to be answered as by an engine that nothing happens to.
func (r *run) mustBeRight(t *testing.T, c call) reply {
	t.Helper()
	got := r.ask(t, r.llm, c)
	want, err := r.plain.ask(r.ctx, c)
	if got.Status != http.StatusOK || err != nil || !slices.Equal(got.Tokens, want) {
		t.Fatalf("status %d, decision %v, tokens %v, an undisturbed engine gives %v %v; %s", got.Status, got.Decision,
			got.Tokens, want, err, got.Body)
	}
	n := tally{right: 1}
	if got.Decision.Verdict == pd.Remote {
		n.remote = 1
	}
	r.row.add(n)
	return got
}

// slowLinks: what prefill pods send goes slowly for a while. Answers come late, and right.
func (r *run) slowLinks(t *testing.T, pods []corev1.Pod, l *load) {
	t.Helper()
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 3))
	took := func() time.Duration {
		began := time.Now()
		if d := r.mustBeRight(t, longCall(random, longPrompt)).Decision; d.Verdict != pd.Remote {
			t.Errorf("a long prompt became %v", d)
		}
		return time.Since(began)
	}
	limit := func(bits int64) {
		for _, pod := range pods {
			if err := r.sandbox(t, pod).Limit(bits); err != nil {
				t.Error(err)
			}
		}
	}
	fast := took()
	limit(slowLink)
	slow := took()
	l.await(t, 20)
	limit(0)
	// The bytes alone take longer than this, whatever else the machine does.
	if least := time.Duration(longPrompt * 512 * 8 * 1000 / slowLink * int(time.Millisecond) / 2); slow < least {
		t.Errorf("a prompt of %d tokens took %v over a link of %d bit/s, and cannot take less than %v", longPrompt, slow,
			slowLink, least)
	}
	r.saw("links of %d Mbit/s: a prompt of %d tokens is answered in %v instead of %v, prefilled remotely, and right",
		slowLink/1_000_000, longPrompt,
		slow.Round(time.Millisecond), fast.Round(time.Millisecond))
}
