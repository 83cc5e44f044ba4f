package harness

import (
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// Pair is a prefill and a decode engine, and a plain one with the same weights, whose answers are the expected ones.
type Pair struct {
	Model                  string
	Prefill, Decode, Plain Engine
	Lease                  time.Duration
	TokenIDs               [2]int             // lowest and highest id that is an ordinary token
	Revive                 func(t *testing.T) // restarts a killed prefill engine at the same address
}

// MustRelease fails unless prefill frees all blocks within the promised time, and none of them by expiry.
func (p *Pair) MustRelease(t *testing.T, expired float64) {
	t.Helper()
	p.MustReleaseWithin(t, ReleaseWithin)
	if got := p.Prefill.Metric(t, Expiries); got != expired {
		t.Errorf("%v hand-offs expired on prefill", got-expired)
	}
}

// MustReleaseWithin fails unless prefill frees all blocks within the limit.
func (p *Pair) MustReleaseWithin(t *testing.T, limit time.Duration) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		used := p.Prefill.Metric(t, UsageGauge)
		if used == 0 {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("prefill still holds %.4f of its blocks after %v", used, limit)
		case <-poll.C:
		}
	}
}

// Fresh returns a prompt of n tokens that no engine has seen, and the same as text for chat.
func (p *Pair) Fresh(n int) []int {
	PromptSeed++
	seed := uint64(PromptSeed) * 0x9e3779b97f4a7c15
	ids := make([]int, n)
	for i := range ids {
		seed ^= seed << 13
		seed ^= seed >> 7
		seed ^= seed << 17
		ids[i] = p.TokenIDs[0] + int(seed%uint64(p.TokenIDs[1]-p.TokenIDs[0]))
	}
	return ids
}

// Ask returns a call of an API, with a prompt of about n tokens that no engine has seen.
func (p *Pair) Ask(api pd.API, n int, stream bool) Call {
	c := Call{API: api, Tokens: 8, Stream: stream}
	if api == pd.APICompletions || api == pd.APIGenerate {
		c.Prompt = p.Fresh(n)
	} else {
		c.Text = Words(n / 8)
	}
	return c
}

// PromptSeed makes the prompts of this process differ from those of others.
var PromptSeed = os.Getpid() << 16

// Want returns the plain engine's tokens.
func (p *Pair) Want(t *testing.T, c Call) []int {
	t.Helper()
	c.Stream, c.Header = false, nil
	r := MustSend(t, c, p.Plain.Addr, p.Model)
	if r.Status != http.StatusOK || len(r.Tokens) == 0 {
		t.Fatalf("the plain engine answers %d %s", r.Status, r.Body)
	}
	return r.Tokens
}
