package overload

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// served is what became of one request of a load.
type served struct {
	status int
	reason string        // decision, or of a refusal its reason
	flow   string        // fairness id that it was sent with
	waited time.Duration // for capacity, in the picker
	ttft   time.Duration // to the first event with a token
	tokens int           // of the answer
	gaps   []time.Duration
	end    time.Time // of a finished answer
	wrong  string    // what must not be; "" = all is well
}

// finished reports whether the whole answer came.
func (s *served) finished() bool { return s.status == http.StatusOK && s.wrong == "" }

// tpot returns the mean time between two tokens.
func (s *served) tpot() time.Duration {
	if len(s.gaps) == 0 {
		return 0
	}
	var sum time.Duration
	for _, g := range s.gaps {
		sum += g
	}
	return sum / time.Duration(len(s.gaps))
}

// loadClient sends streams to one address, over connections that it keeps.
type loadClient struct {
	addr, model string
	http        *http.Client
}

func newLoadClient(t *testing.T, f *harness.Fleet) *loadClient {
	transport := &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &loadClient{f.Front.Addr, f.Model, &http.Client{Transport: transport}}
}

// ask sends one stream and reads it to its end.
func (l *loadClient) ask(ctx context.Context, q harness.Call) (s served) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+l.addr+q.API.Path(), bytes.NewReader(q.Body(l.model)))
	if err != nil {
		return served{wrong: err.Error()}
	}
	s.flow = q.Header[epp.HeaderFlow]
	req.Header.Set("Content-Type", "application/json")
	for name, value := range q.Header {
		req.Header.Set(name, value)
	}
	begun := time.Now()
	resp, err := l.http.Do(req)
	if err != nil {
		s.wrong = err.Error()
		return s
	}
	defer resp.Body.Close()
	s.status = resp.StatusCode
	decision, err := pd.ParseResult(resp.Header.Get(pd.HeaderDecision))
	if err != nil {
		s.wrong = fmt.Sprintf("status %d: %v", s.status, err)
	}
	decision.Attempts, decision.Candidate = 0, 0
	s.reason = decision.Verdict.String() + " " + string(decision.Reason)
	if s.status != http.StatusOK {
		s.wrong = refusalFault(resp, decision)
		return s
	}
	if text, ok := strings.CutPrefix(resp.Header.Get(pd.HeaderQueue), "waited="); ok {
		ms, err := strconv.Atoi(text)
		if err != nil {
			s.wrong = err.Error()
		}
		s.waited = time.Duration(ms) * time.Millisecond
	}
	s.readTokens(resp.Body, begun, q.Tokens)
	return s
}

// queuePlace matches what a refusal says of the queue once requests leave it.
var queuePlace = regexp.MustCompile(`^position=[1-9]\d*(;wait=\d+)?$`)

// refusalFault tells what is wrong with a refusal, "" if it is as clients of overloaded services need it.
func refusalFault(resp *http.Response, d pd.Result) string {
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	var e struct {
		Error struct{ Message, Type, Code string }
	}
	after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	dropped := resp.Header.Get(pd.HeaderDropped)
	switch err := json.Unmarshal(body, &e); {
	case resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable:
		return fmt.Sprintf("status %d: %s", resp.StatusCode, body)
	case after < 1:
		return fmt.Sprintf("status %d without Retry-After: %s", resp.StatusCode, body)
	case err != nil || e.Error.Message == "" || e.Error.Type == "" || e.Error.Code != string(d.Reason):
		return fmt.Sprintf("%v says %s", d, body)
	case d.Reason == pd.Saturated && (resp.StatusCode != http.StatusTooManyRequests || dropped != "rejected-saturated"):
		return fmt.Sprintf("status %d, %q for %v", resp.StatusCode, dropped, d)
	case d.Reason == pd.QueueFull && !queuePlace.MatchString(resp.Header.Get(pd.HeaderQueue)):
		return fmt.Sprintf("%v tells the place %q", d, resp.Header.Get(pd.HeaderQueue))
	}
	return ""
}

// readTokens notes when the tokens of a stream come.
func (s *served) readTokens(from io.Reader, begun time.Time, want int) {
	last, done := begun, false
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !isData:
		case data == "[DONE]":
			done = true
		case strings.HasPrefix(data, `{"error"`):
			s.wrong = data
		case strings.Contains(data, `"token_ids":[`):
			now := time.Now()
			if s.tokens == 0 {
				s.ttft = now.Sub(begun)
			} else {
				s.gaps = append(s.gaps, now.Sub(last))
			}
			last = now
			s.tokens++
		}
	}
	s.end = time.Now()
	switch err := lines.Err(); {
	case err != nil:
		s.wrong = err.Error()
	case s.wrong == "" && (!done || s.tokens < want):
		s.wrong = fmt.Sprintf("%d of %d tokens, done %v", s.tokens, want, done)
	}
}

// maxOpen bounds what an open loop has under way.
const maxOpen = 3000

// openLoop sends rate requests a second for a time, however long the answers take. What it gives waits for the last of them.
func (l *loadClient) openLoop(ctx context.Context, rate float64, length time.Duration, next func(i int) harness.Call) (wait func() []served) {
	var all []served
	var mu sync.Mutex
	var running sync.WaitGroup
	slots := make(chan struct{}, maxOpen)
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	begun, sent := time.Now(), 0
	for past := time.Duration(0); past < length; {
		past = min((<-pace.C).Sub(begun), length)
		for ; sent < int(rate*past.Seconds()); sent++ {
			q := next(sent)
			slots <- struct{}{}
			running.Go(func() {
				s := l.ask(ctx, q)
				mu.Lock()
				all = append(all, s)
				mu.Unlock()
				<-slots
			})
		}
	}
	return func() []served {
		running.Wait()
		return all
	}
}

// closedLoop keeps a number of requests under way for a time, and waits for the last of them.
func (l *loadClient) closedLoop(ctx context.Context, clients int, length time.Duration, next func(i int) harness.Call) []served {
	var all []served
	var mu sync.Mutex
	var running sync.WaitGroup
	begun, number := time.Now(), 0
	for range clients {
		running.Go(func() {
			for time.Since(begun) < length {
				mu.Lock()
				q := next(number)
				number++
				mu.Unlock()
				s := l.ask(ctx, q)
				mu.Lock()
				all = append(all, s)
				mu.Unlock()
			}
		})
	}
	running.Wait()
	return all
}

// rateWithin returns how many answers a second were finished between two moments, whose first token came within bound.
func rateWithin(all []served, from, to time.Time, bound time.Duration) float64 {
	n := 0
	for i := range all {
		if s := &all[i]; s.finished() && s.ttft <= bound && s.end.After(from) && !s.end.After(to) {
			n++
		}
	}
	return float64(n) / to.Sub(from).Seconds()
}

// collect returns a duration of each finished answer.
func collect(all []served, of func(*served) time.Duration) (list []time.Duration) {
	for i := range all {
		if all[i].finished() {
			list = append(list, of(&all[i]))
		}
	}
	return list
}

func meanOf(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	var sum time.Duration
	for _, d := range list {
		sum += d
	}
	return sum / time.Duration(len(list))
}
