package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

// tap is a proxy before an engine that keeps the requests it sees, by the client's request id.
type tap struct {
	addr string

	mu   sync.Mutex // guards kept
	kept map[string][]tapped
}

// tapped is a request as it reached an engine.
type tapped struct {
	header http.Header
	body   string
}

func newTap(t *testing.T, addr string) *tap {
	t.Helper()
	p := &tap{kept: map[string][]tapped{}}
	relay := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: addr}) },
		Transport:     client.Transport,
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		p.keep(r.Header.Get(pd.HeaderRequestID), tapped{r.Header.Clone(), string(body)})
		r.Body = io.NopCloser(bytes.NewReader(body))
		relay.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	p.addr = server.Listener.Addr().String()
	return p
}

func (p *tap) keep(id string, r tapped) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept[id] = append(p.kept[id], r)
}

// seen is what reached the engine under a request id.
func (p *tap) seen(id string) []tapped {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept[id]
}

// tappedFleet is a fleet with one decode engine, whose engines are behind taps and take faults.
type tappedFleet struct {
	*fleet
	prefill, decode []tappedEngine
}

type tappedEngine struct {
	engine // at the address of the tap
	tap    *tap
	admin  string // of a simulated one
}

func newTappedFleet(t *testing.T, prefills int) *tappedFleet {
	t.Helper()
	f := &tappedFleet{fleet: newFleet(t, 0, 0)}
	for i := range prefills {
		e := f.startTapped(t, fmt.Sprintf("prefill-%d", i), "prefill")
		f.prefill = append(f.prefill, e)
		f.fleet.prefill = append(f.fleet.prefill, e.engine)
	}
	e := f.startTapped(t, "decode", "decode")
	f.decode = append(f.decode, e)
	f.fleet.decode = append(f.fleet.decode, decodePod{e.engine, startSidecar(t, e.addr)})
	f.writeEndpoints(t)
	return f
}

func (f *tappedFleet) startTapped(t *testing.T, name, role string) tappedEngine {
	t.Helper()
	var e tappedEngine
	if engines != nil {
		e.engine = engines.lend(t, name)
	} else {
		p := start(t, stack.Sim(binDir, name, "--role="+role))
		e.addr, e.admin = p.addr("http"), p.addr("admin")
	}
	e.tap = newTap(t, e.addr)
	e.addr = e.tap.addr
	return e
}

// fault has something go wrong at the engine from now on: a sim.Fault as JSON.
func (e tappedEngine) fault(t *testing.T, fault string) {
	t.Helper()
	resp, err := client.Post("http://"+e.admin+"/sim/faults", "application/json", strings.NewReader(fault))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode >= 300 {
		t.Fatalf("fault %s: %d %s", fault, resp.StatusCode, b)
	}
}
