package queue

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/pd/body"
)

// maxID is the longest id of a message in bytes. It is ours: llm-d documents no limit.
const maxID = 512

// latestDeadline, in the year 5138, tells seconds from milliseconds.
const latestDeadline = 100_000_000_000

// envelope is what producers write: llm-d's wire format.
type envelope struct {
	Internal struct {
		Token   string `json:"request_token"`
		Results string `json:"result_queue_name"`
	} `json:"internal"`
	Kind string `json:"request_kind"`
	Data struct {
		ID       string            `json:"id"`
		Deadline json.Number       `json:"deadline"` // Unix seconds
		Payload  json.RawMessage   `json:"payload"`
		Metadata map[string]string `json:"metadata"`
		Headers  map[string]string `json:"headers"`
		Endpoint string            `json:"endpoint"`
		Results  string            `json:"result_queue_name"`
	} `json:"data"`
}

var payloadTable = body.NewTable(body.Want{Path: "model"}, body.Want{Path: "stream"})

// parse reads a message. The payload is kept byte for byte, so that large numbers stay what they are.
func parse(text []byte) (r Request) {
	var e envelope
	if !utf8.Valid(text) {
		r.Problem = errors.New("the message is not UTF-8 text")
		return r
	}
	if err := json.Unmarshal(text, &e); err != nil {
		r.Problem = fmt.Errorf("the message is not one of llm-d's format: %w", err)
	}
	d := e.Data
	r.ID, r.Token, r.Endpoint, r.Results = d.ID, e.Internal.Token, d.Endpoint, cmp.Or(e.Internal.Results, d.Results)
	r.Payload, r.Metadata, r.Headers = d.Payload, d.Metadata, d.Headers
	if r.Problem != nil {
		return r
	}
	seconds, err := strconv.ParseInt(d.Deadline.String(), 10, 64)
	switch {
	case !slices.Contains([]string{"plain", "redis", "pubsub"}, e.Kind):
		r.Problem = fmt.Errorf("request_kind is %s: want plain, redis or pubsub", strconv.QuoteToASCII(clip(e.Kind)))
	case r.ID == "" || len(r.ID) > maxID:
		r.Problem = fmt.Errorf("data.id has %d bytes: want 1 to %d", len(r.ID), maxID)
	case err != nil || seconds <= 0 || seconds > latestDeadline:
		r.Problem = fmt.Errorf("data.deadline is %s: want Unix seconds", strconv.QuoteToASCII(clip(d.Deadline.String())))
	case r.Endpoint != "" && !slices.Contains(batch.Endpoints(), r.Endpoint):
		r.Problem = fmt.Errorf("data.endpoint is %s: want one of %s", strconv.QuoteToASCII(clip(r.Endpoint)), strings.Join(batch.Endpoints(), ", "))
	default:
		r.Deadline = time.Unix(seconds, 0)
		r.Problem = checkPayload(r.Payload)
	}
	return r
}

// checkPayload reports what is wrong with the body of a request.
func checkPayload(payload []byte) error {
	var s body.Scanner
	if err := s.Scan(payloadTable, body.Limits{}, payload); err != nil || s.Root().Kind != body.Object {
		return errors.New("data.payload is not an object: want the body of the request")
	}
	if m, found := s.Find(0); !found || m.Kind != body.String {
		return errors.New("data.payload needs model, a string")
	}
	if m, found := s.Find(1); found && m.Kind != body.False && m.Kind != body.Null {
		return errors.New("answers cannot be streamed to a queue: leave data.payload.stream out")
	}
	return nil
}

// clip shortens a text of the producer's for messages.
func clip(text string) string {
	const most = 100
	return text[:min(len(text), most)]
}
