package producer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

const (
	// maxTokensAnswer is the longest answer of a tokenizer service that is read: some eight million token ids (bytes).
	maxTokensAnswer = 64 << 20
	// failuresInRow are how many failures in a row it takes to leave the service alone, first for shortestPause, at last for longestPause.
	failuresInRow               = 3
	shortestPause, longestPause = time.Second, 30 * time.Second
	// renderAgain is how long a service that has no render endpoints is not asked for them.
	renderAgain = time.Minute
	// idleConnections are kept to the service.
	idleConnections = 64
)

// tokenService is an epp.Preparer that asks a vLLM server for the token ids of prompts.
type tokenService struct {
	base    string
	model   string // "" = the request's
	timeout time.Duration
	client  *http.Client
	clock   epp.Clock
	log     *slog.Logger
	check   *tokenCheck

	made          time.Time    // the service
	tokenizeUntil atomic.Int64 // nanoseconds since made: until then it is not asked to render

	mu       sync.Mutex
	failures int           // in a row
	pause    time.Duration // the last one
	until    time.Time     // the service is left alone
}

func newTokenService(base, model string, timeout time.Duration, b *epp.Builder) *tokenService {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy, transport.MaxIdleConns, transport.MaxIdleConnsPerHost = nil, idleConnections, idleConnections
	return &tokenService{base: strings.TrimRight(base, "/"), model: model, timeout: timeout, clock: b.Clock(), made: b.Clock().Now(), log: b.Log,
		check:  keptCheck(b, model, checkedService, base),
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Describe implements prometheus.Collector.
func (s *tokenService) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *tokenService) Collect(ch chan<- prometheus.Metric) { s.check.Collect(ch) }

// Close implements io.Closer.
func (s *tokenService) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

// Timeout implements epp.Preparer.
func (s *tokenService) Timeout() time.Duration { return s.timeout }

var (
	errPaused   = errors.New("the tokenizer service has failed several times and is left alone for a while")
	errNoRender = errors.New("the tokenizer service does not render")
)

// Prepare implements epp.Preparer.
func (s *tokenService) Prepare(ctx context.Context, r *epp.Request) (add func(*epp.Request), err error) {
	if r.API != pd.APIChat && r.API != pd.APICompletions || len(r.Prompt.IDs) > 0 || len(r.Prompt.Media) > 0 || len(r.Body) == 0 {
		return nil, nil
	}
	if s.paused() {
		return nil, errPaused
	}
	ids, err := s.ask(ctx, r)
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return nil, err // the client has left, which says nothing of the service
	}
	s.note(err)
	if len(ids) == 0 {
		return nil, err
	}
	return func(r *epp.Request) { r.Prompt.SetIDs(ids, s.check) }, nil
}

// paused reports whether the service is left alone. When a pause ends, one request asks, and the others wait for what it finds out.
func (s *tokenService) paused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if s.failures < failuresInRow {
		return false
	}
	if now.Before(s.until) {
		return true
	}
	s.until = now.Add(s.timeout)
	return false
}

// note counts a failure, or forgets those before.
func (s *tokenService) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		if s.failures >= failuresInRow {
			s.log.Info("the tokenizer service answers again", "url", s.base)
		}
		s.failures, s.pause = 0, 0
		return
	}
	if s.failures++; s.failures < failuresInRow {
		return
	}
	if s.failures == failuresInRow {
		s.log.Warn("the tokenizer service does not answer: lengths of prompts are estimated, and token ids are not known", "url", s.base, "error", err)
	}
	s.pause = min(max(2*s.pause, shortestPause), longestPause)
	s.until = s.clock.Now().Add(s.pause)
}

// ask returns the token ids of a prompt; none if the request has several prompts, or if what the engine sees is more than text.
func (s *tokenService) ask(ctx context.Context, r *epp.Request) ([]uint32, error) {
	asked, err := s.body(r)
	if err != nil {
		return nil, err
	}
	if now := int64(s.clock.Since(s.made)); now >= s.tokenizeUntil.Load() {
		ids, err := s.post(ctx, r.API.Path()+"/render", asked)
		if !errors.Is(err, errNoRender) {
			return ids, err
		}
		s.tokenizeUntil.Store(now + int64(renderAgain))
	}
	ids, err := s.post(ctx, "/tokenize", asked)
	return ids, err
}

// modelMember finds the name of the model.
var modelMember = body.NewTable(body.Want{Path: "model"})

// body returns a copy of the request's body, with the service's model: after an early answer, an HTTP client may still read what it sends.
func (s *tokenService) body(r *epp.Request) ([]byte, error) {
	text := bytes.Join(r.Body, nil)
	if s.model == "" || s.model == r.Model {
		return text, nil
	}
	var whole body.Body
	whole.Append(text)
	var scan body.Scanner
	scan.Reset(modelMember, body.Limits{}, nil)
	if _, err := scan.Write(text); err != nil {
		return nil, fmt.Errorf("reading the body: %w", err)
	}
	if err := scan.Close(); err != nil {
		return nil, fmt.Errorf("reading the body: %w", err)
	}
	var edit body.Edit
	edit.Reset(&whole, scan.Root())
	name := body.AppendQuoted(nil, s.model)
	if m, ok := scan.Find(0); ok {
		edit.Replace(m, name)
	} else {
		edit.Add(scan.Root(), "model", name)
	}
	parts, err := edit.Segments(nil)
	if err != nil {
		return nil, fmt.Errorf("writing the model's name: %w", err)
	}
	return bytes.Join(parts, nil), nil
}

// rendered is what the service answers: of the render endpoints for one prompt, and of /tokenize.
type rendered struct {
	TokenIDs []uint32        `json:"token_ids"`
	Tokens   []uint32        `json:"tokens"`
	Features json.RawMessage `json:"features"` // of images and the like, which stand in place of some tokens
}

// post asks one endpoint of the service.
func (s *tokenService) post(ctx context.Context, path string, asked []byte) ([]uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+path, bytes.NewReader(asked))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := s.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking the tokenizer service: %w", err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxTokensAnswer))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the tokenizer service's answer: %w", err)
	case res.StatusCode == http.StatusOK:
		return readTokens(answer)
	case res.StatusCode == http.StatusBadRequest, res.StatusCode == http.StatusUnprocessableEntity:
		return nil, nil // the engine will refuse the request too, and say why
	case strings.HasSuffix(path, "/render"):
		return nil, errNoRender // 403 of servers that do not allow it, 404 of others
	}
	return nil, fmt.Errorf("the tokenizer service answers %s", res.Status)
}

// readTokens reads the token ids of an answer: an object, or, of completions, a list with one for each prompt.
func readTokens(answer []byte) ([]uint32, error) {
	var one rendered
	answer = bytes.TrimSpace(answer)
	if bytes.HasPrefix(answer, []byte("[")) {
		var all []rendered
		if err := json.Unmarshal(answer, &all); err != nil {
			return nil, fmt.Errorf("reading token ids: %w", err)
		}
		if len(all) != 1 {
			return nil, nil
		}
		one = all[0]
	} else if err := json.Unmarshal(answer, &one); err != nil {
		return nil, fmt.Errorf("reading token ids: %w", err)
	}
	if len(one.Features) > 0 && string(one.Features) != "null" {
		return nil, nil
	}
	if one.TokenIDs != nil {
		return one.TokenIDs, nil
	}
	return one.Tokens, nil
}
