package handoff

import (
	"bytes"
	"io"
	"net/http"
	"strconv"

	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/relay"
)

// finishedError says that a prefill leg has ended the request of both legs: there is nothing to hand over.
type finishedError struct{ of dialect.Finisher }

// Error implements error.
func (*finishedError) Error() string { return "prefill has ended the request with its first token" }

// answerFinished relays the answer of a prefill engine that has ended the request.
func (x *Exchange) answerFinished(of dialect.Finisher, stream bool) error {
	answer := of.Answer()
	resp := &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(answer)), ContentLength: int64(len(answer))}
	if stream {
		resp.Header.Set("Content-Type", "text/event-stream; charset=utf-8")
	} else {
		resp.Header.Set("Content-Length", strconv.Itoa(len(answer)))
	}
	x.handoff.answered = true
	x.rename(resp)
	a := relay.NewAnswer(resp.Body)
	defer a.Free()
	if err := firstOf(resp, a, nil); err != nil {
		return err // a mistake in a dialect
	}
	return x.Relay(resp, a)
}

// finished returns the hand-off as that of an engine that has ended the request, nil if it is not.
func finished(of dialect.Handoff) dialect.Finisher {
	f, _ := of.(dialect.Finisher)
	return f
}
