package rolling

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// rollingKinds are the requests of a mixed load, in the order in which a client sends them.
var rollingKinds = []struct {
	name   string
	chat   bool
	stream bool
	prompt int // tokens; from threshold on they are prefilled elsewhere. Of a chat: about as many
	tokens int // of the answer, 2 ms each at the least
	pad    int // bytes that make the body longer, in a member that is ignored
	leaves bool
}{
	{name: "short", prompt: harness.Threshold / 2, tokens: 8},
	{name: "remote stream", prompt: 6 * harness.Threshold, tokens: 200, stream: true},
	{name: "remote", prompt: 3 * harness.Threshold, tokens: 30},
	{name: "large remote stream", prompt: 2 * harness.Threshold, tokens: 20, stream: true, pad: 200_000},
	{name: "chat", chat: true, prompt: 2 * harness.Threshold, tokens: 16},
	{name: "short stream", prompt: harness.Threshold / 2, tokens: 150, stream: true},
	{name: "leaves a remote answer", prompt: 4 * harness.Threshold, tokens: 300, leaves: true},
	{name: "large", prompt: harness.Threshold / 2, tokens: 8, pad: 200_000},
	{name: "chat stream", chat: true, prompt: 4 * harness.Threshold, tokens: 40, stream: true},
	{name: "long remote stream", prompt: 5 * harness.Threshold, tokens: 1500, stream: true},
	{name: "leaves a remote stream", prompt: 4 * harness.Threshold, tokens: 300, stream: true, leaves: true},
	{name: "large remote", prompt: 5 * harness.Threshold, tokens: 12, pad: 200_000},
}

// longestStay is within which a client leaves that does: the legs take less than half of it.
const longestStay = 300 * time.Millisecond

// rollingLoad is clients that send one request after the other. Every second keeps its connection.
type rollingLoad struct {
	f       *rollingFleet
	stop    chan struct{}
	clients sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	served int        // answers that were right
	failed []string   // what was wrong with the others
}

// press starts so many clients, which pause after each answer.
func (f *rollingFleet) press(t *testing.T, clients int, pause time.Duration) *rollingLoad {
	t.Helper()
	l := &rollingLoad{f: f, stop: make(chan struct{})}
	ctx := t.Context()
	for i := range clients {
		harness.PromptSeed++
		random := rand.New(rand.NewPCG(uint64(harness.PromptSeed), 0))
		l.clients.Go(func() { l.client(ctx, i, pause, random) })
	}
	t.Cleanup(l.end)
	return l
}

// client sends requests of all kinds until the load ends.
func (l *rollingLoad) client(ctx context.Context, i int, pause time.Duration, random *rand.Rand) {
	transport := &http.Transport{DialContext: l.f.service.dial, DisableKeepAlives: i%2 == 0, DisableCompression: true}
	defer transport.CloseIdleConnections()
	between := time.NewTicker(max(pause, time.Millisecond))
	defer between.Stop()
	for n := i; ; n++ {
		kind := rollingKinds[n%len(rollingKinds)]
		problem := l.send(ctx, transport, n, random)
		l.mu.Lock()
		if problem == "" {
			l.served++
		} else {
			l.failed = append(l.failed, fmt.Sprintf("%s: %s", kind.name, problem))
		}
		l.mu.Unlock()
		select {
		case <-l.stop:
			return
		case <-between.C:
		}
	}
}

// send makes request n and tells what was wrong with its answer, "" if nothing was.
func (l *rollingLoad) send(ctx context.Context, over http.RoundTripper, n int, random *rand.Rand) (problem string) {
	kind := rollingKinds[n%len(rollingKinds)]
	c := harness.Call{API: pd.APICompletions, Stream: kind.stream, Tokens: kind.tokens}
	if kind.chat {
		c.API = pd.APIChat
		for range kind.prompt / 8 {
			c.Text += fmt.Sprintf("block %d of text ", random.IntN(1e6))
		}
	} else {
		for range kind.prompt {
			c.Prompt = append(c.Prompt, 300+random.IntN(700))
		}
	}
	if kind.pad > 0 {
		c.Members = map[string]any{"user": strings.Repeat("x", kind.pad)}
	}
	asking, cancel := context.WithTimeout(ctx, harness.Patience)
	if kind.leaves {
		asking, cancel = context.WithTimeout(ctx, time.Duration(random.Int64N(int64(longestStay))))
	}
	defer cancel()
	got, err := c.Over(asking, over, "service.test", c.Body(l.f.Model)) // the transport knows where to go
	if kind.leaves && asking.Err() != nil {
		return ""
	}
	if wrong := flaw(got, err, c.Stream); wrong != "" {
		return wrong
	}
	c.Stream, c.Members = false, nil
	want, err := c.Send(ctx, l.f.Plain.Addr, l.f.Model)
	switch {
	case err != nil || want.Status != http.StatusOK:
		return fmt.Sprintf("the plain engine: status %d, %v", want.Status, err)
	case !slices.Equal(got.Tokens, want.Tokens):
		return fmt.Sprintf("tokens %v, an undisturbed engine gives %v (decision %v)", got.Tokens, want.Tokens, got.Decision)
	}
	return ""
}

// flaw tells what is wrong with an answer but for its tokens, "" if nothing is.
func flaw(r harness.Reply, err error, stream bool) string {
	switch {
	case err != nil:
		return fmt.Sprintf("status %d, %v, after %d tokens (decision %v)", r.Status, err, len(r.Tokens), r.Decision)
	case r.Status != http.StatusOK:
		return fmt.Sprintf("status %d: %s (decision %v)", r.Status, r.Body, r.Decision)
	case r.Failed != "":
		return fmt.Sprintf("the stream ended with %s after %d tokens (decision %v)", r.Failed, len(r.Tokens), r.Decision)
	case stream && !r.Done:
		return fmt.Sprintf("the stream ended without [DONE] after %d tokens (decision %v)", len(r.Tokens), r.Decision)
	}
	return ""
}

// end stops the clients once each has the answer it waits for. It may be called again.
func (l *rollingLoad) end() {
	l.mu.Lock()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.mu.Unlock()
	l.clients.Wait()
}

// counts tells how many answers were right so far, and how many were not.
func (l *rollingLoad) counts() (served, failed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.served, len(l.failed)
}

// await waits for so many further answers.
func (l *rollingLoad) await(t *testing.T, answers int) {
	t.Helper()
	begun, _ := l.counts()
	l.f.Eventually(t, "answers", func() (string, bool) {
		served, failed := l.counts()
		return fmt.Sprintf("%d of %d, %d failed", served-begun, answers, failed), served-begun >= answers
	})
}

// mustHaveServed reports what failed but for the first told failures, and how many there are now.
func (l *rollingLoad) mustHaveServed(t *testing.T, what string, told int) (failures int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, problem := range l.failed[told:] {
		t.Errorf("while %s: %s", what, problem)
	}
	return len(l.failed)
}
