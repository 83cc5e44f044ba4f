package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// Options describe an endpoint and the requests to it.
type Options struct {
	URL            string // such as http://127.0.0.1:8080; a /v1 at its end makes no difference
	Model          string
	API            pd.API // APIChat or APICompletions
	Stream         bool
	Header         http.Header                // added to every request
	Extra          map[string]json.RawMessage // members added to every body
	TLS            *tls.Config                // nil: the system's certificate authorities
	ConnectTimeout time.Duration
	Timeout        time.Duration // of a whole answer
	Connections    int           // that are kept open
	// Dial makes connections; nil: over the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Endpoint is an OpenAI-compatible server.
type Endpoint struct {
	o    Options
	base string
	http *http.Client
	// What it accepts beyond the plain request: see Probe.
	ignoreEOS, usage bool
}

// New returns an endpoint, to which nothing has been sent yet. The error is one about o.URL.
func New(o Options) (*Endpoint, error) {
	base, err := BaseURL(o.URL)
	if err != nil {
		return nil, err
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: o.ConnectTimeout}).DialContext
	}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment, // which leaves out loopback
		DialContext:         o.Dial,
		TLSClientConfig:     o.TLS,
		TLSHandshakeTimeout: o.ConnectTimeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: o.Connections,
		DisableCompression:  true, // a compressed stream may come in bursts
	}
	return &Endpoint{o: o, base: base, ignoreEOS: true, usage: true, http: &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// BaseURL returns the URL of an endpoint without the /v1 that the paths of the API begin with.
func BaseURL(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "", fmt.Errorf("%q is not a URL: %w", text, err)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return "", fmt.Errorf("%q is not a URL such as http://127.0.0.1:8080", text)
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return "", fmt.Errorf("%q must have a host, and at most a path", text)
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")
	return strings.TrimSuffix(u.String(), "/"), nil
}

// Close closes idle connections.
func (e *Endpoint) Close() { e.http.CloseIdleConnections() }

// Model returns the name of the model that requests are for.
func (e *Endpoint) Model() string { return e.o.Model }

// SetModel chooses the model that requests are for.
func (e *Endpoint) SetModel(name string) { e.o.Model = name }

// answerLimit bounds answers that are not measured, and the text of errors.
const answerLimit = 1 << 20

// Get asks for a page, such as /metrics, of up to limit bytes. The error is a *Failure.
func (e *Endpoint) Get(ctx context.Context, path string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, e.o.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.base+path, nil)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, e.o.Header)
	resp, err := e.http.Do(req)
	if err != nil {
		return nil, transportFailure(ctx, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if err != nil {
		return nil, transportFailure(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, statusFailure(resp, text)
	}
	return text, nil
}

// Models asks for the names of the models. The error is a *Failure.
func (e *Endpoint) Models(ctx context.Context) ([]string, error) {
	text, err := e.Get(ctx, "/v1/models", answerLimit)
	if err != nil {
		return nil, err
	}
	var list struct{ Data []struct{ ID string } }
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, &Failure{Status: http.StatusOK, Reason: "not JSON", Message: err.Error()}
	}
	names := make([]string, len(list.Data))
	for i, m := range list.Data {
		names[i] = m.ID
	}
	return names, nil
}

// Body returns the body of a request for an answer of so many tokens.
func (e *Endpoint) Body(prompt string, tokens int) []byte { return e.body(prompt, tokens) }

// TokensBody is Body for a prompt of token ids, which only APICompletions takes.
func (e *Endpoint) TokensBody(prompt []int, tokens int) []byte { return e.body(prompt, tokens) }

func (e *Endpoint) body(prompt any, tokens int) []byte {
	members := map[string]any{"model": e.o.Model, "max_tokens": tokens, "stream": e.o.Stream}
	if e.o.API == pd.APIChat {
		members["messages"] = []map[string]any{{"role": "user", "content": prompt}}
	} else {
		members["prompt"] = prompt
	}
	if e.ignoreEOS {
		members["ignore_eos"] = true
	}
	if e.usage && e.o.Stream {
		members["stream_options"] = map[string]bool{"include_usage": true}
	}
	for name, value := range e.o.Extra {
		members[name] = value
	}
	text, err := json.Marshal(members)
	if err != nil {
		panic(err) // strings, numbers, and JSON that was read
	}
	return text
}

// Probe sends a prompt and returns how many tokens the endpoint counted, or -1 if it does not say. An endpoint that refuses
// members that OpenAI's API does not have, or not everywhere, gets requests without them from then on: ignore_eos, which makes
// answers as long as asked for, and stream_options, which asks for token counts. The error is a *Failure.
func (e *Endpoint) Probe(ctx context.Context, prompt string) (tokens int64, err error) {
	var refused error
	for _, accepts := range [][2]bool{{e.ignoreEOS, e.usage}, {false, e.usage}, {false, false}} {
		e.ignoreEOS, e.usage = accepts[0], accepts[1]
		a := e.Send(ctx, Request{Body: e.Body(prompt, 2)})
		if a.Failure == nil {
			return a.Prompt, nil
		}
		if refused == nil {
			refused = a.Failure // the refusal of the full request says most
		}
		if a.Failure.Status != http.StatusBadRequest && a.Failure.Status != http.StatusUnprocessableEntity {
			return -1, a.Failure
		}
	}
	return -1, refused
}

// Lacks lists, for a person, what the endpoint refused in Probe.
func (e *Endpoint) Lacks() (notes []string) {
	if !e.ignoreEOS {
		notes = append(notes, "The endpoint refuses ignore_eos: answers may be shorter than asked for.")
	}
	if !e.usage && e.o.Stream {
		notes = append(notes, "The endpoint refuses stream_options: its streams do not say how many tokens they have.")
	}
	return notes
}

// Request is one request to send.
type Request struct {
	Body []byte
	Mode string // value of x-tandem-pd; "": the header is not sent
	// First, if it is not nil, is called when the first token of a stream has arrived.
	First func()
}

// Send sends a request and reads the whole answer.
func (e *Endpoint) Send(ctx context.Context, r Request) *Answer {
	ctx, cancel := context.WithTimeout(ctx, e.o.Timeout)
	defer cancel()
	a := &Answer{Prompt: -1, Cached: -1, Completion: -1, Sent: time.Now(), onFirst: r.First}
	defer func() { a.End = time.Now() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.base+e.o.API.Path(), bytes.NewReader(r.Body))
	if err != nil {
		a.Failure = &Failure{Reason: "bad request", Message: err.Error()}
		return a
	}
	maps.Copy(req.Header, e.o.Header)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Te", "trailers") // which the sidecar's report on a stream is
	if r.Mode != "" {
		req.Header.Set(pd.HeaderMode, r.Mode)
	}
	resp, err := e.http.Do(req)
	if err != nil {
		a.Failure = transportFailure(ctx, err)
		return a
	}
	defer resp.Body.Close()
	a.read(ctx, resp, e.o.Stream)
	return a
}

// transportFailure describes an exchange that broke off.
func transportFailure(ctx context.Context, err error) *Failure {
	var dns *net.DNSError
	var op *net.OpError
	f := &Failure{Message: err.Error()}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		f.Message = wrapped.Err.Error()
	}
	switch {
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		f.Reason = ReasonTimeout
	case ctx.Err() != nil:
		f.Reason = ReasonCancelled
	case errors.As(err, &dns):
		f.Reason, f.Unreachable = "name not found", true
	case errors.As(err, &op) && op.Op == "dial":
		f.Reason, f.Unreachable = "cannot connect", true
	case isTLS(err):
		f.Reason, f.Unreachable = "TLS", true
	default:
		f.Reason = "connection broke"
	}
	return f
}

// isTLS reports whether a handshake failed.
func isTLS(err error) bool {
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var verification *tls.CertificateVerificationError
	return errors.As(err, &record) || errors.As(err, &alert) || errors.As(err, &verification) ||
		strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}
