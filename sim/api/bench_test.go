package api_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/api"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// BenchmarkCompletion measures a whole short request without a socket: the least that the simulator adds to a measurement.
func BenchmarkCompletion(b *testing.B) {
	e, err := sim.New(sim.Config{KV: sim.KVConfig{Blocks: 4096}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(e.Close)
	h := api.NewHandler(e, fault.NewList())
	body := string(pyjson.Encode(simtest.Greedy(simtest.Prompt(1, 100), 8, nil)))
	b.ReportAllocs()
	for range b.N {
		r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			b.Fatal(w.Body)
		}
	}
}
