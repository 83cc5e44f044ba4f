package worker

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/pd/body"
)

// Upstream is the server that answers the requests of batches.
type Upstream struct {
	URL       *url.URL
	TLS       func() *tls.Config // of a new connection; nil: verified by the system's authorities
	Key       string             // sent as a bearer token; "": none
	Objective string             // name of the InferenceObjective of batches; "": none
	Timeout   time.Duration      // of one request
	InFlight  int                // most requests at a time
}

// maxAnswer is the largest answer in bytes. An embedding of 16,000 dimensions has 350 KB.
const maxAnswer = 32 << 20

// sender sends requests to the upstream.
type sender struct {
	to         Upstream
	base       string
	http       *http.Client
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
}

func newSender(to Upstream, t Telemetry) *sender {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	transport := &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: to.InFlight, IdleConnTimeout: time.Minute,
		DisableCompression: true, TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: false}
	if to.TLS != nil {
		transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&tls.Dialer{NetDialer: dialer, Config: to.TLS()}).DialContext(ctx, network, address)
		}
	}
	return &sender{to: to, base: strings.TrimSuffix(strings.TrimSuffix(to.URL.String(), "/"), "/v1"), tracer: t.Tracer, propagator: t.Propagator,
		http: &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport:     transport}}
}

func (s *sender) close() { s.http.CloseIdleConnections() }

// verdict is what an attempt means for its line.
type verdict int

const (
	final       verdict = iota // the result counts
	full                       // the upstream has no capacity now
	unreachable                // the request has not reached the upstream
	failed                     // it has, and failed: another try may succeed, or fail like this one
	aborted                    // the worker has ended it
)

// answer is the outcome of one attempt.
type answer struct {
	verdict    verdict
	status     int // 0: none
	body       []byte
	code       string        // why there is no answer
	retryAfter time.Duration // 0: the upstream has not said
	queued     time.Duration // in the picker's queue
	took       time.Duration
}

// request is one line to send.
type request struct {
	id, endpoint, tenant string
	body                 []byte
}

// send sends a request once.
func (s *sender) send(ctx context.Context, r request) (a answer) {
	ctx, span := s.tracer.Start(ctx, "batch.request", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("request.id", r.id)))
	defer func() {
		span.SetAttributes(attribute.Int("http.response.status_code", a.status))
		if a.verdict != final {
			span.SetStatus(codes.Error, a.code)
		}
		span.End()
	}()
	begun := time.Now()
	limited, cancel := context.WithTimeout(ctx, s.to.Timeout)
	defer cancel()
	reached := false
	traced := httptrace.WithClientTrace(limited, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { reached = true }})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, s.base+r.endpoint, bytes.NewReader(r.body))
	if err != nil {
		return answer{verdict: final, code: batch.CodeUnreachable}
	}
	s.setHeader(ctx, req.Header, r)
	response, err := s.http.Do(req)
	if err == nil {
		defer response.Body.Close()
		a = read(response)
		a.took = time.Since(begun)
		if a.code == "" {
			return a
		}
	}
	switch {
	case ctx.Err() != nil:
		return answer{verdict: aborted, code: ctx.Err().Error()}
	case limited.Err() != nil:
		return answer{verdict: failed, code: batch.CodeTimeout}
	case a.verdict == final && a.code == batch.CodeBadAnswer:
		return a
	case !reached:
		return answer{verdict: unreachable, code: batch.CodeUnreachable}
	}
	return answer{verdict: failed, code: batch.CodeUnreachable}
}

func (s *sender) setHeader(ctx context.Context, h http.Header, r request) {
	h.Set("Content-Type", "application/json")
	h.Set("X-Request-Id", r.id)
	h.Set("User-Agent", "tandem-batch")
	if s.to.Objective != "" {
		h.Set("X-Llm-D-Inference-Objective", s.to.Objective)
	}
	if r.tenant != "" {
		h.Set("X-Llm-D-Inference-Fairness-Id", r.tenant)
	}
	if s.to.Key != "" {
		h.Set("Authorization", "Bearer "+s.to.Key)
	}
	s.propagator.Inject(ctx, propagation.HeaderCarrier(h))
}

// read reads an answer. Its code is set if there is none: the connection broke, or what came is not an answer of this API.
func read(response *http.Response) answer {
	a := answer{status: response.StatusCode, retryAfter: retryAfter(response.Header.Get("Retry-After")), queued: queued(response.Header.Get("X-Tandem-Queue"))}
	text, err := readAll(response)
	if err != nil {
		return answer{code: batch.CodeUnreachable}
	}
	refused := a.retryAfter > 0 || response.Header.Get("X-Llm-D-Request-Dropped-Reason") != ""
	switch a.status {
	case http.StatusTooManyRequests:
		a.verdict = full
	case http.StatusServiceUnavailable:
		// A proxy answers 503 also if an engine died under the request, which the request may be the reason of.
		a.verdict = failed
		if refused {
			a.verdict = full
		}
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		a.verdict = failed
	}
	isJSON := len(text) < maxAnswer && utf8.Valid(text) && json.Valid(text) // json.Valid takes strings that are not UTF-8
	switch ok := a.status >= 200 && a.status < 300; {
	case isJSON:
		a.body = text
	case ok:
		return answer{verdict: final, code: batch.CodeBadAnswer}
	default: // a proxy's page
		a.body = fmt.Appendf(nil, `{"error":{"message":%s,"type":"upstream_error","param":null,"code":"%d"}}`, body.AppendQuoted(nil, clip(string(text))), a.status)
	}
	return a
}

// readAll reads at most maxAnswer bytes.
func readAll(response *http.Response) ([]byte, error) {
	if n := response.ContentLength; n > 0 && n < maxAnswer {
		text := make([]byte, n)
		_, err := io.ReadFull(response.Body, text)
		return text, err
	}
	return io.ReadAll(io.LimitReader(response.Body, maxAnswer))
}

func clip(text string) string {
	const most = 1000
	return text[:min(len(text), most)]
}

// retryAfter reads a number of seconds or a date; 0 if there is neither.
func retryAfter(value string) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return max(time.Duration(seconds)*time.Second, time.Millisecond)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(time.Until(at), time.Millisecond)
	}
	return 0
}

// queued reads how long the picker held a request: waited=<milliseconds>.
func queued(value string) time.Duration {
	text, found := strings.CutPrefix(value, "waited=")
	if !found {
		return 0
	}
	ms, err := strconv.ParseFloat(text, 64)
	if err != nil || ms < 0 || ms > math.MaxInt32 {
		return 0
	}
	return time.Duration(ms * float64(time.Millisecond))
}
