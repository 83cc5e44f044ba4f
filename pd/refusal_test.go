package pd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// wire is what every refusal looks like from outside.
var wire = []struct {
	reason            pd.Reason
	status            int
	openai, anthropic string
	retryAfter        string
	dropped           string
}{
	{pd.BadPDHeader, 400, "invalid_request_error", "invalid_request_error", "", ""},
	{pd.BadRequest, 400, "invalid_request_error", "invalid_request_error", "", ""},
	{pd.DuplicateKey, 400, "invalid_request_error", "invalid_request_error", "", ""},
	{pd.NotSplittable, 400, "invalid_request_error", "invalid_request_error", "", ""},
	{pd.TooLarge, 413, "invalid_request_error", "request_too_large", "", ""},
	{pd.LongHeader, 431, "invalid_request_error", "request_too_large", "", ""},
	{pd.SlowBody, 408, "timeout_error", "timeout_error", "", ""},
	{pd.UntrustedPeer, 403, "permission_error", "permission_error", "", ""},
	{pd.DeniedTarget, 403, "permission_error", "permission_error", "", ""},
	{pd.NotCached, 412, "invalid_request_error", "invalid_request_error", "", ""},
	{pd.NoEndpoint, 503, "service_unavailable_error", "overloaded_error", "1", "rejected-no-endpoints"},
	{pd.DecodeOnly, 503, "service_unavailable_error", "overloaded_error", "1", "rejected-no-endpoints"},
	{pd.NoPrefill, 503, "service_unavailable_error", "overloaded_error", "1", "rejected-no-endpoints"},
	{pd.PrefillFailed, 502, "server_error", "api_error", "1", ""},
	{pd.Saturated, 429, "rate_limit_error", "rate_limit_error", "1", "rejected-saturated"},
	{pd.QueueFull, 429, "rate_limit_error", "rate_limit_error", "1", "rejected-saturated"},
	{pd.QueueTimeout, 429, "rate_limit_error", "rate_limit_error", "1", "rejected-ttl-expired"},
	{pd.Evicted, 429, "rate_limit_error", "rate_limit_error", "1", "evicted-queue-pressure"},
	{pd.Budget, 503, "service_unavailable_error", "overloaded_error", "1", ""},
	{pd.Busy, 503, "service_unavailable_error", "overloaded_error", "1", "rejected-saturated"},
	{pd.Draining, 503, "service_unavailable_error", "overloaded_error", "1", "rejected-shutting-down"},
	{pd.Deadline, 504, "timeout_error", "timeout_error", "1", "rejected-ttl-expired"},
	{pd.InternalError, 500, "server_error", "api_error", "", ""},
}

// everyAPI returns all of them, those that generate nothing included.
func everyAPI() []pd.API { return append(pd.APIs(), pd.APIOther) }

func TestRefusalsOnTheWire(t *testing.T) {
	var reasons []pd.Reason
	for _, c := range wire {
		reasons = append(reasons, c.reason)
		t.Run(string(c.reason), func(t *testing.T) {
			r := pd.Refuse(c.reason, "too %s", "bad")
			if r.Status() != c.status || r.RetryAfter() != c.retryAfter || r.Dropped() != c.dropped {
				t.Errorf("status %d, Retry-After %q, dropped %q", r.Status(), r.RetryAfter(), r.Dropped())
			}
			if d := r.Result(); d != (pd.Result{Verdict: pd.Refused, Reason: c.reason}) {
				t.Errorf("decision %s", d)
			}
			for _, api := range everyAPI() {
				want := fmt.Sprintf(`{"error":{"message":"too bad","type":%q,"param":null,"code":%q}}`, c.openai, c.reason)
				if api == pd.APIMessages || api == pd.APICountTokens {
					want = fmt.Sprintf(`{"type":"error","error":{"type":%q,"message":"too bad"}}`, c.anthropic)
				}
				if got := string(r.JSON(api)); got != want {
					t.Errorf("%s: got %s, want %s", api, got, want)
				}
			}
		})
	}
	if got := slices.Sorted(slices.Values(pd.Reasons(pd.Refused))); !slices.Equal(got, slices.Sorted(slices.Values(reasons))) {
		t.Errorf("a reason of a refusal has no case here: %v", got)
	}
}

// A client that tries again after one of the first kind is refused again; without the header after one of the second it
// would not know that trying helps.
func TestRetryAfterWhereItHelps(t *testing.T) {
	for _, reason := range pd.Reasons(pd.Refused) {
		r := pd.Refuse(reason, "x")
		helps := slices.Contains([]int{429, 502, 503, 504}, r.Status())
		if (r.RetryAfter() != "") != helps {
			t.Errorf("%s: status %d with Retry-After %q", reason, r.Status(), r.RetryAfter())
		}
	}
}

func TestRetryAfterOverride(t *testing.T) {
	cases := []struct {
		reason pd.Reason
		after  time.Duration
		want   string
	}{
		{pd.Saturated, 0, "1"},
		{pd.Saturated, time.Nanosecond, "1"},
		{pd.Saturated, time.Second, "1"},
		{pd.Saturated, time.Second + 1, "2"},
		{pd.Saturated, 90 * time.Second, "90"},
		{pd.Saturated, -time.Second, "1"},
		{pd.InternalError, 5 * time.Second, "5"},
	}
	for _, c := range cases {
		r := &pd.Refusal{Reason: c.reason, After: c.after}
		if got := r.RetryAfter(); got != c.want {
			t.Errorf("%s after %s: got %q", c.reason, c.after, got)
		}
	}
}

// Text of every sort must come through as JSON, or the client shows a parse error instead of the message.
func TestRefusalJSONOfAnyMessage(t *testing.T) {
	for _, message := range []string{"", `"quoted" \ and more`, "two\nlines\r\n\tand a tab", "data: [DONE]\n\n", "é 你好 😀", "bad \xff byte", "<b>&amp;\u2028"} {
		for _, api := range everyAPI() {
			var got struct {
				Error struct{ Message string }
			}
			raw := pd.Refuse(pd.BadRequest, "%s", message).JSON(api)
			if err := json.Unmarshal(raw, &got); err != nil || got.Error.Message != strings.ToValidUTF8(message, "\ufffd") {
				t.Errorf("%s, %q: %s, %v", api, message, raw, err)
			}
		}
	}
}

func TestRefusalEventEndsTheStream(t *testing.T) {
	for _, api := range everyAPI() {
		for _, reason := range append(pd.Reasons(pd.Refused), "no-such-reason") {
			r := pd.Refuse(reason, "a\n\nb")
			known := r.Result().Reason
			events := strings.Split(strings.TrimSuffix(string(r.Event(api, 5)), "\n\n"), "\n\n")
			switch api {
			case pd.APIMessages:
				if want := "event: error\ndata: " + string(r.JSON(api)); len(events) != 1 || events[0] != want {
					t.Errorf("%s: got %q", api, events)
				}
			case pd.APIResponses:
				want := fmt.Sprintf("event: error\ndata: "+`{"type":"error","code":%q,"message":"a\n\nb","param":null,"sequence_number":5}`, known)
				if len(events) != 1 || events[0] != want {
					t.Errorf("%s: got %q", api, events)
				}
			default:
				if len(events) != 2 || events[0] != "data: "+string(r.JSON(api)) || events[1] != "data: [DONE]" {
					t.Errorf("%s: got %q", api, events)
				}
			}
		}
	}
}

func TestAsRefusal(t *testing.T) {
	boom := errors.New("boom at 10.0.0.7")
	saturated := &pd.Refusal{Reason: pd.Saturated, Message: "full", Cause: boom}
	cases := []struct {
		name   string
		err    error
		reason pd.Reason
		cause  error
	}{
		{"itself", saturated, pd.Saturated, boom},
		{"wrapped", fmt.Errorf("picking: %w", saturated), pd.Saturated, boom},
		{"joined", errors.Join(io.EOF, saturated), pd.Saturated, boom},
		{"another error", boom, pd.InternalError, boom},
		{"none", nil, pd.InternalError, nil},
	}
	for _, c := range cases {
		r := pd.AsRefusal(c.err)
		if r.Reason != c.reason || r.Cause != c.cause {
			t.Errorf("%s: got %s because of %v", c.name, r.Reason, r.Cause)
		}
		if strings.Contains(string(r.JSON(pd.APIChat)), "10.0.0.7") {
			t.Errorf("%s: the client is told the cause: %s", c.name, r.JSON(pd.APIChat))
		}
	}
}

func TestRefusalIsAnError(t *testing.T) {
	r := pd.Refuse(pd.Budget, "no %s left", "fallback")
	if got := r.Error(); got != "budget: no fallback left" || errors.Unwrap(r) != nil {
		t.Errorf("got %q", got)
	}
	r.Cause = io.ErrUnexpectedEOF
	if got := r.Error(); got != "budget: no fallback left: unexpected EOF" || !errors.Is(r, io.ErrUnexpectedEOF) {
		t.Errorf("with a cause: got %q", got)
	}
}

// A reason that may not explain a refusal is a mistake of ours: an internal error, whatever it is.
func TestRefusalWithoutARow(t *testing.T) {
	for _, reason := range []pd.Reason{"", pd.HandoffInvalid, pd.Uncached, "no-such-reason"} {
		r := pd.Refuse(reason, "x")
		if r.Status() != http.StatusInternalServerError || r.Result().Reason != pd.InternalError {
			t.Errorf("%q: %d, %s", reason, r.Status(), r.Result())
		}
		for _, api := range everyAPI() {
			if strings.Contains(string(r.Event(api, 5)), `"code":"`+string(reason)+`"`) {
				t.Errorf("%q: %s tells the client: %s", reason, api, r.Event(api, 5))
			}
		}
	}
}

func TestRefusalWrite(t *testing.T) {
	attempted := func(r *pd.Refusal) pd.Result {
		d := r.Result()
		d.Attempts, d.Candidate = 2, 1
		return d
	}
	for _, reason := range pd.Reasons(pd.Refused) {
		for _, retriable := range []bool{false, true} {
			for _, api := range everyAPI() {
				r := pd.Refuse(reason, "é")
				w := httptest.NewRecorder()
				if err := r.Write(w, api, attempted(r), retriable); err != nil {
					t.Fatal(err)
				}
				if w.Code != r.Status() || !bytes.Equal(w.Body.Bytes(), r.JSON(api)) {
					t.Errorf("%s: %d %s", reason, w.Code, w.Body)
				}
				want := map[string]string{
					"Content-Type":    "application/json",
					"Content-Length":  fmt.Sprint(w.Body.Len()),
					"Retry-After":     r.RetryAfter(),
					pd.HeaderDecision: "refused;reason=" + string(reason) + ";attempts=2;candidate=1",
					pd.HeaderRetry:    "",
				}
				if retriable && (w.Code == 502 || w.Code == 503) {
					want[pd.HeaderRetry] = "1"
				}
				for name, value := range want {
					if got := w.Header().Get(name); got != value {
						t.Errorf("%s, retriable %v: %s is %q, want %q", reason, retriable, name, got, value)
					}
				}
			}
		}
	}
}

// brokenWriter is a connection that is gone.
type brokenWriter struct{ http.ResponseWriter }

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestRefusalWriteReportsABrokenConnection(t *testing.T) {
	r := pd.Refuse(pd.Draining, "x")
	if err := r.Write(brokenWriter{httptest.NewRecorder()}, pd.APIChat, r.Result(), false); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}

// TestRefusalOfGRPC: clients of gRPC get a status in the headers of an answer without a body.
func TestRefusalOfGRPC(t *testing.T) {
	codes := map[int]int{400: 3, 403: 7, 408: 4, 412: 9, 413: 8, 429: 8, 431: 8, 500: 13, 502: 14, 503: 14, 504: 4}
	for _, c := range wire {
		w := httptest.NewRecorder()
		refusal := pd.Refuse(c.reason, "A\n 50%% é.")
		if err := refusal.Write(w, pd.APIVLLMGenerate, refusal.Result(), true); err != nil {
			t.Fatal(err)
		}
		h := w.Header()
		if w.Code != 200 || w.Body.Len() > 0 || h.Get("Content-Type") != "application/grpc" || h.Get("Grpc-Status") != fmt.Sprint(codes[c.status]) ||
			h.Get("Grpc-Message") != "A%0A 50%25 %C3%A9." || h.Get("Retry-After") != c.retryAfter || h.Get(pd.HeaderDecision) == "" {
			t.Errorf("%s: %d %v %s", c.reason, w.Code, h, w.Body)
		}
	}
}
