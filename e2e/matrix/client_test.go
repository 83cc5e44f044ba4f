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
	tokens []int
	failed *apiError // of a stream's error event, or of a whole answer
	done   bool      // the stream said [DONE]
	err    error     // the connection ended before the answer did
}

// apiError is the error object of OpenAI's APIs: as Tandem writes it (code is a reason), or as engines do (code is the status).
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
	go func() { a.ended <- a.exchange(s.client, req) }()
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

func (a *asker) exchange(by http.RoundTripper, req *http.Request) (r reply) {
	resp, err := by.RoundTrip(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	r.status, r.header = resp.StatusCode, resp.Header
	from := bufio.NewReader(resp.Body)
	if hasBegun(from, r.header) {
		close(a.begun)
	}
	text, err := io.ReadAll(from)
	r.body, r.err = string(text), err
	if err := r.read(); err != nil && r.err == nil {
		r.err = err
	}
	return r
}

// hasBegun waits for the beginning of a body. The first event of a chat has no token yet.
func hasBegun(from *bufio.Reader, header http.Header) bool {
	events := 0
	if strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") {
		events = 2
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
		data, ok := strings.CutPrefix(event, "data: ")
		switch {
		case !ok:
			return fmt.Errorf("%q is no event", event)
		case r.done:
			return fmt.Errorf("%q comes after [DONE]", event)
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
	var d struct {
		Error   *apiError
		Choices []struct {
			TokenIDs []int `json:"token_ids"`
		}
	}
	if err := json.Unmarshal([]byte(document), &d); err != nil {
		return fmt.Errorf("reading %q: %w", document, err)
	}
	if d.Error != nil {
		r.failed = d.Error
	}
	for _, c := range d.Choices {
		r.tokens = append(r.tokens, c.TokenIDs...)
	}
	return nil
}

// sentInHalves reports whether the failure happens while the client sends.
func (r row) sentInHalves() bool { return r.state == received && r.action != noAction }
