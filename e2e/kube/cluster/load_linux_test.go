package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

const (
	clients = 8
	// pause is what a client does between two requests: the load is to be there, not to fill two cores.
	pause = 120 * time.Millisecond
	// threshold is the preset's: prompts of more uncached tokens are prefilled elsewhere.
	threshold = 256
	// patience is how long a client waits for an answer: longer than anything should take, shorter than a scenario.
	patience = 45 * time.Second
	// told is how many of the requests that failed are told of.
	told = 5
)

// kinds are the requests of the load, in the order in which a client sends them. Lengths are in tokens; an answer takes 2 ms
// for each at the least.
var kinds = []struct {
	name           string
	api            pd.API
	stream         bool
	prompt, answer int
}{
	{"short", pd.APICompletions, false, threshold / 4, 8},
	{"long stream", pd.APICompletions, true, 2 * threshold, 120},
	{"long", pd.APICompletions, false, threshold + 60, 16},
	{"long chat", pd.APIChat, false, 2 * threshold, 12},
	{"short stream", pd.APICompletions, true, threshold / 3, 150},
	{"long chat stream", pd.APIChat, true, threshold + 100, 40},
	{"longest stream", pd.APICompletions, true, 3 * threshold, 300},
	{"short chat", pd.APIChat, false, threshold / 8, 10},
}

// tally counts requests by how they ended.
type tally struct {
	right   int // 200, whole, with the tokens of an undisturbed engine
	events  int // streams that ended with a well-formed error event after their first byte
	cut     int // broken off without one
	refused int // 503 with a reason and Retry-After
	failed  int // anything else
	remote  int // of those that were right: prefilled on another pod
}

func (n *tally) add(more tally) {
	n.right += more.right
	n.events += more.events
	n.cut += more.cut
	n.refused += more.refused
	n.failed += more.failed
	n.remote += more.remote
}

func (n tally) all() int { return n.right + n.events + n.cut + n.refused + n.failed }

// excuse is an end of a request that a scenario brings about, and which no program here could have spared the client.
type excuse int

const (
	// eventsExcused: decode engines are killed; the streams they have begun end with an error event.
	eventsExcused excuse = 1 << iota
	// cutsExcused: sidecars are killed; no sidecar is left to write the end of the streams that they were passing on.
	cutsExcused
	// breaksExcused: Envoys are killed, or nodes with them; clients' connections break, whatever is on them.
	breaksExcused
	// refusalsExcused: there is no pod for a while, or no budget; answers are 503 with a reason and Retry-After.
	refusalsExcused
)

// load is clients that send one request after the other to a release. Every second keeps its connection.
type load struct {
	r       *run
	to      *release
	address string
	excused excuse
	ended   sync.Once
	stop    chan struct{}
	clients sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	counts tally
	wrong  []string       // what was wrong with requests that no excuse fits
	why    map[string]int // decisions of right answers, by verdict and reason
}

// press starts the load. It runs until end.
func (r *run) press(t *testing.T, to *release, excused excuse) *load {
	t.Helper()
	l := &load{r: r, to: to, address: r.address(t, to), excused: excused, stop: make(chan struct{}), why: map[string]int{}}
	for i := range clients {
		l.clients.Go(func() { l.client(r.ctx, i) })
	}
	t.Cleanup(l.halt) // where a scenario fails before its end
	return l
}

// halt stops the clients once each has the answer that it waits for.
func (l *load) halt() {
	l.ended.Do(func() { close(l.stop) })
	l.clients.Wait()
}

// end stops the load, adds it to the scenario's row, and fails the test for what no excuse fits.
func (l *load) end(t *testing.T) tally {
	t.Helper()
	l.halt()
	l.r.row.add(l.counts)
	for _, wrong := range l.wrong[:min(told, len(l.wrong))] {
		t.Error(wrong)
		l.r.saw("NOT RIGHT: %s", wrong) // what ends a long output is what people look at
	}
	if rest := len(l.wrong) - told; rest > 0 {
		t.Errorf("and %d more requests of %d", rest, l.counts.all())
	}
	if l.counts.right == 0 {
		t.Error("no request was right: nothing was asserted")
	}
	return l.counts
}

// now is what has come so far.
func (l *load) now() tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts
}

// decisions are those of right answers so far, such as "remote;reason=uncached".
func (l *load) decisions() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.why)
}

// await waits for so many further right answers.
func (l *load) await(t *testing.T, answers int) {
	t.Helper()
	from := l.now().right
	l.r.await(t, fmt.Sprintf("%d further answers", answers), time.Minute, func(context.Context) (string, bool) {
		n := l.now()
		return fmt.Sprintf("%+v", n), n.right-from >= answers
	})
}

// client sends requests until the load ends.
func (l *load) client(ctx context.Context, i int) {
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(i)))
	transport := l.r.transport()
	transport.DisableKeepAlives = i%2 == 0
	defer transport.CloseIdleConnections()
	between := time.NewTicker(pause)
	defer between.Stop()
	for n := i; ; n++ {
		l.one(ctx, transport, draw(random, n))
		select {
		case <-l.stop:
			return
		case <-ctx.Done():
			return
		case <-between.C:
		}
	}
}

// draw makes the n-th request of a client, with a prompt of its own.
func draw(random *rand.Rand, n int) call {
	kind := kinds[n%len(kinds)]
	c := call{api: kind.api, stream: kind.stream, tokens: kind.answer}
	if kind.api == pd.APIChat {
		c.text = drawText(random, kind.prompt)
	} else {
		c.prompt = drawTokens(random, kind.prompt)
	}
	return c
}

// one makes a request and counts how it ended.
func (l *load) one(ctx context.Context, over http.RoundTripper, c call) {
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	got, err := c.over(asking, over, l.address, l.to.serves)
	how, detail := l.judge(ctx, c, got, err)
	if ctx.Err() != nil {
		return // the scenario is over, and has failed by that
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.add(how)
	if how.right > 0 {
		l.why[plain(got.Decision)]++
	}
	if !l.excuses(how, c.stream) {
		l.wrong = append(l.wrong, detail)
	}
}

// excuses reports whether a request may end so.
func (l *load) excuses(how tally, stream bool) bool {
	switch {
	case how.events > 0:
		return l.excused&eventsExcused != 0
	case how.cut > 0:
		return l.excused&breaksExcused != 0 || l.excused&cutsExcused != 0 && stream
	case how.refused > 0:
		return l.excused&refusalsExcused != 0
	}
	return how.right > 0
}

// judge tells how a request ended, and what was wrong with it.
func (l *load) judge(ctx context.Context, c call, got reply, err error) (how tally, detail string) {
	detail = fmt.Sprintf("%s, stream %v, status %d, decision %q, after %d tokens: %v %s%s", c.api.Path(), c.stream, got.Status,
		plain(got.Decision), len(got.Tokens), cmp.Or(err, errNone), got.Failed, got.Body)
	switch {
	case got.Status == http.StatusServiceUnavailable && got.Header.Get("Retry-After") != "":
		how.refused = 1
	case got.Status == 0, err != nil, got.Status == http.StatusOK && c.stream && !got.Done:
		how.cut = 1
	case got.Status == http.StatusBadGateway && got.Decision == (pd.Result{}): // Envoy, of a connection that broke
		how.cut = 1
	case got.Status != http.StatusOK:
		how.failed = 1
	case got.FailedWell():
		how.events = 1
	case got.Failed != "":
		how.failed = 1
	default:
		want, err := l.r.plain.ask(ctx, c)
		if err != nil || !slices.Equal(got.Tokens, want) {
			return tally{failed: 1}, fmt.Sprintf("%s: tokens %v, an undisturbed engine gives %v %v", detail, got.Tokens, want, err)
		}
		how.right = 1
		if got.Decision.Verdict == pd.Remote {
			how.remote = 1
		}
	}
	return how, detail
}

// plain returns a decision without what differs from one request to the next.
func plain(d pd.Result) string {
	if d == (pd.Result{}) {
		return ""
	}
	return d.Verdict.String() + ";reason=" + string(d.Reason)
}
