package transport

import (
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
