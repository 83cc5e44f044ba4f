package answer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/tandem-serving/tandem/pd"
)

// lineLimit bounds a line of a stream, in bytes. An event has one line of data.
const lineLimit = 16 << 20

// Answer is the answer that a client got.
type Answer struct {
	Status   int
	Header   http.Header
	Trailer  http.Header
	Decision pd.Result // zero: the answer had none

	Tokens []int  // ids of the completion
	Cached int    // tokens of the prompt that were cached; -1: not reported
	Finish string // finish_reason
	Failed string // the error object, which may be the last event of a stream
	Done   bool   // a stream ended with [DONE]
	Body   string // of an answer that is not a stream, unchanged
}

// New reads the head of a response. The body is still to be read.
func New(resp *http.Response) (a Answer, err error) {
	a = Answer{Status: resp.StatusCode, Header: resp.Header, Cached: -1}
	if v := resp.Header.Get(pd.HeaderDecision); v != "" {
		a.Decision, err = pd.ParseResult(v)
	}
	return a, err
}

// Post sends JSON with headers over a transport, and reads the answer. The error is the connection's.
func Post(ctx context.Context, over http.RoundTripper, url string, body []byte, header map[string]string) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := over.RoundTrip(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	return Read(resp)
}

// Read reads a response to its end, and does not close the body. With an error it returns the part before it.
func Read(resp *http.Response) (a Answer, err error) {
	if a, err = New(resp); err != nil {
		return a, err
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		err = a.ReadStream(resp.Body)
	} else {
		err = a.ReadWhole(resp.Body)
	}
	a.Trailer = resp.Trailer
	return a, err
}

// ReadWhole reads a body that is one JSON object. It only keeps the body of an error.
func (a *Answer) ReadWhole(from io.Reader) error {
	b, err := io.ReadAll(from)
	a.Body = string(b)
	if err != nil || a.Status != http.StatusOK {
		return err
	}
	return a.Take(b)
}

// ReadStream reads a body of server-sent events.
func (a *Answer) ReadStream(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, lineLimit)
	for lines.Scan() {
		if err := a.TakeLine(lines.Text()); err != nil {
			return err
		}
	}
	return lines.Err()
}

// TakeLine reads a line of a stream, without its end: the data of an event, a comment, or an empty line.
func (a *Answer) TakeLine(line string) error {
	data, ok := strings.CutPrefix(line, "data: ")
	switch {
	case !ok && line != "" && line[0] != ':':
		return fmt.Errorf("a line of the stream is %q", line)
	case !ok:
	case a.Done:
		return fmt.Errorf("after [DONE] comes %q", data)
	case data == "[DONE]":
		a.Done = true
	default:
		return a.Take([]byte(data))
	}
	return nil
}

// piece is the JSON of a whole answer, or of an event.
type piece struct {
	Choices []struct {
		TokenIDs     []int  `json:"token_ids"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Error json.RawMessage `json:"error"`
	Usage *struct {
		Details *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// Take reads the JSON of a whole answer, or of one event of a stream.
func (a *Answer) Take(data []byte) error {
	var p piece
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("reading %q: %w", data, err)
	}
	if p.Error != nil {
		a.Failed = string(p.Error)
	}
	for _, c := range p.Choices {
		a.Tokens = append(a.Tokens, c.TokenIDs...)
		if c.FinishReason != "" {
			a.Finish = c.FinishReason
		}
	}
	if p.Usage != nil && p.Usage.Details != nil {
		a.Cached = p.Usage.Details.Cached
	}
	return nil
}

// FailedWell reports whether Failed has the members that the API's errors have: a message and a type.
func (a Answer) FailedWell() bool {
	var e struct{ Message, Type string }
	return a.Failed != "" && json.Unmarshal([]byte(a.Failed), &e) == nil && e.Message != "" && e.Type != ""
}
