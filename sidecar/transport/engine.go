package transport

import (
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

// Healthy asks the engine whether it is healthy. The error says why it is not.
func (e Engine) Healthy(ctx context.Context) error {
	path := cmp.Or(e.HealthPath, "/health")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+path, nil)
	if err != nil {
		return err
	}
	resp, err := e.Transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return &UnhealthyError{resp.Status, path}
	}
	return nil
}

// maxPage limits a page of an engine (bytes).
const maxPage = 1 << 20

// Page gets a page of the engine, which has this long to answer.
func (e Engine) Page(ctx context.Context, path string, within time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := e.Transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the engine answers %s to %s", resp.Status, path)
	}
	return ReadCapped(resp, maxPage)
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
