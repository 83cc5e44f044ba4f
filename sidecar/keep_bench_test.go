package sidecar

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/transport"
)

// prefilled has a simulated engine finish a prefill, and returns the hand-off.
func prefilled(t testing.TB, e *server.Server) (params string) {
	t.Helper()
	const ask = `{"model":"tiny","prompt":[20,21,22,23,24],"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}}`
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, completionsPath, strings.NewReader(ask))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	e.Handler.ServeHTTP(w, r)
	var answer struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || len(answer.Params) == 0 {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return string(answer.Params)
}

// startConnected serves a sidecar before two engines that cost next to nothing. If kept, it waits until the lease registry has
// connected to the engine that the hand-offs name.
func startConnected(t testing.TB, answer []byte, kept bool) (h http.Handler, prefill string) {
	t.Helper()
	engine, err := server.Start(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	prefill = rawEngine(t, httpAnswer("application/json", offer(prefilled(t, engine))))
	if !kept {
		return startRig(t, rawEngine(t, answer)).Handler(), prefill
	}
	agent, err := transport.NewTCP(transport.TCPConfig{Name: "sidecar"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Close() }) // an error of closing loses nothing
	s := startRig(t, rawEngine(t, answer), set(func(c *Config) { c.Keep.Notifier = agent }))
	n := bodyLength(t, answer)
	for s.leases.Counts().Connects == 0 {
		serveOne(t, s.Handler(), promptOf(1<<10), n, pd.HeaderPrefill, prefill)
	}
	return s.Handler(), prefill
}

// BenchmarkKept measures what renewing a hand-off costs a request that is served at once.
func BenchmarkKept(b *testing.B) {
	stream := streamAnswer(2)
	for _, kept := range []bool{false, true} {
		name := map[bool]string{false: "without", true: "kept"}[kept]
		b.Run("whole/"+name, func(b *testing.B) {
			h, prefill := startConnected(b, httpAnswer("application/json", wholeAnswer), kept)
			drive(b, h, promptOf(1<<10), len(wholeAnswer), pd.HeaderPrefill, prefill)
		})
		b.Run("stream/"+name, func(b *testing.B) {
			h, prefill := startConnected(b, stream, kept)
			drive(b, h, streamed(promptOf(1<<10)), bodyLength(b, stream), pd.HeaderPrefill, prefill)
		})
	}
}

// TestKeptAllocs checks that a notifier costs a request few objects. It compares means of many runs: the race detector empties
// pools at random, so that minima of few runs differ by as much as is allowed here.
func TestKeptAllocs(t *testing.T) {
	const most = 4
	mean := map[bool]float64{}
	for _, kept := range []bool{false, true} {
		h, prefill := startConnected(t, httpAnswer("application/json", wholeAnswer), kept)
		prompt := promptOf(1 << 10)
		mean[kept] = testing.AllocsPerRun(300, func() {
			serveOne(t, h, prompt, len(wholeAnswer), pd.HeaderPrefill, prefill)
		})
	}
	if more := mean[true] - mean[false]; more > most {
		t.Errorf("%v objects more with a notifier than the %v without, want at most %d", more, mean[false], most)
	}
}
