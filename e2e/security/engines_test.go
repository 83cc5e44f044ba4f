package security

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// startHostileEngine starts an engine that an attacker controls: it is healthy, and answers calls by the given handler.
func startHostileEngine(t *testing.T, answer http.HandlerFunc) (addr string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
			answer(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// writeEndlessly writes the text again and again until the client stops reading, and counts the bytes in sent.
func writeEndlessly(w io.Writer, text string, sent *atomic.Int64) {
	for block := []byte(strings.Repeat(text, 64<<10/len(text)+1)); ; {
		n, err := w.Write(block)
		sent.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// mostMemory is the most memory that a program may use while hostile engines answer (MiB): each answer is capped at 16 MiB, and
// earlier ones may not have been collected yet.
const mostMemory = 200

// mustHaveBoundedMemory fails if a program ever held more than mostMemory.
func mustHaveBoundedMemory(t *testing.T, p harness.Program) {
	t.Helper()
	peak := harness.PeakOf(t, p.PID())
	t.Logf("%s held at most %d MiB", p.Name(), peak)
	if peak > mostMemory {
		t.Errorf("%s held %d MiB, want at most %d", p.Name(), peak, mostMemory)
	}
}

// TestSecurityHostilePrefill has a prefill engine send malformed answers. The decode engine alone serves the client, and never
// sees the malformed hand-off.
func TestSecurityHostilePrefill(t *testing.T) {
	decode := harness.NewTap(t, harness.StartSim(t, "decode", "--role=decode").Addr)
	s := harness.StartSidecar(t, decode.Addr, "--fallback-burst=1000")
	var sent atomic.Int64
	model, err := harness.DecodeModel(decode.Addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
	}{
		{"an endless answer", func(w http.ResponseWriter, _ *http.Request) { writeEndlessly(w, " ", &sent) }},
		{"an endless string", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"kv_transfer_params":"`)
			writeEndlessly(w, "a", &sent)
		}},
		{"a length that is a lie", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9223372036854775807")
			w.WriteHeader(200)
		}},
		{"a gzip bomb", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.CopyN(z, zeros{}, 32<<20)
			_ = z.Close()
		}},
		{"deep nesting", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("[", 8<<20)) }},
		{"a header flood", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 2000 {
				w.Header().Set(fmt.Sprintf("X-Flood-%d", i), strings.Repeat("a", 1000))
			}
			w.WriteHeader(200)
		}},
		{"a hand-off that is no object", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"kv_transfer_params":"`+mark+`"}`)
		}},
		{"half a hand-off", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"`+mark+`"},"usage":{"prompt_tokens":1}}`)
		}},
		{"HTML", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `<html>`+mark) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			sent.Store(0)
			q := harness.Call{API: pd.APICompletions, Text: "a", Tokens: 1}.Remote(startHostileEngine(t, c.answer))
			got := harness.MustSend(t, q, s.Addr("http"), model)
			if v := harness.Planned(got); got.Status != http.StatusOK || v != "local;reason=handoff-invalid" && v != "local;reason=prefill-failed" {
				t.Errorf("status %d, decision %q: %.300s", got.Status, v, got.Body)
			}
			if n := sent.Load(); n > 64<<20 {
				t.Errorf("%d MiB of the answer were taken", n>>20)
			}
		})
	}
	mustHaveNothingForged(t, decode)
	mustHaveBoundedMemory(t, s)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestSecurityHostileDecode has a decode engine forge Tandem's headers and never end an event: the client gets no forged header,
// and the sidecar's memory stays bounded.
func TestSecurityHostileDecode(t *testing.T) {
	var sent atomic.Int64
	addr := startHostileEngine(t, func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{pd.HeaderDecision, pd.HeaderOutcome, pd.HeaderTiming, pd.HeaderRetry, pd.HeaderPlan, "x-gateway-destination-endpoint-served"} {
			w.Header().Set(name, mark)
			w.Header().Set(http.TrailerPrefix+name, mark)
		}
		w.Header().Set(pd.HeaderRequestID, mark)
		if r.Header.Get("X-Case") != "event" {
			_, _ = io.WriteString(w, `{"choices":[]}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: ")
		writeEndlessly(w, "a", &sent)
	})
	s := harness.StartSidecar(t, addr)
	for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/v1/models"} {
		for _, te := range []string{"", "trailers"} {
			req, err := http.NewRequestWithContext(harness.Within(t), http.MethodPost, "http://"+s.Addr("http")+path, strings.NewReader(`{"prompt":"a"}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Te", te)
			resp, err := harness.Client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(resp.Body); err != nil {
				t.Error(err)
			}
			resp.Body.Close()
			for part, h := range map[string]http.Header{"header": resp.Header, "trailer": resp.Trailer} {
				for name, values := range h {
					own := http.CanonicalHeaderKey(name) == http.CanonicalHeaderKey(pd.HeaderRequestID) && !strings.HasPrefix(path, "/v1/c") && path != "/v1/responses"
					if strings.Contains(strings.Join(values, ","), mark) && !own {
						t.Errorf("%s: %s %s: %q", path, part, name, values)
					}
				}
			}
		}
	}
	t.Run("an event without end", func(t *testing.T) {
		q := harness.Call{API: pd.APICompletions, Text: "a", Tokens: 1, Stream: true, Header: map[string]string{"X-Case": "event"}}
		req, err := http.NewRequestWithContext(harness.Within(t), http.MethodPost, "http://"+s.Addr("http")+q.API.Path(), strings.NewReader(string(q.Body("m"))))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Case", "event")
		resp, err := harness.Client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || !strings.Contains(string(text), `"error"`) || len(text) > 1<<20 {
			t.Errorf("the client got %d bytes, %v: %.200s", len(text), err, text)
		}
		if n := sent.Load(); n > 64<<20 {
			t.Errorf("%d MiB of the event were taken", n>>20)
		}
	})
	mustHaveBoundedMemory(t, s)
}

// TestSecurityHostileMetricsPage has an engine of the pool answer scrapes without end. The picker goes on with the other
// engines, and reads a bounded part of the page.
func TestSecurityHostileMetricsPage(t *testing.T) {
	var sent, scrapes atomic.Int64
	trap := startDecoy(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/metrics":
			w.WriteHeader(http.StatusServiceUnavailable)
		case scrapes.Add(1)%2 == 1:
			writeEndlessly(w, "vllm:num_requests_waiting{a=\"b\"} 1\n", &sent)
		default:
			http.Redirect(w, r, "http://"+trap.addr, http.StatusFound)
		}
	}))
	defer server.Close()
	f := harness.NewFleet(t, 1, 1)
	f.WriteEndpoints(t, server.Listener.Addr().String())
	p := f.StartPicker(t)
	f.StartFront(t, harness.Layout{Proxy: "gateway", Mode: "pair"})
	f.Eventually(t, "the engine is scraped", func() (string, bool) { return fmt.Sprint(scrapes.Load()), scrapes.Load() >= 2 })
	q := f.TokensCall(2*harness.Threshold, false)
	for range 8 { // some go to the hostile engine, which serves nothing
		if got := f.Send(t, q); got.Status == http.StatusOK {
			harness.MustMatch(t, got, false, f.Want(t, q))
		}
	}
	f.Eventually(t, "the picker knows the others", func() (string, bool) {
		state, err := harness.EndpointsOf(p)
		known := 0
		for _, e := range state.Endpoints {
			if e.LoadAge > 0 && e.LoadAge < 10 {
				known++
			}
		}
		return fmt.Sprint(known), err == nil && known >= 2
	})
	mustHaveBoundedMemory(t, p)
	trap.mustHaveNoConnection(t)
}
