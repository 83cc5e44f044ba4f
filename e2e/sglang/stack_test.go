package sglang_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/sglang"
	"github.com/tandem-serving/tandem/pd"
)

// startSidecar runs a sidecar in front of the decode engine at an address.
func startSidecar(t *testing.T, decode string, flags ...string) harness.Program {
	t.Helper()
	return harness.StartSidecar(t, decode, append([]string{"--kv-connector=sglang"}, flags...)...)
}

// newStack returns the decode engine with a sidecar, prefill engines, a picker and an Envoy in front.
func newStack(t *testing.T, e *engines, prefills ...*sglang.Engine) *harness.Fleet {
	t.Helper()
	dir := t.TempDir()
	f := &harness.Fleet{Model: realengine.Model, Config: filepath.Join(dir, "config.yaml"), Endpoints: filepath.Join(dir, "endpoints.yaml")}
	for _, p := range prefills {
		f.Prefill = append(f.Prefill, harness.Engine{Addr: p.Address()})
	}
	decode := harness.Engine{Addr: e.decode.Address()}
	f.Decode = []harness.DecodePod{{Engine: decode, Sidecar: startSidecar(t, decode.Addr)}}
	const first = "plugins:\n"
	f.WriteConfig(t, strings.Replace(fmt.Sprintf(harness.PdConfig, harness.Threshold, ""), first, first+"- type: openai-parser\n- type: anthropic-parser\n- type: sglanghttp-parser\n", 1)+
		"requestHandler: {parsers: [{pluginRef: openai-parser}, {pluginRef: anthropic-parser}, {pluginRef: sglanghttp-parser}]}\n")
	f.WriteEndpoints(t)
	endpoints, err := os.ReadFile(f.Endpoints)
	must(t, err)
	const role = "    llm-d.ai/role:"
	harness.Replace(t, f.Endpoints, strings.ReplaceAll(string(endpoints), role, "    llm-d.ai/engine-type: sglang\n"+role))
	f.StartPicker(t)
	f.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"})
	return f
}

// from returns the request as a picker sends it to a sidecar: with the prefill pods that it may try.
func (a ask) from(prefills ...string) ask {
	return a.told(pd.HeaderPrefill, strings.Join(prefills, ","))
}

// valve is a proxy in front of an engine that can hold the requests of clients, and lets pass all others.
type valve struct {
	Addr string
	Held chan struct{} // gets one for every request that is held

	mu   sync.Mutex
	open chan struct{}
}

func newValve(t *testing.T, e *sglang.Engine) *valve {
	t.Helper()
	v := &valve{Held: make(chan struct{}, 64), open: make(chan struct{})}
	close(v.open)
	engine := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: e.Address()}) },
		Transport:     harness.Client.Transport,
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
func (v *valve) pass(r *http.Request) bool {
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
func (v *valve) Shut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open = make(chan struct{})
}

// Release lets pass the requests that are held, and all later ones.
func (v *valve) Release() {
	v.mu.Lock()
	defer v.mu.Unlock()
	select {
	case <-v.open:
	default:
		close(v.open)
	}
}
