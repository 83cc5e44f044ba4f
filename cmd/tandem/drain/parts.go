package drain

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
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
			return engineLeft(ctx, client, url, f.Handoffs)
		}})
	}
	if f.Sidecar != "" {
		p := part{name: "sidecar", left: func(ctx context.Context) (string, error) {
			return sidecarLeft(ctx, client, "http://"+f.Sidecar+"/metrics")
		}}
		if f.Evacuate != "" {
			p.begin = func(ctx context.Context) error { return evacuate(ctx, client, "http://"+f.Evacuate+"/evacuate") }
		}
		parts = append(parts, p)
	}
	if f.Envoy != "" {
		e := proxy{client, "http://" + f.Envoy}
		parts = append(parts, part{"envoy", e.begin, e.left})
	}
	return parts
}

// evacuate has the streams of a sidecar leave its engine.
func evacuate(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: is it the admin port of a sidecar?", url, resp.Status)
	}
	return nil
}

// gone reports whether the part refuses connections, or its name stands for no address any more: it has ended or never ran, so there is
// nothing to wait for.
func gone(err error) bool {
	lookup, failed := errors.AsType[*net.DNSError](err)
	return errors.Is(err, syscall.ECONNREFUSED) || failed && lookup.IsNotFound
}

// ownTLS verifies nothing: the pod connects to itself or to the leader of its group, by an address that the certificate does not name.
func ownTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // see above
}

// engineLeft reads vLLM's metrics page, or SGLang's live loads.
func engineLeft(ctx context.Context, client *http.Client, url string, handoffs bool) (string, error) {
	page, err := promtext.Get(ctx, client, url+"/metrics")
	if err != nil {
		return "", err
	}
	switch {
	case page.Has("vllm:"):
		return vllmLeft(page, handoffs)
	case page.Has("sglang:"):
		return sglangLeft(ctx, client, url+"/v1/loads")
	}
	return "", errors.New("its metrics page is neither vLLM's nor SGLang's; no page of other engines tells whether they have work: wait for their sidecar (--sidecar)")
}

// vllmLeft reads vLLM's metrics page. Blocks of the KV cache that a decode engine has yet to pull count as used.
func vllmLeft(page promtext.Page, handoffs bool) (string, error) {
	const runningName, waitingName, usageName = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"
	running, runningKnown := page.Sum(runningName)
	waiting, waitingKnown := page.Sum(waitingName)
	usage, usageKnown := page.Sum(usageName)
	switch {
	case !runningKnown:
		return "", fmt.Errorf("its page has no %s", runningName)
	case !waitingKnown:
		return "", fmt.Errorf("its page has no %s", waitingName)
	case math.IsNaN(running + waiting):
		return "", errors.New("its page has no numbers of requests")
	case running+waiting > 0:
		return fmt.Sprintf("%.0f running, %.0f waiting", running, waiting), nil
	case handoffs && (!usageKnown || math.IsNaN(usage)):
		return "", fmt.Errorf("its page has no %s, which shows hand-offs that were not pulled", usageName)
	case handoffs && usage > 0:
		return fmt.Sprintf("%.2f %% of the KV cache in hand-offs that no decode engine has pulled", 100*usage), nil
	}
	return "", nil
}

// sglangLoads is the answer to GET /v1/loads: a load for each data-parallel rank.
type sglangLoads struct {
	Loads []struct {
		Running        int `json:"num_running_reqs"`
		Waiting        int `json:"num_waiting_reqs"`
		Disaggregation struct {
			Bootstrap int `json:"prefill_bootstrap_queue_reqs"`
			Inflight  int `json:"prefill_inflight_queue_reqs"`
			Prealloc  int `json:"decode_prealloc_queue_reqs"`
			Transfer  int `json:"decode_transfer_queue_reqs"`
			Retracted int `json:"decode_retracted_queue_reqs"`
		} `json:"disaggregation"`
	} `json:"loads"`
}

// sglangLeft reads SGLang's loads. Its metrics page shows no request that waits for the other engine of a pair, and nothing
// before the first batch. A request whose KV cache is yet to be read counts as one that meets the other engine, so that loads
// without requests have no hand-offs either.
func sglangLeft(ctx context.Context, client *http.Client, url string) (string, error) {
	answer, err := get(ctx, client, http.MethodGet, url)
	if err != nil {
		return "", err
	}
	var page sglangLoads
	if err := json.Unmarshal([]byte(answer), &page); err != nil || len(page.Loads) == 0 {
		return "", errors.New("it answers no loads to /v1/loads")
	}
	running, waiting, meeting := 0, 0, 0
	for _, l := range page.Loads {
		running += l.Running
		d := l.Disaggregation
		queued := d.Bootstrap + d.Inflight + d.Prealloc + d.Transfer + d.Retracted
		meeting += queued
		waiting += max(0, l.Waiting-queued) // the waiting ones include those of these queues
	}
	if running+waiting+meeting == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d running, %d waiting, %d that meet the other engine of their pair", running, waiting, meeting), nil
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
	return get(ctx, e.client, method, e.url+path)
}

// get returns the body of an answer with status 200.
func get(ctx context.Context, client *http.Client, method, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, promtext.Limit))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("it answers %s to %s", resp.Status, req.URL.RequestURI())
	}
	return string(body), nil
}
