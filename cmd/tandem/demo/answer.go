package demo

import (
	"bytes"
	"cmp"
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

// answer is the answer to a question.
type answer struct {
	promptTokens, completion int   // by the engine's count
	generated                []int // token ids; none of APIs that give text alone
	text                     string
	requestID                string
	took                     time.Duration   // from before the request was sent to the end of the answer
	first                    time.Duration   // … to the first token of a stream; 0 for an answer in one piece, whose tokens come together
	gaps                     []time.Duration // between the events of a stream that carry tokens

	decision pd.Result // this and the following are empty in the reference's answers
	phases   pd.Phases
	outcome  pd.AnswerSummary
}

// ask sends a question to an address and reads the whole answer, with the sidecar's report on it if told. A status other
// than 200 is an error.
func (s *stage) ask(ctx context.Context, address string, q *question, withReport bool) (a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+q.class.api.Path(), bytes.NewReader(q.body))
	if err != nil {
		return a, fmt.Errorf("making the request: %w", err)
	}
	req.Header = q.header()
	start := time.Now()
	resp, err := s.http.Do(req)
	if err != nil {
		return a, fmt.Errorf("sending the request: %w", err)
	}
	defer resp.Body.Close()
	if err := a.read(&timed{from: resp.Body, start: start}, resp.StatusCode, q.class.stream); err != nil {
		return a, fmt.Errorf("reading the answer: %w", err)
	}
	a.took = time.Since(start)
	if withReport {
		if err := a.readReport(resp); err != nil {
			return a, fmt.Errorf("reading the report: %w", err)
		}
	}
	return a, nil
}

// header returns the headers that the client sends with the question.
func (q *question) header() http.Header {
	h := http.Header{"Content-Type": {"application/json"}, "Te": {"trailers"}}
	if q.class.mode != pd.ModeAuto {
		h.Set(pd.HeaderMode, q.class.mode.String())
	}
	return h
}

// timed records when bytes arrive.
type timed struct {
	from        io.Reader
	start, last time.Time // the request was sent; the last bytes arrived
}

func (t *timed) Read(p []byte) (int, error) {
	n, err := t.from.Read(p)
	if n > 0 {
		t.last = time.Now()
	}
	return n, err
}

func (a *answer) read(r *timed, status int, stream bool) error {
	if stream && status == http.StatusOK {
		return a.readStream(r)
	}
	text, err := io.ReadAll(r)
	switch {
	case err != nil:
		return err
	case status != http.StatusOK:
		return fmt.Errorf("status %d: %s", status, bytes.TrimSpace(text))
	}
	return a.add(text)
}

// readStream reads events as they arrive.
func (a *answer) readStream(r *timed) error {
	var events body.Events
	var previous time.Time // time of the last event with tokens
	done := false
	take := func(e body.Event) error {
		switch {
		case e.Error():
			return fmt.Errorf("an error event: %s", e.Data)
		case e.Done():
			done = true
			return nil
		}
		before := len(a.generated) + len(a.text)
		if err := a.add(e.Data); err != nil || len(a.generated)+len(a.text) == before {
			return err
		}
		if previous.IsZero() {
			a.first = r.last.Sub(r.start)
		} else {
			a.gaps = append(a.gaps, r.last.Sub(previous))
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
			return errors.New("the stream ends without [DONE]")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// add adds the tokens of a whole answer, or of one event: both have them in the same members.
func (a *answer) add(text []byte) error {
	type counts struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
	var part struct {
		Choices []struct {
			Generated      []int `json:"token_ids"`
			Text           string
			Message, Delta message
		}
		Usage *counts
		// SGLang's own call
		Text      string
		Generated []int   `json:"output_ids"`
		Meta      *counts `json:"meta_info"`
	}
	if err := json.Unmarshal(text, &part); err != nil {
		return err
	}
	for _, c := range part.Choices {
		a.generated = append(a.generated, c.Generated...)
		a.text += c.Text + c.Message.Content + c.Delta.Content
	}
	a.generated = append(a.generated, part.Generated...)
	a.text += part.Text
	if counted := cmp.Or(part.Usage, part.Meta); counted != nil {
		a.promptTokens, a.completion = counted.Prompt, counted.Completion
	}
	return nil
}

// readReport reads the sidecar's report on the request. What is known when the headers of a stream are sent comes in them, the
// rest in trailers: of a local stream, which sends its headers at once, also the time to its first byte.
func (a *answer) readReport(resp *http.Response) (err error) {
	if a.decision, err = pd.ParseResult(resp.Header.Get(pd.HeaderDecision)); err != nil {
		return err
	}
	for _, part := range []http.Header{resp.Header, resp.Trailer} {
		phases, err := pd.ParseTiming(part.Get(pd.HeaderTiming))
		if err != nil {
			return err
		}
		for ph := range pd.PhaseOverlap + 1 { // the last
			if d, ok := phases.Get(ph); ok {
				a.phases.Set(ph, d)
			}
		}
	}
	a.requestID = resp.Header.Get("X-Request-Id")
	end := resp.Trailer.Get(pd.HeaderOutcome) + resp.Header.Get(pd.HeaderOutcome)
	a.outcome, err = pd.ParseAnswerSummary(end)
	if err == nil && a.outcome.End != pd.EndDone {
		err = fmt.Errorf("the outcome is %s", a.outcome)
	}
	return err
}

// attributed returns the time that the phases account for, the picker's included.
func (a *answer) attributed() time.Duration {
	picker, _ := a.phases.Get(pd.PhaseEPP)
	return picker + a.phases.Sum()
}
