package extproc

import (
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

type frames = []*procv3.ProcessingRequest

func TestFrameSequences(t *testing.T) {
	half := len(prompt) / 2
	for _, c := range []struct {
		name   string
		mark   client.Mark
		config *procv3.ProtocolConfiguration // nil: as the filter needs it
		frames frames
		want   []string
	}{
		{"GET", "", nil, frames{get("/v1/models")}, []string{"request headers"}},
		{"POST over HTTP/1.1 ends with an empty frame", "", nil,
			frames{chat(more), requestBody(more, prompt), requestBody(ends, "")},
			[]string{"request headers", "request body " + quoted(prompt) + " end"}},
		{"POST over HTTP/2 ends with its last frame", "", nil,
			frames{chat(more), requestBody(more, prompt[:half]), requestBody(ends, prompt[half:])},
			[]string{"request headers", "request body " + quoted(prompt[:half]), "request body " + quoted(prompt[half:]) + " end"}},
		{"empty body where nothing is generated", "", nil,
			frames{requestHeaders(more, ":method", "POST", ":path", "/tokenize"), requestBody(ends, "")},
			[]string{"request headers", `request body "" end`}},
		{"empty frames in between", "", nil,
			frames{chat(more), requestBody(more, ""), requestBody(more, prompt), requestBody(more, ""), requestBody(ends, "")},
			[]string{"request headers", "request body " + quoted(prompt) + " end"}},
		{"trailers end the request", "", nil,
			frames{chat(more), requestBody(more, prompt), requestTrailers("x-sum", "1")},
			[]string{"request headers", "request body " + quoted(prompt), "request trailers"}},
		{"trailers without a body", "", nil,
			frames{requestHeaders(more, ":method", "POST", ":path", "/tokenize"), requestTrailers()},
			[]string{"request headers", "request trailers"}},
		{"answer's headers and trailers", "", nil,
			frames{get("/x"), responseHeaders(more), responseTrailers()},
			[]string{"request headers", "response headers", "response trailers"}},
		{"answer without a body", "", nil,
			frames{get("/x"), responseHeaders(ends)}, []string{"request headers", "response headers"}},
		{"answer's body is echoed", "", duplexBoth,
			frames{get("/x"), responseHeaders(more), responseBody(more, "data: 1\n\n"), responseBody(more, "data: 2\n\n"), responseBody(ends, "")},
			[]string{"request headers", "response headers", `response body "data: 1\n\n"`, `response body "data: 2\n\n"`, `response body "" end`}},
		{"answer's body with trailers", "", duplexBoth,
			frames{get("/x"), responseHeaders(more), responseBody(more, "a"), responseTrailers()},
			[]string{"request headers", "response headers", `response body "a"`, "response trailers"}},
		{"answer's headers are skipped", "", duplexBoth,
			frames{get("/x"), responseBody(more, "a"), responseTrailers()},
			[]string{"request headers", `response body "a"`, "response trailers"}},
		{"answer begins before the request ends", "", duplexBoth,
			frames{chat(more), requestBody(more, prompt[:half]), responseHeaders(more), requestBody(more, prompt[half:]),
				responseBody(ends, "no"), requestBody(ends, "")},
			[]string{"response headers", `response body "no" end`, "request headers", "request body " + quoted(prompt[:half]),
				"request body " + quoted(prompt[half:]) + " end"}},
		{"gateway that does not tell its modes", "", &procv3.ProtocolConfiguration{RequestBodyMode: 99},
			frames{get("/x"), responseHeaders(more), responseBody(ends, "a")},
			[]string{"request headers", "response headers", `response body "a" end`}},
		{"picker ends with its answer", client.MarkPicker, nil,
			frames{chat(more), requestBody(ends, prompt)}, []string{"request headers", "request body " + quoted(prompt) + " end"}},
		{"picker beside a body", client.MarkPicker, duplexBoth,
			frames{get("/x"), responseHeaders(more), responseBody(ends, "a")},
			[]string{"request headers", "response headers", `response body "a" end`}},
		{"picker beside trailers", client.MarkPicker, duplexBoth,
			frames{get("/x"), responseHeaders(more), responseTrailers("x-tandem-outcome", "done")},
			[]string{"request headers", "response headers", "response trailers"}},
		{"accountant", client.MarkAcct, nil,
			frames{chat(more), responseHeaders(more), responseTrailers()},
			[]string{"request headers", "response headers", "response trailers"}},
		{"accountant with request trailers", client.MarkAcct, nil,
			frames{chat(more), requestTrailers(), responseHeaders(ends)},
			[]string{"request headers", "request trailers", "response headers"}},
		{"accountant that watches", client.MarkAcct, nil,
			frames{{ObservabilityMode: true, Request: chat(ends).Request}}, []string{"request headers"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startRig(t, newPool("10.0.0.1:8000"))
			s := r.open(t, c.mark)
			if c.config != nil {
				s.first = c.config
			}
			if c.config.GetRequestBodyMode() == 99 {
				s.first = nil
			}
			s.send(c.frames...)
			got, err := s.finish()
			if err != nil {
				t.Error(err)
			}
			if d := describe(got); !slices.Equal(d, c.want) {
				t.Errorf("got  %q\nwant %q", d, c.want)
			}
			r.gone(t)
			r.pool.mustLoad(t, map[bool]string{true: "1/100", false: "0/0"}[r.ledger.Len() == 1])
			r.mustMetric(t, 0, "tandem_extproc_violations_total")
			r.mustMetric(t, 0, "tandem_extproc_streams")
		})
	}
}

func quoted(s string) string { return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"` }

func TestViolations(t *testing.T) {
	body := modev3.ProcessingMode_BUFFERED
	config := func(request, response modev3.ProcessingMode_BodySendMode) *procv3.ProtocolConfiguration {
		return &procv3.ProtocolConfiguration{RequestBodyMode: request, ResponseBodyMode: response}
	}
	for _, c := range []struct {
		name   string
		mark   client.Mark
		config *procv3.ProtocolConfiguration
		frames frames
		code   codes.Code
		cause  string
		says   string
	}{
		{"body before headers", "", nil, frames{requestBody(ends, prompt)}, codes.InvalidArgument, "request-order", "request's body"},
		{"trailers before headers", "", nil, frames{requestTrailers()}, codes.InvalidArgument, "request-order", "trailers"},
		{"headers twice", "", nil, frames{chat(more), chat(more)}, codes.InvalidArgument, "request-order", "twice"},
		{"headers after the end", "", nil, frames{get("/x"), get("/x")}, codes.InvalidArgument, "request-order", "twice"},
		{"body after the end", "", nil, frames{get("/x"), requestBody(ends, "x")}, codes.InvalidArgument, "request-order", "body"},
		{"body after its last frame", "", nil, frames{chat(more), requestBody(ends, prompt), requestBody(ends, "")}, codes.InvalidArgument,
			"request-order", "body"},
		{"trailers after the end", "", nil, frames{chat(more), requestBody(ends, prompt), requestTrailers()}, codes.InvalidArgument,
			"request-order", "trailers"},
		{"response headers twice", "", nil, frames{get("/x"), responseHeaders(more), responseHeaders(more)}, codes.InvalidArgument,
			"response-order", "twice"},
		{"response headers after the body", "", duplexBoth, frames{get("/x"), responseBody(more, "a"), responseHeaders(more)},
			codes.InvalidArgument, "response-order", "after the body"},
		{"response body after the end", "", duplexBoth, frames{get("/x"), responseHeaders(ends), responseBody(ends, "a")},
			codes.InvalidArgument, "response-order", "body"},
		{"response body that was not announced", "", nil, frames{get("/x"), responseHeaders(more), responseBody(ends, "a")},
			codes.InvalidArgument, "response-order", "body"},
		{"response trailers after the end", "", nil, frames{get("/x"), responseHeaders(ends), responseTrailers()}, codes.InvalidArgument,
			"response-order", "after the end"},
		{"nothing in a frame", "", nil, frames{{}}, codes.InvalidArgument, "unknown-frame", "unknown kind"},
		{"body for the accountant", client.MarkAcct, nil, frames{chat(more), requestBody(ends, prompt)}, codes.InvalidArgument,
			"request-order", "body"},
		{"accountant's headers twice", client.MarkAcct, nil, frames{chat(more), chat(more)}, codes.InvalidArgument, "request-order", "twice"},

		{"unknown mark", "bogus", nil, frames{get("/x")}, codes.FailedPrecondition, "filter-mark", "x-tandem-filter must be picker or acct"},
		{"buffered request", "", config(body, 0), frames{chat(more)}, codes.FailedPrecondition, "processing-mode",
			`request_body_mode of filter "one" is BUFFERED: set it to FULL_DUPLEX_STREAMED`},
		{"no request body", "", config(0, 0), frames{chat(more)}, codes.FailedPrecondition, "processing-mode", "request_body_mode"},
		{"streamed request", client.MarkPicker, config(modev3.ProcessingMode_STREAMED, 0), frames{chat(more)}, codes.FailedPrecondition,
			"processing-mode", `request_body_mode of filter "picker" is STREAMED`},
		{"GRPC request", "", config(modev3.ProcessingMode_GRPC, 0), frames{chat(more)}, codes.FailedPrecondition, "processing-mode", "GRPC"},
		{"request body for the accountant", client.MarkAcct, duplexNone, frames{chat(more)}, codes.FailedPrecondition, "processing-mode",
			`request_body_mode of filter "acct" is FULL_DUPLEX_STREAMED: set it to NONE`},
		{"streamed response", "", config(bodyDuplex, modev3.ProcessingMode_STREAMED), frames{chat(more)}, codes.FailedPrecondition,
			"processing-mode", "response_body_mode"},
		{"buffered response", "", config(bodyDuplex, body), frames{chat(more)}, codes.FailedPrecondition, "processing-mode",
			`response_body_mode of filter "one" is BUFFERED: set it to NONE, or to FULL_DUPLEX_STREAMED`},
		{"picker that watches", "", nil, frames{{ObservabilityMode: true, Request: chat(ends).Request}}, codes.FailedPrecondition,
			"processing-mode", "observability_mode"},
		{"frame beyond all limits", "", nil, frames{chat(more), requestBody(more, strings.Repeat(" ", 1<<20+frameSlack))},
			codes.ResourceExhausted, "frame-too-large", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startRig(t, newPool("10.0.0.1:8000"))
			s := r.open(t, c.mark)
			if c.config != nil {
				s.first = c.config
			}
			s.send(c.frames...)
			_, err := s.rest()
			if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the stream ended with %v, want %v: … %s …", err, c.code, c.says)
			}
			r.gone(t)
			r.pool.mustLoad(t, "0/0")
			r.mustMetric(t, 1, "tandem_extproc_violations_total", "cause", c.cause)
			r.mustMetric(t, 0, "tandem_extproc_streams")
			if logged := strings.Contains(r.log.String(), "cannot be served"); logged != (c.code == codes.FailedPrecondition) {
				t.Errorf("log: %s", r.log)
			}
		})
	}
}

// A misconfigured gateway fails in the same way for every request.
func TestMisconfigurationIsLoggedOnce(t *testing.T) {
	r := startRig(t, newPool("10.0.0.1:8000"))
	for range 5 {
		s := r.open(t, "")
		s.first = noneNone
		s.send(chat(more))
		if _, err := s.rest(); status.Code(err) != codes.FailedPrecondition {
			t.Fatal(err)
		}
	}
	r.gone(t)
	if n := strings.Count(r.log.String(), "\n"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, r.log)
	}
	r.mustMetric(t, 5, "tandem_extproc_violations_total", "cause", "processing-mode")
}

// A message of another kind is what a broken or hostile peer sends.
func TestUnreadableFrame(t *testing.T) {
	r := startRig(t, newPool(a))
	s, err := r.conn.NewStream(within(t), &procv3.ExternalProcessor_ServiceDesc.Streams[0], procv3.ExternalProcessor_Process_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg(&corev3.HeaderValue{Value: "zz"}); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(&procv3.ProcessingResponse{}); status.Code(err) != codes.Internal {
		t.Errorf("the stream ended with %v", err)
	}
	r.gone(t)
	r.mustMetric(t, 1, "tandem_extproc_violations_total", "cause", "unreadable")
}

// Envoy sends raw_value only, others value.
func TestHeadersOfOtherGateways(t *testing.T) {
	p := newPool(a)
	h := chat(more, pd.HeaderMode, "bypass")
	for _, v := range h.GetRequestHeaders().GetHeaders().GetHeaders() {
		v.Value, v.RawValue = string(v.RawValue), nil
	}
	var mode pd.Mode
	p.choose = func(r *epp.Request) (*epp.Decision, error) { mode = r.Mode; return p.local(r, p.endpoints[0]) }
	if got := startRig(t, p).ask(t, h); describe1(got) != "request headers" || mode != pd.ModeBypass {
		t.Errorf("got %s, mode %v", describe1(got), mode)
	}
}
