package madeup

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
)

// Ticket is a serial dialect: prefill answers with a ticket, and decode takes the KV cache for it. A ticket that is not used
// has to be returned to the decode engine, which tells prefill.
type Ticket struct{}

// The members of a leg, and of prefill's answer.
const (
	wantTicket = "want_ticket" // prefill: true
	ticketName = "ticket"      // decode, and prefill's answer: a string
)

// Shape implements dialect.Dialect.
func (Ticket) Shape() dialect.Shape { return dialect.Serial }

// Strips implements dialect.Stripper.
func (Ticket) Strips() []string { return []string{wantTicket, ticketName} }

// Attempt implements dialect.Dialect.
func (Ticket) Attempt(_ context.Context, r *request.Request, _ pd.Target) (dialect.Attempt, error) {
	return ticketAttempt{r}, nil
}

type ticketAttempt struct{ request *request.Request }

// Prefill implements dialect.Attempt.
func (a ticketAttempt) Prefill() (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	dialect.OneToken(a.request, e)
	e.Set(wantTicket, []byte("true"))
	return e.Payload()
}

// maxTicket bounds a ticket (bytes).
const maxTicket = 64

// Accept implements dialect.Attempt.
func (a ticketAttempt) Accept(answer []byte) (dialect.Handoff, error) {
	var said struct {
		Ticket *string `json:"ticket"`
	}
	if err := json.Unmarshal(answer, &said); err != nil {
		return nil, err
	}
	switch {
	case said.Ticket == nil:
		return nil, dialect.ErrNoHandoff
	case *said.Ticket == "" || len(*said.Ticket) > maxTicket:
		return nil, errors.New("the ticket is empty or too long")
	}
	return &ticket{request: a.request, text: strconv.AppendQuote(nil, *said.Ticket)}, nil
}

// ticket is a hand-off.
type ticket struct {
	request *request.Request
	text    []byte // JSON
}

// Decode implements dialect.Handoff.
func (t *ticket) Decode() (request.Payload, error) {
	e, err := t.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	e.Set(ticketName, t.text)
	return e.Payload()
}

// ReleaseRequest implements dialect.RequestReleaser.
func (t *ticket) ReleaseRequest() (path string, body []byte) {
	return returnPath, append([]byte(`{"ticket":`), append(t.text, '}')...)
}

// Released implements dialect.RequestReleaser.
func (*ticket) Released(status int) bool { return status == http.StatusNoContent }

// Tries implements dialect.RequestReleaser.
func (*ticket) Tries() (n int, pause time.Duration) { return 2, time.Millisecond }
