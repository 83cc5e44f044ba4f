package envoyconf_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
)

const (
	// smallHeap is the heap of an Envoy that little fills (bytes).
	smallHeap = 64 << 20
	// keptRequests are enough for it. Envoy keeps their bodies until their answers begin: another picker may have to see them.
	keptRequests = 40
	// keptBody is the body of each (bytes).
	keptBody = 2 << 20
	// turnTimeout bounds the wait until Envoy is full, or has memory again. It looks four times a second.
	turnTimeout = time.Minute
)

// Before its memory ends Envoy refuses requests with 503, answers probes, loses none of the requests that it has taken, and takes others
// again when those have ended.
func TestEnvoyRefusesBeforeItsMemoryEnds(t *testing.T) {
	read, answer := make(chan struct{}, keptRequests), make(chan struct{})
	release := sync.OnceFunc(func() { close(answer) })
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		if n == keptBody {
			read <- struct{}{}
			<-answer
		}
		_, _ = io.WriteString(w, "well")
	}))
	defer endpoint.Close()
	defer release()
	address := endpoint.Listener.Addr().String()
	admin := freeAddress(t)
	f := startFront(t, &client.Baseline{Endpoints: address}, func(o *envoyconf.Options) {
		o.Pool, o.Static, o.MaxHeap = envoyconf.PoolStatic, static(address), smallHeap
		o.Admin, o.Operations = admin, "127.0.0.1:0"
	})
	if a := f.post(t, http.Header{}, "{}"); a.status != http.StatusOK {
		t.Fatalf("before: %+v", a)
	}
	kept := make(chan reply, keptRequests)
	for range keptRequests {
		go func() { kept <- f.post(t, http.Header{}, strings.Repeat("x", keptBody)) }()
	}
	refused := f.until(t, http.StatusServiceUnavailable)
	if !strings.Contains(refused.body, `"code":"busy"`) || refused.header.Get("Retry-After") != "1" || refused.header.Get("Content-Type") != "application/json" {
		t.Errorf("the refusal: %+v", refused)
	}
	operations, err := f.envoy.Listener(t.Context(), envoyconf.OperationsListener)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"/livez", "/readyz"} {
		resp, err := http.Get("http://" + operations + page)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s of a full Envoy: %s", page, resp.Status)
		}
	}
	select {
	case <-read:
	case <-time.After(turnTimeout):
		t.Fatal("no request that Envoy has taken reaches the endpoint")
	}
	taken := 1 + len(read)
	release()
	answered := 0
	for range keptRequests {
		switch a := <-kept; a.status {
		case http.StatusOK:
			answered++
		case http.StatusServiceUnavailable: // refused
		default:
			t.Errorf("a request that Envoy kept: %+v", a)
		}
	}
	if answered < taken {
		t.Errorf("%d of %d requests that an endpoint has read are answered", answered, taken)
	}
	if a := f.until(t, http.StatusOK); a.body != "well" {
		t.Errorf("after: %+v", a)
	}
}

// until sends requests until one is answered with a status.
func (f *front) until(t *testing.T, status int) reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), turnTimeout)
	defer cancel()
	for {
		a := f.post(t, http.Header{}, "{}")
		if a.status == status {
			return a
		}
		if ctx.Err() != nil {
			t.Fatalf("no request was answered with %d; the last one: %+v", status, a)
		}
	}
}

// freeAddress returns an address whose port was free a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
