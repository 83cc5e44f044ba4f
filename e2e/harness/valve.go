package harness

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// Valve is a proxy in front of an engine that can hold the requests of clients, and lets pass all others.
type Valve struct {
	Addr string
	Held chan struct{} // gets one for every request that is held

	mu   sync.Mutex
	open chan struct{}
}

// NewValve returns an open valve in front of the engine at an address.
func NewValve(t *testing.T, engineAddr string) *Valve {
	t.Helper()
	v := &Valve{Held: make(chan struct{}, 64), open: make(chan struct{})}
	close(v.open)
	engine := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: engineAddr}) },
		Transport:     Client.Transport,
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if pd.APIOf(r.URL.Path).Generates() && !v.pass(r) {
			panic(http.ErrAbortHandler)
		}
		engine.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = nil
	t.Cleanup(func() { v.Release(); server.CloseClientConnections(); server.Close() })
	v.Addr = server.Listener.Addr().String()
	return v
}

// pass returns when the valve is open, or the client has left, which the server notices once the body is read.
func (v *Valve) pass(r *http.Request) bool {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return false
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	v.mu.Lock()
	open := v.open
	v.mu.Unlock()
	select {
	case <-open:
		return true
	default:
	}
	v.Held <- struct{}{}
	select {
	case <-open:
		return true
	case <-r.Context().Done():
		return false
	}
}

// Shut holds requests from now on.
func (v *Valve) Shut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open = make(chan struct{})
}

// Release lets pass the requests that are held, and all later ones.
func (v *Valve) Release() {
	v.mu.Lock()
	defer v.mu.Unlock()
	select {
	case <-v.open:
	default:
		close(v.open)
	}
}
