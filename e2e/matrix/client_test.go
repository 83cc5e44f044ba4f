package matrix

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// reply is what a client got.
type reply struct {
	status int // 0: no answer
	header http.Header
	body   string
	tokens []int     // ids; of APIs whose answers have none, the runes of the text
	failed *apiError // of a stream's error event, or of a whole answer
	done   bool      // the stream has its last event
	spoken bool      // the answers of no API have ids
	err    error     // the connection ended before the answer did
}

// apiError is the error object of an API: as Tandem writes it (code is a reason), or as engines do (code is the status).
// Anthropic's has no code.
type apiError struct {
	Message, Type string
	Param         *string
	Code          any
}

// asker is a client with one request under way.
type asker struct {
	cancel    context.CancelFunc
	send      *io.PipeWriter // takes the body, if it is sent in halves
	continued chan struct{}  // closed when the sidecar reads the body
	begun     chan struct{}  // closed when the first byte of the answer's body has arrived, of a stream the first token
	ended     chan reply
}

// ask sends a row's request; if the failure happens while the client sends, only the first half of the body.
func ask(t *testing.T, s *fixture, r row) *asker {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	t.Cleanup(cancel)
	a := &asker{cancel: cancel, continued: make(chan struct{}), begun: make(chan struct{}), ended: make(chan reply, 1)}
	var body io.Reader = bytes.NewReader(r.body())
	if r.sentInHalves() {
		body, a.send = io.Pipe()
		t.Cleanup(func() { a.send.Close() })
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got100Continue: func() { close(a.continued) }})
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+r.api.Path(), body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if r.sentInHalves() {
		req.Header.Set("Expect", "100-continue")
	}
	if r.situation == forced {
		req.Header.Set(pd.HeaderMode, "force")
	}
	if r.protocol.meets() {
		req.Header.Set("X-Meet-Number", "1") // the protocol's own header: no engine may see it
	}
	var targets []string
	for _, p := range s.prefill {
		targets = append(targets, p.addr())
	}
	req.Header.Set(pd.HeaderPrefill, strings.Join(targets, ","))
	go func() { a.ended <- a.exchange(s.client, req, r) }()
	if a.send != nil {
		wait(t, a.continued, "the sidecar to read")
		if _, err := a.send.Write(r.body()[:len(r.body())/2]); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// hangUp closes the connection. It ends the body too, for which the transport would wait.
func (a *asker) hangUp() {
	a.cancel()
	a.sendNoMore()
}

// sendNoMore breaks off a body that is sent in halves.
func (a *asker) sendNoMore() {
	if a.send != nil {
		a.send.CloseWithError(context.Canceled)
	}
}

func (a *asker) exchange(by http.RoundTripper, req *http.Request, of row) reply {
	resp, err := by.RoundTrip(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	r := reply{status: resp.StatusCode, header: resp.Header, spoken: of.protocol.start != nil}
	from := bufio.NewReader(resp.Body)
	if hasBegun(from, r.header, of.protocol.firstEvents[of.api]) {
		close(a.begun)
	}
	text, err := io.ReadAll(from)
	r.body, r.err = string(text), err
	if err := r.read(); err != nil && r.err == nil {
		r.err = err
	}
	return r
}

// firstEvents is how many events a stream has up to its first token.
var firstEvents = map[pd.API]int{pd.APICompletions: 2, pd.APIChat: 2, pd.APIResponses: 5, pd.APIMessages: 3, pd.APIGenerate: 2}

// hasBegun waits for the beginning of a body, which of a stream is its first events.
func hasBegun(from *bufio.Reader, header http.Header, events int) bool {
	if !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") {
		events = 0
	}
	for n := 1; ; n = from.Buffered() + 1 {
		if _, err := from.Peek(n); err != nil {
			return false
		}
		if b, err := from.Peek(from.Buffered()); err != nil || bytes.Count(b, []byte("\n\n")) >= events {
			return err == nil
		}
	}
}

// read parses the answer. The error says what is malformed.
func (r *reply) read() error {
	if !strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream") {
		return r.take(r.body)
	}
	for event := range strings.SplitSeq(strings.TrimSuffix(r.body, "\n\n"), "\n\n") {
		named, ok := strings.CutPrefix(event, "event: ")
		name, rest, _ := strings.Cut(named, "\n")
		if !ok {
			name, rest = "", event
		}
		data, ok := strings.CutPrefix(rest, "data: ")
		switch {
		case !ok:
			return fmt.Errorf("%q is no event", event)
		case r.done:
			return fmt.Errorf("%q comes after the last event", event)
		case name == "response.completed", name == "response.incomplete", name == "message_stop":
			r.done = true
		case data == "[DONE]":
			r.done = true
		default:
			if err := r.take(data); err != nil {
				return err
			}
		}
	}
	return nil
}

// take parses one JSON document.
func (r *reply) take(document string) error {
	if strings.HasPrefix(document, "[") { // of SGLang's own call, for several prompts or choices
		var list []json.RawMessage
		if err := json.Unmarshal([]byte(document), &list); err != nil {
			return fmt.Errorf("reading %q: %w", document, err)
		}
		for _, one := range list {
			part := reply{spoken: r.spoken}
			if err := part.take(string(one)); err != nil {
				return err
			}
			r.tokens = append(r.tokens, part.tokens...)
		}
		return nil
	}
	var d struct {
		Type    string
		Object  string
		Error   *apiError
		Choices []struct {
			TokenIDs []int `json:"token_ids"`
			Text     string
			Message  spoken
			Delta    spoken
		}
		Text    json.RawMessage // a string of SGLang's own call: everything so far
		Output  []struct{ Content []textPart }
		Content []textPart
		Delta   json.RawMessage
	}
	if err := json.Unmarshal([]byte(document), &d); err != nil {
		return fmt.Errorf("reading %q: %w", document, err)
	}
	switch {
	case d.Error != nil:
		r.failed = d.Error
	case d.Type == "error", d.Object == "error": // of responses, whose event is the error itself; of SGLang
		r.failed = &apiError{}
		if err := json.Unmarshal([]byte(document), r.failed); err != nil {
			return fmt.Errorf("reading %q: %w", document, err)
		}
	}
	for _, c := range d.Choices {
		if r.spoken {
			r.speak(c.Text + c.Message.Content + c.Delta.Content)
			continue
		}
		r.tokens = append(r.tokens, c.TokenIDs...)
	}
	if so := ""; json.Unmarshal(d.Text, &so) == nil {
		r.tokens = nil
		r.speak(so)
	}
	for _, o := range d.Output {
		d.Content = append(d.Content, o.Content...)
	}
	for _, c := range d.Content {
		r.speak(c.Text)
	}
	return r.takeDelta(d.Type, d.Delta)
}

// spoken is the text of a chat.
type spoken struct{ Content string }

// textPart is a part of an answer of responses or messages.
type textPart struct{ Text string }

// takeDelta adds the text of an event of responses or messages.
func (r *reply) takeDelta(event string, delta []byte) error {
	switch event {
	case "response.output_text.delta":
		var text string
		err := json.Unmarshal(delta, &text)
		r.speak(text)
		return err
	case "content_block_delta":
		var part textPart
		err := json.Unmarshal(delta, &part)
		r.speak(part.Text)
		return err
	}
	return nil
}

func (r *reply) speak(text string) {
	for _, c := range text {
		r.tokens = append(r.tokens, int(c))
	}
}

// sentInHalves reports whether the failure happens while the client sends.
func (r row) sentInHalves() bool { return r.state == received && r.action != noAction }
