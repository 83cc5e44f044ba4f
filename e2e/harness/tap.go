package harness

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

// Tap is a proxy in front of an engine that records requests by the client's request id.
type Tap struct {
	Addr string

	Mu   sync.Mutex // guards kept
	Kept map[string][]Tapped
}

// Tapped is a request as it reached an engine.
type Tapped struct {
	Header http.Header
	Body   string
}

// NewTap starts a tap in front of the engine at an address. It ends with the test.
func NewTap(t *testing.T, addr string) *Tap {
	t.Helper()
	p := &Tap{Kept: map[string][]Tapped{}}
	relay := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: addr}) },
		Transport:     Client.Transport,
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		p.keep(r.Header.Get(pd.HeaderRequestID), Tapped{r.Header.Clone(), string(body)})
		r.Body = io.NopCloser(bytes.NewReader(body))
		relay.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	p.Addr = server.Listener.Addr().String()
	return p
}

func (p *Tap) keep(id string, r Tapped) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Kept[id] = append(p.Kept[id], r)
}

// Seen returns the requests that reached the engine under a request id.
func (p *Tap) Seen(id string) []Tapped {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return p.Kept[id]
}

// TappedFleet is a fleet with one decode engine, whose engines have taps and can get faults.
type TappedFleet struct {
	*Fleet
	Prefill, Decode []tappedEngine
}

type tappedEngine struct {
	Engine // at the address of the tap
	Tap    *Tap
	admin  string // of a simulated one
}

// NewTappedFleet starts a fleet with one decode engine and taps in front of all engines.
func NewTappedFleet(t *testing.T, prefills int) *TappedFleet {
	t.Helper()
	f := &TappedFleet{Fleet: NewFleet(t, 0, 0)}
	for i := range prefills {
		e := f.startTapped(t, fmt.Sprintf("prefill-%d", i), "prefill")
		f.Prefill = append(f.Prefill, e)
		f.Fleet.Prefill = append(f.Fleet.Prefill, e.Engine)
	}
	e := f.startTapped(t, "decode", "decode")
	f.Decode = append(f.Decode, e)
	f.Fleet.Decode = append(f.Fleet.Decode, DecodePod{Engine: e.Engine, Sidecar: StartSidecar(t, e.Addr)})
	f.WriteEndpoints(t)
	return f
}

func (f *TappedFleet) startTapped(t *testing.T, name, role string) tappedEngine {
	t.Helper()
	var e tappedEngine
	if Lend != nil {
		e.Engine = Lend(t, name)
	} else {
		p := Start(t, stack.Sim(BinDir, name, "--role="+role, allAPIs))
		e.Addr, e.admin = p.Addr("http"), p.Addr("admin")
	}
	e.Tap = NewTap(t, e.Addr)
	e.Addr = e.Tap.Addr
	return e
}

// Fault sets a fault of the engine: a fault.Fault as JSON.
func (e tappedEngine) Fault(t *testing.T, fault string) {
	t.Helper()
	resp, err := Client.Post("http://"+e.admin+"/sim/faults", "application/json", strings.NewReader(fault))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode >= 300 {
		t.Fatalf("fault %s: %d %s", fault, resp.StatusCode, b)
	}
}
