package transport

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"time"
)

// ProbeTimeout bounds how long a caller should wait for an engine's /health.
const ProbeTimeout = time.Second

// Engine is an engine and the way to reach it.
type Engine struct {
	Transport http.RoundTripper
	URL       string // scheme://host:port
}

// Healthy asks the engine's /health. The error says why it is not healthy.
func (e Engine) Healthy(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+"/health", nil)
	if err != nil {
		return err
	}
	resp, err := e.Transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s to /health", resp.Status)
	}
	return nil
}

// Scheme returns the beginning of an engine's URLs, for the TLS setup of its connections (nil = plaintext).
func Scheme(secure func() *tls.Config) string {
	if secure != nil {
		return "https://"
	}
	return "http://"
}
