package transport

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// ProbeTimeout bounds how long a caller should wait for an engine's /health.
const ProbeTimeout = time.Second

// Engine is the address of an engine and the transport to it.
type Engine struct {
	Transport http.RoundTripper
	URL       string // scheme://host:port
	// HealthPath is where the engine tells whether it is healthy; "" = /health.
	HealthPath string
}

// UnhealthyError is the answer of an engine that does not call itself healthy: it starts, drains or ends.
type UnhealthyError struct{ status, path string }

// Error implements error.
func (e *UnhealthyError) Error() string { return fmt.Sprintf("it answers %s to %s", e.status, e.path) }

// pathHealth is where engines answer probes, unless their HealthPath is another.
const pathHealth = "/health"

// Healthy asks the engine whether it is healthy. The error says why it is not. An engine that does not know HealthPath is another one
// than was expected, and is asked at /health.
func (e Engine) Healthy(ctx context.Context) error {
	path := cmp.Or(e.HealthPath, pathHealth)
	resp, err := e.get(ctx, path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusOK:
		return nil
	case resp.StatusCode == http.StatusNotFound && path != pathHealth:
		e.HealthPath = ""
		return e.Healthy(ctx)
	}
	return &UnhealthyError{resp.Status, path}
}

// Agent is the User-Agent of the sidecar's own questions to engines, so that an engine's log tells them from requests of clients.
const Agent = "tandem-sidecar"

func (e Engine) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header["User-Agent"] = []string{Agent}
	return e.Transport.RoundTrip(req)
}

// maxPage limits a page of an engine (bytes).
const maxPage = 1 << 20

// Page gets a page of the engine, which has this long to answer. Any other status than 200 is an error.
func (e Engine) Page(ctx context.Context, path string, within time.Duration) ([]byte, error) {
	status, page, err := e.Ask(ctx, path, within)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("the engine answers %d %s to %s", status, http.StatusText(status), path)
	}
	return page, err
}

// Ask gets a page of the engine with its status. The engine has this long to answer. The page is nil unless the status is 200.
func (e Engine) Ask(ctx context.Context, path string, within time.Duration) (status int, page []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	resp, err := e.get(ctx, path)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		page, err = ReadCapped(resp, maxPage)
	}
	return resp.StatusCode, page, err
}

// Post sends a body to the engine as JSON. The engine has this long to answer. The answer is nil unless the status is 200.
func (e Engine) Post(ctx context.Context, path string, body []byte, within time.Duration) (status int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header["User-Agent"], req.Header["Content-Type"] = []string{Agent}, []string{"application/json"}
	resp, err := e.Transport.RoundTrip(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		answer, err = ReadCapped(resp, maxPage)
	}
	return resp.StatusCode, answer, err
}

// Scheme returns the beginning of an engine's URLs, by the TLS setup of its connections (nil = plaintext).
func Scheme(secure func() *tls.Config) string {
	if secure != nil {
		return "https://"
	}
	return "http://"
}

// Unreachable returns the refusal of a request that the local engine cannot serve, because of cause. Nothing has gone to the
// client.
func Unreachable(cause error) *pd.Refusal {
	refusal := pd.Refuse(pd.NoEndpoint, "The decode engine of this pod does not answer. Try again; another pod will.")
	refusal.Cause = cause
	return refusal
}
