package chaos

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// behaviour is how a client behaves.
type behaviour string

const (
	patient   behaviour = "patient"   // takes its answer
	slow      behaviour = "slow"      // takes its answer, with a pause before each event
	halfSent  behaviour = "half-sent" // leaves before it has sent all of its request
	leaving   behaviour = "leaving"   // leaves some time after it has asked, whatever has come by then
	lastToken behaviour = "reading"   // leaves in the middle of its stream
)

// chaosCall is a call of the mixed load.
type chaosCall struct {
	harness.Call
	id        string
	behaviour behaviour
	after     time.Duration // for leaving: when; for slow: the pause before each event
	events    int           // for reading: after how many
	large     bool          // goes to the picker by way of Envoy's second listener, which can repeat it
}

// drawCall draws the i-th call of a load: short and long prompts around the threshold, some with a shared beginning, all modes,
// whole answers and streams, and clients of all behaviours.
func drawCall(seed uint64, i int) chaosCall {
	random := rand.New(rand.NewPCG(seed, uint64(i)+1))
	c := chaosCall{id: fmt.Sprintf("chaos-%d-%d", seed, i), behaviour: patient}
	c.Stream = random.IntN(2) == 0
	c.Tokens = 2 + random.IntN(14)
	length := 8 + random.IntN(5*harness.Threshold)
	if random.IntN(5) < 2 {
		length = harness.Threshold - 12 + random.IntN(24)
	}
	if random.IntN(3) == 0 {
		c.API, c.Text = pd.APIChat, drawWords(random, length/6+1)
	} else {
		c.API, c.Prompt = pd.APICompletions, drawTokens(random, seed, length)
	}
	if random.IntN(16) == 0 {
		c.large = true
		c.Members = map[string]any{"user": strings.Repeat("pad\n", 30_000+random.IntN(60_000))}
	}
	c.Header = map[string]string{pd.HeaderRequestID: c.id}
	if mode := []string{"", "", "", "", "", "auto", "force", "force;fallback", "bypass"}[random.IntN(9)]; mode != "" {
		c.Header[pd.HeaderMode] = mode
	}
	switch random.IntN(16) {
	case 0:
		c.behaviour, c.Stream, c.Tokens, c.after = slow, true, 10+random.IntN(20), time.Duration(random.IntN(40))*time.Millisecond
	case 1:
		c.behaviour = halfSent
	case 2, 3:
		c.behaviour, c.after = leaving, time.Duration(random.IntN(120))*time.Millisecond
	case 4:
		c.behaviour, c.Stream, c.Tokens, c.events = lastToken, true, 30, random.IntN(20)
	}
	return c
}

// drawTokens makes a prompt. Every second prompt shares its beginning with others.
func drawTokens(random *rand.Rand, seed uint64, n int) []int {
	prompt := make([]int, n)
	common := 0
	if random.IntN(2) == 0 {
		common = random.IntN(n)
		shared := rand.New(rand.NewPCG(seed, uint64(random.IntN(8))<<32))
		for i := range common {
			prompt[i] = 300 + shared.IntN(700)
		}
	}
	for i := common; i < n; i++ {
		prompt[i] = 300 + random.IntN(700)
	}
	return prompt
}

func drawWords(random *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, "item %d of it ", random.IntN(1000))
	}
	return b.String()
}

// chaosEnd is a way in which a call can end.
type chaosEnd string

const (
	endRight  chaosEnd = "right"  // whole, with the tokens of an undisturbed engine
	endLeft   chaosEnd = "left"   // the client left, as it meant to
	endEvent  chaosEnd = "event"  // a stream that ended with a well-formed error event
	endCut    chaosEnd = "cut"    // a stream that broke off without one, or before its first byte had passed Envoy
	endBudget chaosEnd = "budget" // 503, because too many requests would have been prefilled on decode
	endPick   chaosEnd = "pick"   // 503 with Retry-After from Envoy, because the picker was killed in the middle of its answer
	endForced chaosEnd = "forced" // 502 or 503 with Retry-After, because each prefill pod failed, or each decode pod, and the client had forced prefill
	endFailed chaosEnd = "failed" // any other error
	endWrong  chaosEnd = "wrong"  // tokens that an undisturbed engine does not give
)

// chaosResult is how a call ended.
type chaosResult struct {
	call       chaosCall
	begin, end time.Time
	wait       wait // the longest
	how        chaosEnd
	detail     string
}

// wait is a time in which a client waited for the head of its answer, the next event, or a whole body.
type wait struct{ begin, end time.Time }

func (w wait) took() time.Duration { return w.end.Sub(w.begin) }

// waits finds the longest wait of a client.
type waits struct {
	since   time.Time
	longest wait
}

// begins has a wait begin.
func (w *waits) begins() { w.since = time.Now() }

// ends has a wait end, and the next one begin.
func (w *waits) ends() {
	if one := (wait{w.since, time.Now()}); one.took() > w.longest.took() {
		w.longest = one
	}
	w.begins()
}

// chaosLoad sends calls, each by a client of its own, and checks what comes back.
type chaosLoad struct {
	f    *harness.Fleet
	seed uint64

	mu      sync.Mutex // guards results
	results []chaosResult
}

// chaosClients bounds how many calls are in flight.
const chaosClients = 64

// run sends calls from..to over a time. It returns when all have ended that were sent by then.
func (l *chaosLoad) run(ctx context.Context, from, to int, lasts time.Duration) {
	pace(ctx, to-from, lasts, func(i int) { l.add(l.makeCall(ctx, drawCall(l.seed, from+i))) })
}

// pace makes n calls over a time, at an even rate, and waits for their ends. Calls that are late, because chaosClients others were in flight,
// are made up for, up to the end of that time: those that are left then are not made.
func pace(ctx context.Context, n int, lasts time.Duration, call func(i int)) {
	began := time.Now()
	making, end := context.WithTimeout(ctx, lasts)
	defer end()
	places := make(chan struct{}, chaosClients)
	var running sync.WaitGroup
	defer running.Wait()
	for i := range n {
		pause(making, time.Until(began.Add(lasts*time.Duration(i)/time.Duration(n))))
		select {
		case places <- struct{}{}:
		case <-making.Done():
		}
		if making.Err() != nil {
			return
		}
		running.Go(func() {
			defer func() { <-places }()
			call(i)
		})
	}
}

// add notes a result, without its prompt and padding, which drawCall gives again: those of a long run would take a gigabyte.
func (l *chaosLoad) add(r chaosResult) {
	r.call.Prompt, r.call.Text, r.call.Members = nil, "", nil
	l.mu.Lock()
	defer l.mu.Unlock()
	l.results = append(l.results, r)
}

// chaosPatience is how long a client waits for an answer: longer than anything in a run should take.
const chaosPatience = 45 * time.Second

// makeCall makes a call and checks its answer.
func (l *chaosLoad) makeCall(ctx context.Context, c chaosCall) chaosResult {
	ctx, cancel := context.WithTimeout(ctx, chaosPatience)
	defer cancel()
	r := chaosResult{call: c, begin: time.Now()}
	var w waits
	got, left, err := c.send(ctx, l.f.Front.Addr, l.f.Model, &w)
	r.end, r.wait = time.Now(), w.longest
	if left {
		r.how = endLeft
		if got.Tokens == nil {
			return r
		}
	} else {
		r.how, r.detail = classify(c, got, err)
	}
	l.check(ctx, &r, got.Tokens)
	return r
}

// send makes the call as its client behaves. left tells that it ended because the client left.
func (c chaosCall) send(ctx context.Context, base, model string, w *waits) (got harness.Reply, left bool, err error) {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	req, err := c.request(ctx, base, model, leave)
	if err != nil {
		return got, false, err
	}
	if c.behaviour == leaving {
		defer time.AfterFunc(c.after, func() { leave(errLeft) }).Stop()
	}
	w.begins()
	resp, err := harness.Client.Do(req)
	w.ends()
	if err == nil {
		defer resp.Body.Close()
		got, err = answer.New(resp)
	}
	if err == nil {
		err = c.read(ctx, &got, resp, leave, w)
	}
	return got, context.Cause(ctx) == errLeft, err
}

var errLeft = errors.New("the client has left")

func (c chaosCall) request(ctx context.Context, base, model string, leave context.CancelCauseFunc) (*http.Request, error) {
	text := c.Body(model)
	var from io.Reader = bytes.NewReader(text)
	if c.behaviour == halfSent {
		from = io.MultiReader(bytes.NewReader(text[:len(text)/2]), readerFunc(func([]byte) (int, error) {
			leave(errLeft)
			return 0, errLeft
		}))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+base+c.API.Path(), from)
	if err != nil {
		return nil, err
	}
	req.ContentLength = int64(len(text))
	req.Header.Set("Content-Type", "application/json")
	for k, v := range c.Header {
		req.Header.Set(k, v)
	}
	return req, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// read takes an answer.
func (c chaosCall) read(ctx context.Context, got *harness.Reply, resp *http.Response, leave context.CancelCauseFunc, w *waits) error {
	defer w.ends()
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return got.ReadWhole(resp.Body)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<24)
	for events := 0; lines.Scan(); {
		w.ends()
		if err := got.TakeLine(lines.Text()); err != nil {
			return err
		}
		if lines.Text() == "" || got.Done {
			continue
		}
		if events++; c.behaviour == lastToken && events > c.events {
			leave(errLeft)
		}
		if c.behaviour == slow {
			pause(ctx, c.after)
			w.begins()
		}
	}
	return lines.Err()
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// classify returns how an answer ended that the client waited for, as the client sees it, and details of a failure.
func classify(c chaosCall, got harness.Reply, err error) (chaosEnd, string) {
	decision := got.Decision.String()
	switch {
	case got.Status == 0:
		return endFailed, fmt.Sprintf("no answer: %v", err)
	case got.Status != http.StatusOK:
		retry := got.Header.Get("Retry-After") != ""
		later := retry && got.Status == http.StatusServiceUnavailable
		switch {
		case retry && c.Header[pd.HeaderMode] == "force" && (got.Decision.Reason == pd.PrefillFailed || got.Decision.Reason == pd.NoEndpoint):
			return endForced, got.Body
		case later && got.Decision.Reason == pd.Budget:
			return endBudget, ""
		case later && !c.large && got.Decision == (pd.Result{}):
			return endPick, got.Body
		case c.Stream && got.Status == http.StatusBadGateway && got.Decision == (pd.Result{}):
			// Envoy had the first bytes of the answer, and had sent none of them on: it asks no other endpoint then.
			return endCut, got.Body
		}
		return endFailed, fmt.Sprintf("status %d %s: %s (%v)", got.Status, decision, got.Body, err)
	case !c.Stream && err != nil:
		return endFailed, fmt.Sprintf("whole answer cut after %d bytes (%s): %v", len(got.Body), decision, err)
	case !c.Stream:
		return endRight, ""
	case got.Done && err == nil && got.FailedWell():
		return endEvent, got.Failed
	case err != nil || !got.Done:
		return endCut, fmt.Sprintf("stream cut after %d tokens (%s): %v %s", len(got.Tokens), decision, err, got.Failed)
	case got.Failed != "":
		return endFailed, "the error event is " + got.Failed
	}
	return endRight, ""
}

// check compares tokens with the undisturbed engine's: all of them, or the first ones of an answer that broke off.
func (l *chaosLoad) check(ctx context.Context, r *chaosResult, got []int) {
	if r.how != endRight && len(got) == 0 {
		return
	}
	plain := r.call.Call
	plain.Stream, plain.Header, plain.Members = false, nil, nil
	want, err := plain.Send(ctx, l.f.Plain.Addr, l.f.Model)
	if err != nil || want.Status != http.StatusOK {
		r.how, r.detail = endFailed, fmt.Sprintf("asking the plain engine: %d %v", want.Status, err)
		return
	}
	whole := r.how == endRight
	if whole && !slices.Equal(got, want.Tokens) || len(got) > len(want.Tokens) || !slices.Equal(got, want.Tokens[:len(got)]) {
		r.how, r.detail = endWrong, fmt.Sprintf("tokens %v, an undisturbed engine gives %v (%s)", got, want.Tokens, r.how)
	}
}

// TestPace: a load has all of its calls if they are quick, or were late for a while, and otherwise ends with its time.
func TestPace(t *testing.T) {
	const n, lasts, quick = 1000, time.Minute, 20 * time.Millisecond
	for name, c := range map[string]struct {
		takes func(at time.Duration) time.Duration // a call that is made at a time
		whole bool                                 // all calls are made
		end   time.Duration                        // of the last call, at most
	}{
		"quick calls": {func(time.Duration) time.Duration { return quick }, true, lasts},
		"none ends for ten seconds": {func(at time.Duration) time.Duration {
			if at > 20*time.Second && at < 30*time.Second {
				return 30*time.Second - at
			}
			return quick
		}, true, lasts},
		"slow calls": {func(time.Duration) time.Duration { return 10 * time.Second }, false, lasts + 10*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var calls, flying, most atomic.Int64
				pace(t.Context(), n, lasts, func(int) {
					calls.Add(1)
					if now := flying.Add(1); now > most.Load() {
						most.Store(now)
					}
					pause(t.Context(), c.takes(time.Since(start)))
					flying.Add(-1)
				})
				if whole := calls.Load() == n; whole != c.whole || time.Since(start) > c.end || most.Load() > chaosClients {
					t.Errorf("%d calls in %v, %d at the same time", calls.Load(), time.Since(start), most.Load())
				}
			})
		})
	}
}

// TestChaosCalls: a seed gives one load, and a load has calls of all kinds.
func TestChaosCalls(t *testing.T) {
	seen := map[string]bool{}
	for i := range 500 {
		c := drawCall(7, i)
		if !reflect.DeepEqual(c, drawCall(7, i)) {
			t.Fatalf("call %d is not the same when it is drawn again", i)
		}
		seen[string(c.behaviour)] = true
		seen[fmt.Sprintf("%v stream=%v", c.API, c.Stream)] = true
		seen["mode="+c.Header[pd.HeaderMode]] = true
		seen[fmt.Sprintf("large=%v", c.large)] = true
		seen[fmt.Sprintf("long=%v", c.API == pd.APIChat || len(c.Prompt) >= harness.Threshold)] = true
	}
	const want = 5 + 4 + 5 + 2 + 2
	if len(seen) != want {
		t.Errorf("the load has %d of %d sorts: %v", len(seen), want, seen)
	}
}
