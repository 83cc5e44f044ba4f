package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// Answer is what a client saw of one request. Times are of the local clock.
type Answer struct {
	Sent  time.Time
	First time.Time // the first event that carries a token arrived; zero for an answer that is not streamed
	End   time.Time // the whole answer was read, or it failed
	// Gaps are the times between events of a stream that carry tokens. An engine may send several tokens in one event: see Events.
	Gaps   []time.Duration
	Events int // of a stream, that carry tokens

	Prompt, Cached, Completion int64 // tokens, as the endpoint counted them; -1: it does not say

	Decision *pd.Result // nil: the endpoint is not behind Tandem's sidecar
	Phases   pd.Phases  // empty: likewise

	Failure *Failure // nil: the answer is complete

	onFirst func()
}

// Tokens returns the length of the answer, and whether the endpoint counted it. Otherwise it is the number of events.
func (a *Answer) Tokens() (n int, counted bool) {
	if a.Completion >= 0 {
		return int(a.Completion), true
	}
	return a.Events, false
}

// Reasons that do not come from the endpoint.
const (
	ReasonTimeout   = "timeout"   // the answer took longer than Options.Timeout
	ReasonCancelled = "cancelled" // the caller's context ended
)

// Failure is why there is no complete answer.
type Failure struct {
	Status      int    // 0: there was no status
	Reason      string // one word or few, the same for all failures of a kind
	Message     string // what the endpoint or the system said
	Unreachable bool   // no connection was made
}

// Denied reports whether the endpoint wants another API key.
func (f *Failure) Denied() bool {
	return f.Status == http.StatusUnauthorized || f.Status == http.StatusForbidden
}

// Error implements error.
func (f *Failure) Error() string {
	s := f.Reason
	if f.Status != 0 && f.Status != http.StatusOK {
		s = fmt.Sprintf("status %d, %s", f.Status, f.Reason)
	}
	if f.Message == "" {
		return s
	}
	return s + ": " + f.Message
}

// arrivals records when bytes arrive.
type arrivals struct {
	io.Reader
	last time.Time
}

func (r *arrivals) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.last = time.Now()
	}
	return n, err
}

func (a *Answer) read(ctx context.Context, resp *http.Response, stream bool) {
	defer a.readReport(resp)
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, answerLimit)) // of a part, the status is still known
		a.Failure = statusFailure(resp, text)
		return
	}
	read := a.readWhole
	if stream {
		read = a.readStream
	}
	err := read(&arrivals{Reader: resp.Body})
	var failure *Failure
	switch {
	case err == nil:
	case errors.As(err, &failure):
		failure.Status = resp.StatusCode
		a.Failure = failure
	default:
		a.Failure = transportFailure(ctx, err)
		a.Failure.Status = resp.StatusCode
	}
}

func (a *Answer) readWhole(r *arrivals) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	var whole chunk
	if err := json.Unmarshal(text, &whole); err != nil {
		return &Failure{Reason: "not JSON", Message: err.Error()}
	}
	if len(whole.Choices) == 0 {
		return &Failure{Reason: "no choices", Message: excerpt(text)}
	}
	a.addUsage(text)
	return nil
}

// readStream reads events as they arrive.
func (a *Answer) readStream(r *arrivals) error {
	var events body.Events
	var previous time.Time
	done := false
	take := func(e body.Event) error {
		switch {
		case e.Error():
			return &Failure{Reason: "error event", Message: excerpt(e.Data)}
		case e.Done():
			done = true
			return nil
		case len(e.Data) == 0:
			return nil // a comment that keeps the connection alive
		}
		var part chunk
		if err := json.Unmarshal(e.Data, &part); err != nil {
			return &Failure{Reason: "not JSON", Message: err.Error()}
		}
		a.addUsage(e.Data)
		if !part.tokens(a.Events == 0) {
			return nil
		}
		if a.Events++; a.Events == 1 {
			if a.First = r.last; a.onFirst != nil {
				a.onFirst()
			}
		} else {
			a.Gaps = append(a.Gaps, r.last.Sub(previous))
		}
		previous = r.last
		return nil
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if err := events.Feed(buf[:n], take); err != nil {
			return err
		}
		switch {
		case errors.Is(err, io.EOF) && !done:
			return &Failure{Reason: "stream broke off", Message: "it ends without [DONE]"}
		case errors.Is(err, io.EOF) && a.Events == 0:
			return &Failure{Reason: "no tokens", Message: "the stream has no event with a token"}
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// chunk is an answer, or one event of it.
type chunk struct {
	Choices []struct {
		Text         *string // completions
		Delta        delta   // chat
		FinishReason *string `json:"finish_reason"`
	}
}

// delta is what an event adds to a chat. A model may reason or call tools before it says anything: those are tokens, too.
type delta struct {
	Content          string
	Reasoning        string
	ReasoningContent string            `json:"reasoning_content"`
	ToolCalls        []json.RawMessage `json:"tool_calls"`
}

// tokens reports whether the event has at least one token. Of the completions API every event has one, though its text may be empty
// while a character is incomplete; but for a last event that only says why the answer ends. No answer is without a token.
func (c *chunk) tokens(first bool) bool {
	for _, choice := range c.Choices {
		d := choice.Delta
		if choice.Text != nil && (*choice.Text != "" || choice.FinishReason == nil || first) ||
			d.Content != "" || d.Reasoning != "" || d.ReasoningContent != "" || len(d.ToolCalls) > 0 {
			return true
		}
	}
	return false
}

func (a *Answer) addUsage(text []byte) {
	if !bytes.Contains(text, []byte(`"usage"`)) {
		return
	}
	var r body.UsageReader
	if u, ok := r.Event(text); ok {
		all := body.Usage{Prompt: a.Prompt, Cached: a.Cached, Completion: a.Completion}.Merge(u)
		a.Prompt, a.Cached, a.Completion = all.Prompt, all.Cached, all.Completion
	}
}

// readReport reads what Tandem reports: from the headers, and what came after those of a stream from the trailers. A report that
// cannot be read is none, because anyone may answer with such headers.
func (a *Answer) readReport(resp *http.Response) {
	if decision, err := pd.ParseResult(resp.Header.Get(pd.HeaderDecision)); err == nil {
		a.Decision = &decision
	}
	for _, h := range []http.Header{resp.Header, resp.Trailer} {
		some, err := pd.ParseTiming(h.Get(pd.HeaderTiming))
		if err != nil {
			continue
		}
		for ph := range pd.PhaseOverlap + 1 {
			if took, ok := some.Get(ph); ok {
				a.Phases.Set(ph, took)
			}
		}
	}
}

// statusFailure describes an answer with another status than 200. Its reason is the most exact that the endpoint gives: llm-d's,
// Tandem's, or the code or the type of the error object.
func statusFailure(resp *http.Response, text []byte) *Failure {
	f := &Failure{Status: resp.StatusCode, Reason: resp.Header.Get(pd.HeaderDropped), Message: excerpt(text)}
	var told struct {
		Error struct{ Message, Type string }
	}
	if json.Unmarshal(text, &told) == nil && told.Error.Message != "" {
		f.Message = excerpt([]byte(told.Error.Message))
	}
	// Of an engine's error the decision says where the request went, not what was wrong with it.
	decision, err := pd.ParseResult(resp.Header.Get(pd.HeaderDecision))
	if f.Reason == "" && err == nil && decision.Verdict == pd.Refused {
		f.Reason = string(decision.Reason)
	}
	if f.Reason == "" {
		f.Reason = told.Error.Type
	}
	if f.Reason == "" {
		f.Reason = http.StatusText(resp.StatusCode)
	}
	return f
}

// excerptLength is how much of an answer is shown in an error, in bytes.
const excerptLength = 300

func excerpt(text []byte) string {
	text = bytes.Join(bytes.Fields(text), []byte(" "))
	if len(text) > excerptLength {
		return string(bytes.ToValidUTF8(text[:excerptLength], nil)) + "…"
	}
	return string(bytes.ToValidUTF8(text, nil))
}
