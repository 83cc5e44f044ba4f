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

	Tokens []int           // ids of the completion; the characters of the text where the API has no ids
	Usage  json.RawMessage // the last usage object; nil: none
	Cached int             // tokens of the prompt that were cached; -1: not reported
	Finish string          // finish_reason
	Failed string          // the error object, which may be the last event of a stream
	Done   bool            // a stream has the event that ends it
	Body   string          // of an answer that is not a stream, unchanged

	event string // name of the event whose data follows
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

// TakeLine reads a line of a stream, without its end: the name or the data of an event, a comment, or an empty line.
func (a *Answer) TakeLine(line string) error {
	name, named := strings.CutPrefix(line, "event: ")
	data, ok := strings.CutPrefix(line, "data: ")
	switch {
	case line == "":
		a.event = ""
	case named:
		a.event = name
	case line[0] == ':':
	case !ok:
		return fmt.Errorf("a line of the stream is %q", line)
	case a.Done:
		return fmt.Errorf("after the end of the stream comes %q", data)
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
	Usage json.RawMessage `json:"usage"`

	// Of responses and messages.
	Type     string          `json:"type"`
	Output   []textParts     `json:"output"`
	Content  []textPart      `json:"content"`
	Delta    json.RawMessage `json:"delta"`
	Response json.RawMessage `json:"response"`
	Message  json.RawMessage `json:"message"`
}

type textParts struct {
	Content []textPart `json:"content"`
}

type textPart struct {
	Text string `json:"text"`
}

// Take reads the JSON of a whole answer, or of one event of a stream.
func (a *Answer) Take(data []byte) error {
	var p piece
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("reading %q: %w", data, err)
	}
	if a.event != "" && p.Type != a.event {
		return fmt.Errorf("the event %s has the type %q", a.event, p.Type)
	}
	a.fail(p.Error)
	for _, c := range p.Choices {
		a.Tokens = append(a.Tokens, c.TokenIDs...)
		if c.FinishReason != "" {
			a.Finish = c.FinishReason
		}
	}
	for _, o := range append(p.Output, textParts{p.Content}) {
		for _, c := range o.Content {
			a.say(c.Text)
		}
	}
	if err := a.bill(p.Usage); err != nil {
		return err
	}
	return a.takeTyped(p, data)
}

// takeTyped reads what an event of responses or messages has, by its type.
func (a *Answer) takeTyped(p piece, data []byte) error {
	switch p.Type {
	case "response.output_text.delta":
		var text string
		err := json.Unmarshal(p.Delta, &text)
		a.say(text)
		return err
	case "content_block_delta":
		var part textPart
		err := json.Unmarshal(p.Delta, &part)
		a.say(part.Text)
		return err
	case "response.completed", "response.incomplete", "response.failed":
		a.Done = p.Type != "response.failed"
		return a.takeInner(p.Response)
	case "message_start":
		return a.takeInner(p.Message)
	case "message_stop":
		a.Done = true
	case "error":
		if p.Error == nil { // of responses, whose event is the error itself
			a.fail(data)
		}
	}
	return nil
}

// takeInner reads the object that an event has of the whole answer. Other events have had its text.
func (a *Answer) takeInner(object []byte) error {
	var inner struct{ Error, Usage json.RawMessage }
	if err := json.Unmarshal(object, &inner); err != nil {
		return fmt.Errorf("reading %q: %w", object, err)
	}
	a.fail(inner.Error)
	return a.bill(inner.Usage)
}

func (a *Answer) fail(object json.RawMessage) {
	if !isNull(object) {
		a.Failed = string(object)
	}
}

// say adds a text of an API whose answers have no ids.
func (a *Answer) say(text string) {
	for _, c := range text {
		a.Tokens = append(a.Tokens, int(c))
	}
}

// bill reads a usage object.
func (a *Answer) bill(object json.RawMessage) error {
	if isNull(object) {
		return nil
	}
	type details struct {
		Cached int `json:"cached_tokens"`
	}
	var usage struct {
		Prompt *details `json:"prompt_tokens_details"`
		Input  *details `json:"input_tokens_details"`
		Read   *int     `json:"cache_read_input_tokens"`
	}
	if err := json.Unmarshal(object, &usage); err != nil {
		return fmt.Errorf("reading the usage %q: %w", object, err)
	}
	a.Usage = object
	switch {
	case usage.Prompt != nil:
		a.Cached = usage.Prompt.Cached
	case usage.Input != nil:
		a.Cached = usage.Input.Cached
	case usage.Read != nil:
		a.Cached = *usage.Read
	}
	return nil
}

func isNull(value json.RawMessage) bool { return value == nil || string(value) == "null" }

// FailedWell reports whether Failed has the members that the API's errors have: a message and a type.
func (a Answer) FailedWell() bool {
	var e struct{ Message, Type string }
	return a.Failed != "" && json.Unmarshal([]byte(a.Failed), &e) == nil && e.Message != "" && e.Type != ""
}
