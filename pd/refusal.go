package pd

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Refusal is an error that picker, sidecar or gateway sends to a client. It becomes a JSON error in the shape of the API that
// was called, and a Result with verdict Refused.
type Refusal struct {
	Reason  Reason
	Message string        // for the client: the error and what to do; never a prompt's text, never an address
	After   time.Duration // replaces the table's Retry-After; 0 = the table's
	Cause   error         // for logs and spans only
	Queue   *QueuePlace   // where a new try would wait; nil if requests do not wait
	Token   string        // replaces the table's token in HeaderDropped; "" = the table's
}

// TokenEvicted is the token in HeaderDropped of a request that was ended after its pick, for a more important one. It is llm-d's.
const TokenEvicted = "evicted"

// QueuePlace is a place in a queue of requests that wait for capacity.
type QueuePlace struct {
	Position int           // 1 = next
	Wait     time.Duration // expected; 0 = not known
}

// String returns the place as HeaderQueue has it: position=<n>[;wait=<ms>].
func (q *QueuePlace) String() string {
	text := "position=" + strconv.Itoa(q.Position)
	if q.Wait > 0 {
		text += ";wait=" + strconv.FormatInt(q.Wait.Milliseconds(), 10)
	}
	return text
}

// QueueWait returns how long a served request waited as HeaderQueue has it: waited=<ms>, at least 1.
func QueueWait(waited time.Duration) string {
	return "waited=" + strconv.FormatInt(max(1, waited.Milliseconds()), 10)
}

// refusals has the form of each refusal on the wire.
var refusals = []struct {
	reason            Reason
	status            int
	openai, anthropic string        // the "type" of the error object
	after             time.Duration // Retry-After; 0 = no header, because another try would not help
	dropped           string        // llm-d's token in HeaderDropped, when a picker refuses
}{
	{BadPDHeader, http.StatusBadRequest, "invalid_request_error", "invalid_request_error", 0, ""},
	{BadRequest, http.StatusBadRequest, "invalid_request_error", "invalid_request_error", 0, ""},
	{DuplicateKey, http.StatusBadRequest, "invalid_request_error", "invalid_request_error", 0, ""},
	{NotSplittable, http.StatusBadRequest, "invalid_request_error", "invalid_request_error", 0, ""},
	{TooLarge, http.StatusRequestEntityTooLarge, "invalid_request_error", "request_too_large", 0, ""},
	{LongHeader, http.StatusRequestHeaderFieldsTooLarge, "invalid_request_error", "request_too_large", 0, ""},
	{SlowBody, http.StatusRequestTimeout, "timeout_error", "timeout_error", 0, ""},
	{UntrustedPeer, http.StatusForbidden, "permission_error", "permission_error", 0, ""},
	{DeniedTarget, http.StatusForbidden, "permission_error", "permission_error", 0, ""},
	{NotCached, http.StatusPreconditionFailed, "invalid_request_error", "invalid_request_error", 0, ""},
	{NoEndpoint, http.StatusServiceUnavailable, "service_unavailable_error", "overloaded_error", time.Second, "rejected-no-endpoints"},
	{NoPrefill, http.StatusServiceUnavailable, "service_unavailable_error", "overloaded_error", time.Second, "rejected-no-endpoints"},
	{DecodeOnly, http.StatusServiceUnavailable, "service_unavailable_error", "overloaded_error", time.Second, "rejected-no-endpoints"},
	{PrefillFailed, http.StatusBadGateway, "server_error", "api_error", time.Second, ""},
	{Saturated, http.StatusTooManyRequests, "rate_limit_error", "rate_limit_error", time.Second, "rejected-saturated"},
	{QueueFull, http.StatusTooManyRequests, "rate_limit_error", "rate_limit_error", time.Second, "rejected-saturated"},
	{QueueTimeout, http.StatusTooManyRequests, "rate_limit_error", "rate_limit_error", time.Second, "rejected-ttl-expired"},
	{Evicted, http.StatusTooManyRequests, "rate_limit_error", "rate_limit_error", time.Second, "evicted-queue-pressure"},
	{Budget, http.StatusServiceUnavailable, "service_unavailable_error", "overloaded_error", time.Second, ""},
	{Busy, http.StatusServiceUnavailable, "service_unavailable_error", "overloaded_error", time.Second, "rejected-saturated"},
	{Draining, http.StatusServiceUnavailable, "service_unavailable_error", "overloaded_error", time.Second, "rejected-shutting-down"},
	{Deadline, http.StatusGatewayTimeout, "timeout_error", "timeout_error", time.Second, "rejected-ttl-expired"},
	{InternalError, http.StatusInternalServerError, "server_error", "api_error", 0, ""},
}

// Refuse makes a refusal with a message for the client.
func Refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// AsRefusal returns the refusal in an error. Any other error becomes an internal refusal, whose message does not contain it.
func AsRefusal(err error) *Refusal {
	var r *Refusal
	if errors.As(err, &r) {
		return r
	}
	return &Refusal{Reason: InternalError, Message: "Tandem could not handle this request; the reason is in its log.", Cause: err}
}

// Error implements error.
func (r *Refusal) Error() string {
	if r.Cause != nil {
		return fmt.Sprintf("%s: %s: %v", r.Reason, r.Message, r.Cause)
	}
	return fmt.Sprintf("%s: %s", r.Reason, r.Message)
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Cause }

func (r *Refusal) row() int {
	last := len(refusals) - 1
	for i := range refusals {
		if refusals[i].reason == r.Reason {
			return i
		}
	}
	return last
}

// Status returns the HTTP status.
func (r *Refusal) Status() int { return refusals[r.row()].status }

// grpcCodes are the codes of gRPC that say what a status of HTTP says. All others are grpcInternal.
var grpcCodes = map[int]int{
	http.StatusBadRequest:                  3, // INVALID_ARGUMENT
	http.StatusRequestTimeout:              4, // DEADLINE_EXCEEDED
	http.StatusGatewayTimeout:              4,
	http.StatusForbidden:                   7, // PERMISSION_DENIED
	http.StatusRequestEntityTooLarge:       8, // RESOURCE_EXHAUSTED
	http.StatusRequestHeaderFieldsTooLarge: 8,
	http.StatusTooManyRequests:             8,
	http.StatusPreconditionFailed:          9,  // FAILED_PRECONDITION
	http.StatusBadGateway:                  14, // UNAVAILABLE
	http.StatusServiceUnavailable:          14,
}

const grpcInternal = 13

// GRPCCode returns the code of gRPC, for clients that speak it.
func (r *Refusal) GRPCCode() int {
	if code, ok := grpcCodes[r.Status()]; ok {
		return code
	}
	return grpcInternal
}

// GRPCMessage returns the message in the form of a header of gRPC: bytes other than printable ones of ASCII, and the percent sign,
// are escaped.
func (r *Refusal) GRPCMessage() string {
	var b strings.Builder
	for _, c := range []byte(r.Message) {
		if c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// RetryAfter returns the value of the Retry-After header in seconds, "" for none.
func (r *Refusal) RetryAfter() string {
	after := r.After
	if after == 0 {
		after = refusals[r.row()].after
	}
	if after == 0 {
		return ""
	}
	return strconv.Itoa(max(1, int((after+time.Second-1)/time.Second)))
}

// Dropped returns the value of HeaderDropped for pickers, "" for none.
func (r *Refusal) Dropped() string {
	if r.Token != "" {
		return r.Token
	}
	return refusals[r.row()].dropped
}

// Result returns the HeaderDecision of the refusal.
func (r *Refusal) Result() Result {
	return Result{Verdict: Refused, Reason: refusals[r.row()].reason}
}

// errorObject is the inner object of both error shapes. OpenAI's has param and code, Anthropic's has neither.
type errorObject struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    Reason  `json:"code"`
}

type anthropicError struct {
	Type  string `json:"type"`
	Error struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
}

// JSON returns the error in the shape of the API: Anthropic's for messages and for counting their tokens, OpenAI's for all others,
// whose code is the reason.
func (r *Refusal) JSON(api API) []byte {
	row := refusals[r.row()]
	var shape any
	if api == APIMessages || api == APICountTokens {
		e := anthropicError{Type: "error"}
		e.Error.Type, e.Error.Message = row.anthropic, r.Message
		shape = e
	} else {
		shape = struct {
			Error errorObject `json:"error"`
		}{errorObject{Message: r.Message, Type: row.openai, Code: row.reason}}
	}
	b, err := json.Marshal(shape)
	if err != nil {
		panic(err) // strings always marshal
	}
	return b
}

// Event returns the error as the last event of a stream whose status was already sent, after number events. It ends the
// stream in the way of the API: messages and responses with the error event itself, all others with [DONE].
func (r *Refusal) Event(api API, number int) []byte {
	switch api {
	case APIMessages:
		return fmt.Appendf(nil, "event: error\ndata: %s\n\n", r.JSON(api))
	case APIResponses:
		b, err := json.Marshal(struct {
			Type    string  `json:"type"`
			Code    Reason  `json:"code"`
			Message string  `json:"message"`
			Param   *string `json:"param"`
			Number  int     `json:"sequence_number"` // events count from 0
		}{Type: "error", Code: refusals[r.row()].reason, Message: r.Message, Number: number})
		if err != nil {
			panic(err) // strings always marshal
		}
		return fmt.Appendf(nil, "event: error\ndata: %s\n\n", b)
	}
	return fmt.Appendf(nil, "data: %s\n\ndata: [DONE]\n\n", r.JSON(api))
}

// Write answers an HTTP request with the refusal: status, Retry-After, the decision d and the API's JSON error. retriable
// adds HeaderRetry to a 502 or 503: another decode pod may try, because nothing was sent to the client. Any API of gRPC stands for all
// of its calls.
func (r *Refusal) Write(w http.ResponseWriter, api API, d Result, retriable bool) error {
	h := w.Header()
	h.Set(HeaderDecision, d.String())
	if after := r.RetryAfter(); after != "" {
		h.Set("Retry-After", after)
	}
	status := r.Status()
	if retriable && (status == http.StatusBadGateway || status == http.StatusServiceUnavailable) {
		h.Set(HeaderRetry, "1")
	}
	if api.GRPC() { // the status is in the headers of an answer without a body
		h.Set("Content-Type", "application/grpc")
		h.Set("Grpc-Status", strconv.Itoa(r.GRPCCode()))
		h.Set("Grpc-Message", r.GRPCMessage())
		w.WriteHeader(http.StatusOK)
		return nil
	}
	h.Set("Content-Type", "application/json")
	body := r.JSON(api)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, err := w.Write(body)
	return err
}
