package demo

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

// answer is the answer to a question.
type answer struct {
	prompt    []int // token ids of the prompt, from the engine
	generated []int
	text      string
	took      time.Duration   // from before the request was sent to the end of the answer
	first     time.Duration   // … to the first byte of its body
	gaps      []time.Duration // between the events of a stream that carry tokens

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
	from := &timed{from: resp.Body}
	if err := a.read(from, resp.StatusCode, q.class.stream); err != nil {
		return a, fmt.Errorf("reading the answer: %w", err)
	}
	a.took, a.first = time.Since(start), from.first.Sub(start)
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
	first, last time.Time
}

func (t *timed) Read(p []byte) (int, error) {
	n, err := t.from.Read(p)
	if n > 0 {
		t.last = time.Now()
		if t.first.IsZero() {
			t.first = t.last
		}
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
		before := len(a.generated)
		if err := a.add(e.Data); err != nil || len(a.generated) == before {
			return err
		}
		if !previous.IsZero() {
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
	var part struct {
		Prompt  []int `json:"prompt_token_ids"` // chat
		Choices []struct {
			Prompt         []int `json:"prompt_token_ids"` // completions
			Generated      []int `json:"token_ids"`
			Message, Delta message
		}
	}
	if err := json.Unmarshal(text, &part); err != nil {
		return err
	}
	a.prompt = append(a.prompt, part.Prompt...)
	for _, c := range part.Choices {
		a.prompt = append(a.prompt, c.Prompt...)
		a.generated = append(a.generated, c.Generated...)
		a.text += c.Message.Content + c.Delta.Content
	}
	return nil
}

// readReport reads the sidecar's report on the request: from the headers, for a stream also from the trailers.
func (a *answer) readReport(resp *http.Response) (err error) {
	if a.decision, err = pd.ParseResult(resp.Header.Get(pd.HeaderDecision)); err != nil {
		return err
	}
	if a.phases, err = pd.ParseTiming(resp.Header.Get(pd.HeaderTiming)); err != nil {
		return err
	}
	late, err := pd.ParseTiming(resp.Trailer.Get(pd.HeaderTiming))
	if err != nil {
		return err
	}
	if _, ok := a.phases.Get(pd.PhaseFirst); !ok {
		// The headers of a local stream are sent before its first byte, so the client measures the time to that byte itself.
		// The first byte may have travelled longer than the last one; the phases, which come from other clocks, must still
		// fit into the measured time.
		before := a.attributed()
		late.Set(pd.PhaseFirst, max(0, min(a.first-before, a.took-before-late.Sum())))
	}
	for ph := range pd.Phase(pd.PhaseCount) {
		if d, ok := late.Get(ph); ok {
			a.phases.Set(ph, d)
		}
	}
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
