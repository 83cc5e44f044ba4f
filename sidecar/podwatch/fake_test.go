package podwatch

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	poolsPath = "/apis/inference.networking.k8s.io/v1/namespaces/serving/inferencepools"
	podsPath  = "/api/v1/namespaces/serving/pods"
)

// cluster is an API server in memory: a test says what it lists, and what it tells watchers. It works in a bubble of synctest.
type cluster struct {
	mu       sync.Mutex
	lists    map[string]string // items by path and selector, comma separated
	refusals map[string]string // messages by path
	watches  map[string]*io.PipeWriter
	asked    []string
	log      bytes.Buffer
}

// newCluster has one pool, whose selector takes app=engine.
func newCluster() *cluster {
	return &cluster{watches: map[string]*io.PipeWriter{}, refusals: map[string]string{},
		lists: map[string]string{poolsPath + "?metadata.name=llama": poolOf("engine")}}
}

func poolOf(app string) string {
	return fmt.Sprintf(`{"metadata":{"name":"llama"},"spec":{"selector":{"matchLabels":{"app":%q}}}}`, app)
}

func podOf(name, phase string, addrs ...string) string {
	var ips []string
	for _, addr := range addrs {
		ips = append(ips, fmt.Sprintf(`{"ip":%q}`, addr))
	}
	return fmt.Sprintf(`{"metadata":{"name":%q},"status":{"phase":%q,"podIPs":[%s]}}`, name, phase, strings.Join(ips, ","))
}

// RoundTrip implements http.RoundTripper.
func (c *cluster) RoundTrip(req *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	query := req.URL.Query()
	key := req.URL.Path + "?" + query.Get("fieldSelector") + query.Get("labelSelector")
	c.asked = append(c.asked, req.Header.Get("Authorization")+" "+key)
	answer := &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Request: req}
	switch {
	case c.refusals[req.URL.Path] != "":
		answer.StatusCode, answer.Status = http.StatusForbidden, "403 Forbidden"
		answer.Body = io.NopCloser(strings.NewReader(fmt.Sprintf(`{"kind":"Status","message":%q}`, c.refusals[req.URL.Path])))
	case query.Get("watch") == "true":
		r, w := io.Pipe()
		context.AfterFunc(req.Context(), func() { r.CloseWithError(req.Context().Err()) })
		seconds, err := strconv.Atoi(query.Get("timeoutSeconds"))
		if err != nil {
			return nil, err
		}
		time.AfterFunc(time.Duration(seconds)*time.Second, func() { w.Close() })
		c.watches[key] = w
		answer.Body = r
	default:
		answer.Body = io.NopCloser(strings.NewReader(`{"metadata":{"resourceVersion":"7"},"items":[` + c.lists[key] + `]}`))
	}
	return answer, nil
}

// set changes what a list has.
func (c *cluster) set(key, items string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists[key] = items
}

// refuse makes all requests for a path fail, or succeed again with an empty message.
func (c *cluster) refuse(path, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusals[path] = message
}

// send tells the watchers of a path and selector about an object, and waits until they have read it.
func (c *cluster) send(t *testing.T, key, kind, object string) {
	t.Helper()
	if _, err := io.WriteString(c.watcher(t, key), `{"type":"`+kind+`","object":`+object+"}\n"); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// end ends the watch of a path and selector.
func (c *cluster) end(t *testing.T, key string) {
	t.Helper()
	if err := c.watcher(t, key).Close(); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

func (c *cluster) watcher(t *testing.T, key string) *io.PipeWriter {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watches[key] == nil {
		t.Fatalf("%s is not watched", key)
	}
	return c.watches[key]
}

// watch starts a Watch of the pool, and returns when it waits for events. It ends with the test.
func (c *cluster) watch(t *testing.T, pool Pool) *Watch {
	t.Helper()
	api := API{URL: "http://cluster", Client: &http.Client{Transport: c}, Token: func() (string, error) { return "secret", nil }}
	w := New(api, pool, slog.New(slog.NewTextHandler(&c.log, nil)))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	synctest.Wait()
	return w
}

// expect checks which of the addresses 10.0.0.1 to 10.0.0.4 and fd00::1 are those of pods.
func expect(t *testing.T, w *Watch, when, want string) {
	t.Helper()
	var got []string
	for _, addr := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "fd00::1"} {
		if w.Has(netip.MustParseAddr(addr)) {
			got = append(got, addr)
		}
	}
	if strings.Join(got, " ") != want {
		t.Errorf("%s: has %q, want %q", when, got, want)
	}
}
