package upstream

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// Config is the server that answers the requests, and how it is asked.
type Config struct {
	URL       *url.URL
	TLS       func() *tls.Config // of a new connection; nil: verified by the system's authorities
	Key       string             // sent as a bearer token; "": none
	Objective string             // name of the InferenceObjective of requests that name none; "": none
	Timeout   time.Duration      // of one request
	InFlight  int                // most requests at a time

	FirstPause time.Duration // before a request that has failed is sent again; 0: 500 ms
}

// Telemetry is where a Client reports. No field may be nil.
type Telemetry struct {
	Metrics    prometheus.Registerer
	Tracer     trace.Tracer
	Propagator propagation.TextMapPropagator
}

// maxAnswer is the largest answer in bytes. An embedding of 16,000 dimensions has 350 KB.
const maxAnswer = 32 << 20

// Client sends requests to the upstream, at the pace that its Pacer finds. Everything in a process that sends to one upstream shares one
// Client. It is safe for concurrent use.
type Client struct {
	to         Config
	base       string
	http       *http.Client
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	metrics    *metrics
	pace       *Pacer
	served     atomic.Int64 // requests that the upstream has answered for good
}

// New makes a Client.
func New(to Config, t Telemetry) *Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	transport := &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: to.InFlight, IdleConnTimeout: time.Minute,
		DisableCompression: true, TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: false}
	if to.TLS != nil {
		transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&tls.Dialer{NetDialer: dialer, Config: to.TLS()}).DialContext(ctx, network, address)
		}
	}
	to.FirstPause = cmp.Or(to.FirstPause, firstPause)
	pace := NewPacer(to.InFlight)
	return &Client{to: to, base: strings.TrimSuffix(strings.TrimSuffix(to.URL.String(), "/"), "/v1"), tracer: t.Tracer, propagator: t.Propagator,
		metrics: newMetrics(t.Metrics, pace), pace: pace,
		http: &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport:     transport}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Pause has no request sent for a while.
func (c *Client) Pause(d time.Duration) { c.pace.Pause(d) }

// Acquire waits until the pace allows a request, which Do then sends. A slot that no Do follows is returned with Return.
func (c *Client) Acquire(ctx context.Context) error { return c.pace.Acquire(ctx) }

// Return returns a slot of Acquire without a request.
func (c *Client) Return() { c.pace.Failed() }

// verdict is what an attempt means for its request.
type verdict int

const (
	final       verdict = iota // it counts
	full                       // the upstream has no capacity now
	evicted                    // the picker has ended it for a more important one
	unreachable                // the request has not reached the upstream
	failed                     // it has, and failed: another try may succeed, or fail like this one
	aborted                    // the caller has ended it
)

// attempt is the outcome of sending a request once.
type attempt struct {
	verdict    verdict
	status     int // 0: none
	body       []byte
	code       string        // why there is no answer
	retryAfter time.Duration // 0: the upstream has not said
	queued     time.Duration // in the picker's queue
	headroom   float64       // of online requests; NaN: the picker has not said
	took       time.Duration
}

// Request is one request. ID is the same on every try, also of another process.
type Request struct {
	ID, Endpoint string
	Tenant       string      // by which the picker shares capacity; "": none
	Objective    string      // "": that of the Config
	Header       http.Header // further fields; those that the Client sets win
	Body         []byte      // JSON
}

// Answer is what a request has come to. Status is 0 if there is no answer: Code says why then, and Body is nil.
type Answer struct {
	Status int
	Body   []byte // JSON
	Code   string // one of batch.Code…
}

const (
	firstPause = 500 * time.Millisecond
	mostPause  = 2 * time.Minute
	// mostFailures is how many tries of a request may fail for which the request itself is the likely reason: its connection broke, it took
	// too long, or the upstream has served others meanwhile.
	mostFailures = 5
	// mostFailuresAlone is how many may fail in all. The upstream may be down as a whole, behind a proxy that answers 502 or 503: with
	// pauses of up to mostPause, about three minutes.
	mostFailuresAlone = 10
)

// Do sends a request, for which the caller has acquired a slot, until it has come to something: an answer that another try would not change,
// or too many failures. It returns false if there is none, because no further try may start (start has ended), or all tries have been
// ended (call has).
func (c *Client) Do(start, call context.Context, r Request) (Answer, bool) {
	failures, alone, served := 0, 0, c.served.Load()
	for try := 0; ; try++ {
		a := c.send(call, r)
		c.account(a)
		switch a.verdict {
		case aborted:
			return Answer{}, false
		case failed:
			if now := c.served.Load(); now != served || a.status == 0 {
				failures, served = failures+1, now
			}
			if alone++; failures >= mostFailures || alone >= mostFailuresAlone {
				a.verdict = final
			}
		}
		if a.verdict == final {
			return Answer{Status: a.status, Body: a.body, Code: a.code}, true
		}
		if !batch.Sleep(start, c.pause(try, a.retryAfter)) || c.pace.Acquire(start) != nil {
			return Answer{}, false
		}
	}
}

// pause returns how long a request waits for its next try: what the upstream has asked for, or twice as long each time, spread so that requests
// that failed together do not come together again.
func (c *Client) pause(try int, retryAfter time.Duration) time.Duration {
	if retryAfter > 0 {
		return min(retryAfter, longestPause)
	}
	d := min(c.to.FirstPause<<min(try, 10), mostPause)
	return d/2 + rand.N(d/2)
}

// account has pace and metrics learn from an attempt.
func (c *Client) account(a attempt) {
	switch a.verdict {
	case final:
		c.served.Add(1)
		c.pace.Answered(a.took, a.queued, a.headroom)
		c.metrics.took.Observe(a.took.Seconds())
	case full:
		c.pace.Full(a.retryAfter)
	case evicted:
		c.pace.Evicted()
	default:
		c.pace.Failed()
	}
	c.metrics.attempts.WithLabelValues(a.verdict.String()).Inc()
}

// send sends a request once.
func (c *Client) send(ctx context.Context, r Request) (a attempt) {
	ctx, span := c.tracer.Start(ctx, "batch.request", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("request.id", r.ID)))
	defer func() {
		span.SetAttributes(attribute.Int("http.response.status_code", a.status))
		if a.verdict != final {
			span.SetStatus(codes.Error, a.code)
		}
		span.End()
	}()
	begun := time.Now()
	limited, cancel := context.WithTimeout(ctx, c.to.Timeout)
	defer cancel()
	reached := false
	traced := httptrace.WithClientTrace(limited, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { reached = true }})
	req, err := http.NewRequestWithContext(traced, http.MethodPost, c.base+r.Endpoint, bytes.NewReader(r.Body))
	if err != nil {
		return attempt{verdict: final, code: batch.CodeUnreachable, headroom: math.NaN()}
	}
	c.setHeader(ctx, req.Header, r)
	response, err := c.http.Do(req)
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
		return attempt{verdict: aborted, code: ctx.Err().Error()}
	case limited.Err() != nil:
		return attempt{verdict: failed, code: batch.CodeTimeout}
	case a.verdict == final && a.code == batch.CodeBadAnswer:
		return a
	case !reached:
		return attempt{verdict: unreachable, code: batch.CodeUnreachable}
	}
	return attempt{verdict: failed, code: batch.CodeUnreachable}
}

func (c *Client) setHeader(ctx context.Context, h http.Header, r Request) {
	maps.Copy(h, r.Header)
	h.Set("Content-Type", "application/json")
	h.Set("X-Request-Id", r.ID)
	h.Set("User-Agent", "tandem-batch")
	if objective := cmp.Or(r.Objective, c.to.Objective); objective != "" {
		h.Set("X-Llm-D-Inference-Objective", objective)
	}
	if r.Tenant != "" {
		h.Set("X-Llm-D-Inference-Fairness-Id", r.Tenant)
	}
	if c.to.Key != "" {
		h.Set("Authorization", "Bearer "+c.to.Key)
	}
	c.propagator.Inject(ctx, propagation.HeaderCarrier(h))
}

// read reads an answer. Its code is set if there is none: the connection broke, or what came is not an answer of this API.
func read(response *http.Response) attempt {
	a := attempt{status: response.StatusCode, retryAfter: retryAfter(response.Header.Get("Retry-After")), queued: queued(response.Header.Get(pd.HeaderQueue)),
		headroom: headroom(response.Header.Get(pd.HeaderHeadroom))}
	text, err := readAll(response)
	if err != nil {
		return attempt{code: batch.CodeUnreachable}
	}
	dropped := response.Header.Get(pd.HeaderDropped)
	refused := a.retryAfter > 0 || dropped != ""
	switch a.status {
	case http.StatusTooManyRequests:
		a.verdict = full
		if dropped == pd.TokenEvicted {
			a.verdict = evicted
		}
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
		return attempt{verdict: final, code: batch.CodeBadAnswer, headroom: a.headroom}
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

// headroom reads which share of their goals online requests leave; NaN if the picker does not say.
func headroom(value string) float64 {
	share, err := strconv.ParseFloat(value, 64)
	if err != nil || !(share <= 1) {
		return math.NaN()
	}
	return max(share, -1)
}
