package madeup

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
)

// Meeting is a concurrent dialect: both legs carry a number that is minted for the attempt, and decode waits for what prefill
// leaves under it.
type Meeting struct{}

// The members of a leg.
const (
	meetNumber = "meet_number" // both legs
	meetPod    = "meet_pod"    // decode: where prefill runs
)

// meetHeaders begins the headers that replace members of the body in a Translator, as SGLang's x-override-* do.
const meetHeaders = "X-Meet-"

// Shape implements dialect.Dialect.
func (Meeting) Shape() dialect.Shape { return dialect.Concurrent }

// Strips implements dialect.Stripper.
func (Meeting) Strips() []string { return []string{meetNumber, meetPod} }

// MaxChoices implements dialect.PerChoice: a number is for one prefill and one decode.
func (Meeting) MaxChoices() int { return 4 }

// StripsHeader implements dialect.HeaderStripper.
func (Meeting) StripsHeader(name string) bool { return strings.HasPrefix(name, meetHeaders) }

// Attempt implements dialect.Dialect.
func (Meeting) Attempt(_ context.Context, r *request.Request, prefill pd.Target) (dialect.Attempt, error) {
	number := strconv.AppendUint(nil, 1+rand.Uint64N(1<<63-1), 10)
	return &meeting{request: r, number: number, pod: strconv.AppendQuote(nil, prefill.String())}, nil
}

// meeting is an attempt and its hand-off.
type meeting struct {
	request     *request.Request
	number, pod []byte // JSON
}

// Prefill implements dialect.Attempt.
func (m *meeting) Prefill() (request.Payload, error) {
	e, err := m.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	e.Set(meetNumber, m.number)
	return e.Payload()
}

// Decode implements dialect.Handoff.
func (m *meeting) Decode() (request.Payload, error) {
	e, err := m.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	e.Set(meetNumber, m.number)
	e.Set(meetPod, m.pod)
	return e.Payload()
}

// Handoff implements dialect.Rendezvous.
func (m *meeting) Handoff() dialect.Handoff { return m }

// Accept implements dialect.Attempt. An engine that took part in a meeting says its number.
func (m *meeting) Accept(answer []byte) (dialect.Handoff, error) {
	if !bytes.Equal(answer, slices.Concat([]byte(`{"met":`), m.number, []byte{'}'})) {
		return nil, dialect.ErrNoHandoff
	}
	return m, nil
}

// Abort implements dialect.Aborter.
func (m *meeting) Abort(pd.Role) (path string, body []byte) {
	return abortPath, slices.Concat([]byte(`{"meet_number":`), m.number, []byte{'}'})
}
