package answer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	Texts  []string        // of each choice
	Usage  json.RawMessage // the last usage object; nil: none. SGLang's generate API has one for each choice: their sum
	Cached int             // tokens of the prompt that were cached; -1: not reported
	Finish string          // finish_reason
	Failed string          // the error object, which may be the last event of a stream
	Done   bool            // a stream has the event that ends it
	Body   string          // of an answer that is not a stream, unchanged

	event string  // name of the event whose data follows
	soFar []piece // the last of each choice, where every event has everything so far
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
		Index        int
		TokenIDs     []int  `json:"token_ids"`
		FinishReason string `json:"finish_reason"`

		Text           string // of completions
		Message, Delta struct{ Content string }
	} `json:"choices"`
	Error json.RawMessage `json:"error"`
	Usage json.RawMessage `json:"usage"`

	// Of SGLang's generate API.
	Index int
	Text  json.RawMessage // a text; something else in responses
	IDs   []int           `json:"output_ids"`
	Meta  *meta           `json:"meta_info"`

	// Of responses and messages.
	Type     string          `json:"type"`
	Output   []textParts     `json:"output"`
	Content  []textPart      `json:"content"`
	Delta    json.RawMessage `json:"delta"`
	Response json.RawMessage `json:"response"`
	Message  json.RawMessage `json:"message"`
}

// meta is what SGLang's generate API says of an answer, or of a part of it.
type meta struct {
	Finish     json.RawMessage `json:"finish_reason"`
	Prompt     int             `json:"prompt_tokens"`
	Completion int             `json:"completion_tokens"`
	Cached     int             `json:"cached_tokens"`
}

type textParts struct {
	Content []textPart `json:"content"`
}

type textPart struct {
	Text string `json:"text"`
}

// Take reads the JSON of a whole answer, or of one event of a stream.
func (a *Answer) Take(data []byte) error {
	if bytes.HasPrefix(data, []byte("[")) {
		return a.takeSeveral(data)
	}
	var p piece
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("reading %q: %w", data, err)
	}
	if a.event != "" && p.Type != a.event {
		return fmt.Errorf("the event %s has the type %q", a.event, p.Type)
	}
	a.fail(p.Error)
	if p.Meta != nil {
		return a.takeSoFar(p)
	}
	for _, c := range p.Choices {
		a.Tokens = append(a.Tokens, c.TokenIDs...)
		if err := a.write(c.Index, c.Text+c.Message.Content+c.Delta.Content); err != nil {
			return err
		}
		if c.FinishReason != "" {
			a.Finish = c.FinishReason
		}
	}
	for _, o := range append(p.Output, textParts{p.Content}) {
		for _, c := range o.Content {
			if err := a.say(c.Text); err != nil {
				return err
			}
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
		if err := json.Unmarshal(p.Delta, &text); err != nil {
			return err
		}
		return a.say(text)
	case "content_block_delta":
		var part textPart
		if err := json.Unmarshal(p.Delta, &part); err != nil {
			return err
		}
		return a.say(part.Text)
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
func (a *Answer) say(text string) error {
	for _, c := range text {
		a.Tokens = append(a.Tokens, int(c))
	}
	return a.write(0, text)
}

// choiceLimit bounds the index of a choice.
const choiceLimit = 1000

// write adds to the text of a choice.
func (a *Answer) write(index int, text string) error {
	if index < 0 || index >= choiceLimit {
		return fmt.Errorf("the answer has a choice %d", index)
	}
	for len(a.Texts) <= index {
		a.Texts = append(a.Texts, "")
	}
	a.Texts[index] += text
	return nil
}

// takeSeveral reads a whole answer of SGLang's generate API that has several choices, or those of several prompts.
func (a *Answer) takeSeveral(data []byte) error {
	var all []piece
	if err := json.Unmarshal(data, &all); err != nil {
		return fmt.Errorf("reading %q: %w", data, err)
	}
	for i, p := range all {
		p.Index = i
		if err := a.takeSoFar(p); err != nil {
			return err
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("reading %q: there is no answer in it", data)
	}
	return nil
}

// takeSoFar reads an answer of SGLang's generate API, or all of it so far.
func (a *Answer) takeSoFar(p piece) error {
	if p.Meta == nil {
		return errors.New("an answer of the generate API has no meta_info")
	}
	if err := a.write(p.Index, ""); err != nil {
		return err
	}
	for len(a.soFar) <= p.Index {
		a.soFar = append(a.soFar, piece{Meta: &meta{}})
	}
	if err := json.Unmarshal(p.Text, &a.Texts[p.Index]); err != nil {
		return fmt.Errorf("reading the text %q: %w", p.Text, err)
	}
	a.soFar[p.Index] = p
	var sum meta
	a.Tokens = nil
	for _, choice := range a.soFar {
		a.Tokens = append(a.Tokens, choice.IDs...)
		sum.Prompt += choice.Meta.Prompt
		sum.Completion += choice.Meta.Completion
		sum.Cached += choice.Meta.Cached
	}
	a.Cached = sum.Cached
	a.Usage = fmt.Appendf(nil, `{"prompt_tokens":%d,"completion_tokens":%d}`, sum.Prompt, sum.Completion)
	if isNull(p.Meta.Finish) {
		return nil
	}
	var finish struct{ Type string }
	if err := json.Unmarshal(p.Meta.Finish, &finish); err != nil {
		return fmt.Errorf("reading the finish reason %q: %w", p.Meta.Finish, err)
	}
	if a.Finish = finish.Type; finish.Type == "abort" {
		a.fail(p.Meta.Finish)
	}
	return nil
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
