package drain

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"syscall"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
)

// part is a part of the pod that may have work left.
type part struct {
	name  string
	begin func(context.Context) error // nil: nothing to do at the beginning
	// left describes the remaining work, "" if there is none. The error says why it is unknown.
	left func(context.Context) (string, error)
}

func (f *waitFlags) parts(client *http.Client) (parts []part) {
	if f.Engine != "" {
		url := f.Engine
		if !strings.HasPrefix(url, "https://") {
			url = "http://" + url
		}
		parts = append(parts, part{name: "engine", left: func(ctx context.Context) (string, error) {
			return engineLeft(ctx, client, url+"/metrics", f.Handoffs)
		}})
	}
	if f.Sidecar != "" {
		parts = append(parts, part{name: "sidecar", left: func(ctx context.Context) (string, error) {
			return sidecarLeft(ctx, client, "http://"+f.Sidecar+"/metrics")
		}})
	}
	if f.Envoy != "" {
		e := proxy{client, "http://" + f.Envoy}
		parts = append(parts, part{"envoy", e.begin, e.left})
	}
	return parts
}

// gone reports whether the part refuses connections: it has ended or never ran, so there is nothing to wait for.
func gone(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// ownTLS verifies nothing: the pod connects to itself, by an address that its certificate does not name.
func ownTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // see above
}

// dialect has the names of an engine's metrics.
type dialect struct{ running, waiting, usage string }

// dialects are those of the supported engines, from their documentation.
var dialects = []dialect{
	{"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"},
	{"sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"},
}

// engineLeft reads the engine's metrics page. Blocks of the KV cache that a decode engine has yet to pull count as used.
func engineLeft(ctx context.Context, client *http.Client, url string, handoffs bool) (string, error) {
	page, err := promtext.Get(ctx, client, url)
	if err != nil {
		return "", err
	}
	for _, d := range dialects {
		running, known := page.Sum(d.running)
		if !known {
			continue
		}
		waiting, known := page.Sum(d.waiting)
		if !known {
			return "", fmt.Errorf("its page has no %s", d.waiting)
		}
		usage, known := page.Sum(d.usage)
		switch {
		case math.IsNaN(running + waiting):
			return "", errors.New("its page has no numbers of requests")
		case running+waiting > 0:
			return fmt.Sprintf("%.0f running, %.0f waiting", running, waiting), nil
		case handoffs && (!known || math.IsNaN(usage)):
			return "", fmt.Errorf("its page has no %s, which shows hand-offs that were not pulled", d.usage)
		case handoffs && usage > 0:
			return fmt.Sprintf("%.2f %% of the KV cache in hand-offs that no decode engine has pulled", 100*usage), nil
		}
		return "", nil
	}
	return "", errors.New("its metrics page is neither vLLM's nor SGLang's")
}

// sidecarLeft reads the sidecar's metrics page. It does not use the sidecar's legs (tandem_inflight), because a request that
// is still being received has none.
func sidecarLeft(ctx context.Context, client *http.Client, url string) (string, error) {
	page, err := promtext.Get(ctx, client, url)
	if err != nil {
		return "", err
	}
	switch open, known := page.Sum("tandem_open_requests"); {
	case !known:
		return "", errors.New("its metrics page is not that of Tandem's sidecar, of this version")
	case open > 0:
		return fmt.Sprintf("%.0f in flight", open), nil
	}
	return "", nil
}

// proxy is an Envoy's admin port.
type proxy struct {
	client *http.Client
	url    string
}

// begin makes Envoy fail its health checks, and close connections that clients keep open, so that they reconnect elsewhere.
func (e proxy) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	for _, path := range []string{"/healthcheck/fail", "/drain_listeners?graceful"} {
		if _, err := e.ask(ctx, http.MethodPost, path); err != nil {
			return err
		}
	}
	return nil
}

// left adds up the requests of all listeners except the admin listener, which serves this request.
func (e proxy) left(ctx context.Context) (string, error) {
	page, err := e.ask(ctx, http.MethodGet, `/stats?filter=^http\..*\.downstream_rq_active$`)
	if err != nil {
		return "", err
	}
	active, known := int64(0), false
	for line := range strings.Lines(page) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || strings.HasPrefix(name, "http.admin.") {
			continue
		}
		active, known = active+n, true
	}
	switch {
	case !known:
		return "", errors.New("it does not count requests")
	case active > 0:
		return fmt.Sprintf("%d requests", active), nil
	}
	return "", nil
}

func (e proxy) ask(ctx context.Context, method, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.url+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, promtext.Limit))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("it answers %s to %s", resp.Status, path)
	}
	return string(body), nil
}
