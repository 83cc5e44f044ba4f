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

// answer is what came back for a question.
type answer struct {
	prompt    []int // token ids that the engine made of the prompt
	generated []int
	decision  pd.Decision // from here on: empty in the reference's answers
	phases    pd.Phases
	took      time.Duration // from before the request was sent to the end of the answer
}

// timed is an answer while it comes.
type timed struct {
	io.Reader
	first time.Time // of its bytes
}

func (t *timed) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p)
	if n > 0 && t.first.IsZero() {
		t.first = time.Now()
	}
	return n, err
}

// ask sends a question, with the given headers and its own, and reads the whole answer. An answer other than 200 is an error.
func (s *stage) ask(ctx context.Context, address string, q question, header http.Header) (a answer, err error) {
	content, err := q.body()
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+q.api.Path(), bytes.NewReader(content))
	if err != nil {
		return a, fmt.Errorf("making request %d: %w", q.number, err)
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	start := time.Now()
	resp, err := s.http.Do(req)
	if err != nil {
		return a, fmt.Errorf("sending request %d: %w", q.number, err)
	}
	defer resp.Body.Close()
	text := timed{Reader: resp.Body}
	if err := a.read(&text, resp.StatusCode, q.stream); err != nil {
		return a, fmt.Errorf("reading the answer to request %d: %w", q.number, err)
	}
	a.took = time.Since(start)
	if header.Get(pd.HeaderPlan) != "" {
		if err := a.readReport(resp, text.first.Sub(start)); err != nil {
			return a, fmt.Errorf("reading the report on request %d: %w", q.number, err)
		}
	}
	return a, nil
}

func (a *answer) read(r io.Reader, status int, stream bool) error {
	text, err := io.ReadAll(r)
	switch {
	case err != nil:
		return err
	case status != http.StatusOK:
		return fmt.Errorf("status %d: %s", status, bytes.TrimSpace(text))
	case !stream:
		return a.add(text)
	}
	done := false
	var events body.Events
	err = events.Feed(text, func(e body.Event) error {
		switch {
		case e.Error():
			return fmt.Errorf("an error event: %s", e.Data)
		case e.Done():
			done = true
			return nil
		}
		return a.add(e.Data)
	})
	if err == nil && !done {
		err = errors.New("the stream ends without [DONE]")
	}
	return err
}

// add takes the token ids of a whole answer, or of one event: engines have them in the same places.
func (a *answer) add(text []byte) error {
	var part struct {
		Prompt  []int `json:"prompt_token_ids"` // chat
		Choices []struct {
			Prompt    []int `json:"prompt_token_ids"` // completions
			Generated []int `json:"token_ids"`
		}
	}
	if err := json.Unmarshal(text, &part); err != nil {
		return err
	}
	a.prompt = append(a.prompt, part.Prompt...)
	for _, c := range part.Choices {
		a.prompt = append(a.prompt, c.Prompt...)
		a.generated = append(a.generated, c.Generated...)
	}
	return nil
}

// readReport reads what the sidecar says of the request: in the headers, and of a stream also in the trailers.
func (a *answer) readReport(resp *http.Response, first time.Duration) (err error) {
	if a.decision, err = pd.ParseDecision(resp.Header.Get(pd.HeaderDecision)); err != nil {
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
		// The headers of a local stream pass before its first byte, so the client has to look at the clock. The byte may
		// have been on its way for longer than the last one, which the phases of the sidecar's clock leave no room for.
		before := a.phases.Sum()
		late.Set(pd.PhaseFirst, max(0, min(first-before, a.took-before-late.Sum())))
	}
	for ph := range pd.Phase(pd.PhaseCount) {
		if d, ok := late.Get(ph); ok {
			a.phases.Set(ph, d)
		}
	}
	end := resp.Trailer.Get(pd.HeaderOutcome) + resp.Header.Get(pd.HeaderOutcome)
	outcome, err := pd.ParseOutcome(end)
	if err == nil && outcome.End != pd.EndDone {
		err = fmt.Errorf("the outcome is %s", outcome)
	}
	return err
}
