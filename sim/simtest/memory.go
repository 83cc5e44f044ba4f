package simtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/api"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/transport"
)

// Network connects engines in memory.
type Network struct {
	*transport.MemNetwork

	mu      sync.Mutex
	engines []*transport.Mem // by port
}

// NewNetwork makes a network without engines.
func NewNetwork() *Network { return &Network{MemNetwork: transport.NewMemNetwork()} }

// Engine is an engine without sockets.
type Engine struct {
	*sim.Engine
	// Faults hit its requests.
	Faults *fault.List
	// Transport is how other engines reach it.
	Transport *transport.Mem

	handler http.Handler
}

// Start runs an engine for the length of the test, at the model's own speed.
func (n *Network) Start(t *testing.T, change ...func(*sim.Config)) *Engine {
	t.Helper()
	n.mu.Lock()
	port := len(n.engines)
	id := fmt.Sprintf("engine-%d", port)
	mem, err := transport.NewMem(n.MemNetwork, id)
	if err != nil {
		t.Fatal(err)
	}
	n.engines = append(n.engines, mem)
	n.mu.Unlock()
	cfg := sim.Config{TimeScale: 1, Transfer: sim.TransferConfig{SideChannel: fmt.Sprintf("memory:%d", port), EngineID: id, Transport: mem, Fetch: n.fetch}}
	for _, f := range change {
		f(&cfg)
	}
	e, err := sim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	faults := fault.NewList()
	return &Engine{Engine: e, Faults: faults, Transport: mem, handler: api.NewHandler(e, faults)}
}

// fetch implements sim.TransferConfig.Fetch.
func (n *Network) fetch(_ context.Context, address string) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var port int
	if _, err := fmt.Sscanf(address, "memory:%d", &port); err != nil || port >= len(n.engines) {
		return nil, errors.New("no such engine")
	}
	return n.engines[port].Metadata(), nil
}

// Complete answers one completion. The result is empty if there was no answer.
func (e *Engine) Complete(ctx context.Context, body any) Completion {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", strings.NewReader(string(pyjson.Encode(body))))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	e.handler.ServeHTTP(w, r)
	var c Completion
	if json.Unmarshal(w.Body.Bytes(), &c) != nil {
		return Completion{}
	}
	return c
}

// Sleep waits for a time on the clock of the bubble. It returns the context's error if that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Elapse lets a time pass on the clock of the bubble.
func Elapse(t *testing.T, d time.Duration) {
	t.Helper()
	if err := Sleep(t.Context(), d); err != nil {
		t.Error(err)
	}
}

// Measure returns how long f takes on the clock of the bubble.
func Measure(f func()) time.Duration {
	begun := time.Now()
	f()
	return time.Since(begun)
}
