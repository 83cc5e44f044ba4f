package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/simtest"
	"github.com/tandem-serving/tandem/sim/web"
)

// addFault posts a fault through the admin port.
func addFault(t *testing.T, s *server.Server, f fault.Fault) {
	t.Helper()
	if r := simtest.Post(t, s.Admin+"/sim/faults", f); r.Status != http.StatusNoContent {
		t.Fatalf("fault %+v: status %d: %s", f, r.Status, r.Body)
	}
}

func clearFaults(t *testing.T, s *server.Server) {
	t.Helper()
	simtest.Do(t, http.MethodDelete, s.Admin+"/sim/faults", "")
}

// exchange sends one completion over a connection of its own and returns what came back, and how the connection ended.
func exchange(t *testing.T, s *server.Server, body any) (answer []byte, end error) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(simtest.Timeout)); err != nil {
		t.Fatal(err)
	}
	var request bytes.Buffer
	req, err := http.NewRequest(http.MethodPost, s.URL+"/v1/completions", bytes.NewReader(pyjson.Encode(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if err := req.Write(&request); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(request.Bytes()); err != nil {
		t.Fatal(err)
	}
	return io.ReadAll(conn)
}

func TestConnectionFaults(t *testing.T) {
	whole, stream := simtest.Greedy(simtest.Prompt(1, 40), 4, nil), simtest.Streamed(simtest.Greedy(simtest.Prompt(1, 40), 4, nil))
	for _, c := range []struct {
		name, fault string
		body        any
		reset       bool
		check       func(answer string) bool
	}{
		{"refuse", fault.Refuse, whole, false, func(a string) bool { return a == "" }},
		{"reset before", fault.ResetBefore, whole, true, func(a string) bool { return a == "" }},
		{"reset after, whole answer", fault.ResetAfter, whole, true, func(a string) bool { return a == "" || strings.HasSuffix(a, "\r\n\r\n") }},
		{"reset after, stream", fault.ResetAfter, stream, true, func(a string) bool { return strings.Count(a, "data: ") <= 1 }},
		{"truncate, whole answer", fault.Truncate, whole, false, func(a string) bool {
			_, err := http.ReadResponse(bufio.NewReader(strings.NewReader(a)), nil)
			return err == nil && strings.Contains(a, "Content-Length: ") && !strings.HasSuffix(a, "}")
		}},
		{"truncate, stream", fault.Truncate, stream, false, func(a string) bool {
			return strings.Count(a, "data: ") == 1 && !strings.Contains(a, "[DONE]") && !strings.HasSuffix(a, "0\r\n\r\n")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := simtest.Start(t)
			addFault(t, s, fault.Fault{Leg: fault.LegDecode, Fault: c.fault, Count: 1})
			answer, err := exchange(t, s, c.body)
			// The client may lose bytes that arrived before the RST, but not the RST.
			if reset := errors.Is(err, syscall.ECONNRESET); reset != c.reset || err != nil && !reset {
				t.Errorf("the connection ended with %v", err)
			}
			if !c.check(string(answer)) {
				t.Errorf("answer %q", answer)
			}
			if got := simtest.Complete(t, s, whole); len(got.Tokens()) != 4 {
				t.Errorf("after the fault: %+v", got)
			}
			simtest.WaitForState(t, s, "the end of every request", simtest.Idle)
		})
	}
}

func TestRefuseClosesThePort(t *testing.T) {
	s := simtest.Start(t)
	addFault(t, s, fault.Fault{Fault: fault.Refuse})
	if _, err := exchange(t, s, simtest.Greedy(simtest.Prompt(1, 4), 1, nil)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connecting gave %v", err)
	}
	clearFaults(t, s)
	simtest.Complete(t, s, simtest.Greedy(simtest.Prompt(1, 4), 1, nil))
}

func TestStatusFault(t *testing.T) {
	s := simtest.Start(t)
	for code, want := range map[string]string{
		"503": `{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}`,
		"500": `{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`,
		"429": `{"error":{"message":"Too Many Requests","type":"Too Many Requests","param":null,"code":429}}`,
	} {
		addFault(t, s, fault.Fault{Fault: fault.Status, Arg: code, Count: 1})
		if r := simtest.Post(t, s.URL+"/v1/completions", simtest.Greedy(simtest.Prompt(1, 4), 1, nil)); string(r.Body) != want {
			t.Errorf("status %s gave %d %s", code, r.Status, r.Body)
		}
	}
}

func TestSlowFault(t *testing.T) {
	s := simtest.Start(t)
	addFault(t, s, fault.Fault{Fault: fault.Slow, Arg: "1.5", Count: 1})
	simtest.Complete(t, s, simtest.Greedy(simtest.Prompt(1, 4), 1, nil))

	addFault(t, s, fault.Fault{Fault: fault.Slow, Arg: fault.Forever})
	answered := make(chan simtest.Reply, 1)
	go func() {
		answered <- simtest.Post(t, s.URL+"/v1/completions", simtest.Greedy(simtest.Prompt(1, 4), 1, nil))
	}()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/health", nil)
		if err != nil {
			left <- err
			return
		}
		_, err = http.DefaultTransport.RoundTrip(req)
		left <- err
	}()
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("a client that left got %v", err)
	}
	select {
	case r := <-answered:
		t.Fatalf("answered while stopped: %s", r.Body)
	default:
	}
	clearFaults(t, s)
	if r := <-answered; r.Status != http.StatusOK {
		t.Errorf("status %d after the fault", r.Status)
	}
}

// TestSlowFaultOfADyingEngine: a request that a fault holds back gets its error when the engine ends.
func TestSlowFaultOfADyingEngine(t *testing.T) {
	s := simtest.Start(t)
	addFault(t, s, fault.Fault{Fault: fault.Slow, Arg: fault.Forever, Count: 1})
	addFault(t, s, fault.Fault{Fault: fault.Crash})
	answered := make(chan simtest.Reply, 1)
	for range 2 {
		go func() {
			answered <- simtest.Post(t, s.URL+"/v1/completions", simtest.Greedy(simtest.Prompt(1, 4), 1, nil))
		}()
	}
	for range 2 {
		if r := <-answered; r.Status != http.StatusInternalServerError || !bytes.Contains(r.Body, []byte("EngineCore")) {
			t.Errorf("status %d: %q", r.Status, r.Body)
		}
	}
}

func TestCrashFault(t *testing.T) {
	s := simtest.Start(t)
	addFault(t, s, fault.Fault{Leg: fault.LegPrefill, Fault: fault.Crash})
	simtest.Complete(t, s, simtest.Greedy(simtest.Prompt(1, 4), 1, nil)) // a request of the other leg
	r := simtest.Post(t, s.URL+"/v1/completions", simtest.Greedy(simtest.Prompt(1, 4), 1, simtest.PrefillLeg))
	if r.Status != http.StatusInternalServerError || !bytes.Contains(r.Body, []byte("EngineCore")) {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
	if err := s.Wait(); !errors.Is(err, web.ErrCrashed) {
		t.Errorf("the engine ended with %v", err)
	}
}

func TestHandoffFaults(t *testing.T) {
	s := simtest.Start(t)
	addFault(t, s, fault.Fault{Leg: fault.LegPrefill, Fault: fault.BadHandoff, Arg: "string", Count: 1})
	if got := prefillBytes(t, s, 2); string(got) != `"remote"` {
		t.Errorf("hand-off is %s, want a damaged one", got)
	}
	addFault(t, s, fault.Fault{Leg: fault.LegPrefill, Fault: fault.NoHandoff, Count: 1})
	pinned := s.Engine.State().Blocks.Pinned
	if got := prefillBytes(t, s, 3); string(got) != "null" {
		t.Errorf("hand-off is %s, want none", got)
	}
	if st := s.Engine.State(); st.Blocks.Pinned != pinned || pinned == 0 {
		t.Errorf("%d blocks pinned, want those of the damaged hand-off alone (%d)", st.Blocks.Pinned, pinned)
	}
}

func prefillBytes(t *testing.T, s *server.Server, seed int) json.RawMessage {
	t.Helper()
	return simtest.Complete(t, s, simtest.Greedy(simtest.Prompt(seed, 40), 1, simtest.PrefillLeg)).KVTransferParams
}

func TestFaultsChoose(t *testing.T) {
	s := simtest.Start(t)
	body := simtest.Greedy(simtest.Prompt(1, 4), 1, nil)
	addFault(t, s, fault.Fault{Leg: fault.LegAny, Fault: fault.Status, Arg: "429", Match: "tenant-7"})
	for id, want := range map[string]int{"tenant-7-a": 429, "tenant-8": 200} {
		if r := simtest.Post(t, s.URL+"/v1/completions", body, "X-Request-Id", id); r.Status != want {
			t.Errorf("request %s: status %d, want %d", id, r.Status, want)
		}
	}
	clearFaults(t, s)
	addFault(t, s, fault.Fault{Leg: fault.LegDecode, Fault: fault.Status, Arg: "429", Count: 2})
	if r := simtest.Post(t, s.URL+"/tokenize", map[string]any{"prompt": "a"}); r.Status != http.StatusOK {
		t.Errorf("tokenizing, which generates nothing: status %d", r.Status)
	}
	count := map[string]any{"model": "tiny", "messages": []any{map[string]any{"role": "user", "content": "a"}}}
	if r := simtest.Post(t, s.URL+"/v1/messages/count_tokens", count); r.Status != http.StatusOK {
		t.Errorf("counting tokens, which generates nothing: status %d", r.Status)
	}
	var got []int
	for range 3 {
		got = append(got, simtest.Post(t, s.URL+"/v1/completions", body).Status)
	}
	if !slices.Equal(got, []int{429, 429, 200}) {
		t.Errorf("statuses %v: want the fault used up after two", got)
	}
	if r := simtest.Do(t, http.MethodGet, s.URL+"/health", ""); r.Status != http.StatusOK {
		t.Errorf("health is %d", r.Status)
	}
}

func TestFaultsAreChecked(t *testing.T) {
	s := simtest.Start(t)
	for body, want := range map[string]string{
		`{"fault":"explode"}`:               `fault "explode" is not known`,
		`{"fault":"slow","arg":"soon"}`:     `arg "soon"`,
		`{"fault":"status","arg":"200"}`:    `arg "200"`,
		`{"fault":"bad-handoff","arg":"x"}`: `arg "x"`,
		`{"fault":"crash","leg":"both"}`:    `leg "both"`,
		`{"fault":"crash","count":-1}`:      "count -1",
		`{"fault":"crash","often":true}`:    `unknown field "often"`,
		`{"fault":"crash","at":"end"}`:      `at "end"`,
		`{"fault":"truncate","at":"0"}`:     `at "0"`,
		`{"fault":"refuse","at":"body"}`:    "refuse has no",
		`{"fault":`:                         "unexpected EOF",
	} {
		r := simtest.Do(t, http.MethodPost, s.Admin+"/sim/faults", body)
		if r.Status != http.StatusBadRequest || !strings.Contains(string(r.Body), want) {
			t.Errorf("%s: status %d, %q, want %q", body, r.Status, r.Body, want)
		}
	}
}

// TestStateContract checks the members that other programs read.
func TestStateContract(t *testing.T) {
	s := simtest.Start(t)
	prefillBytes(t, s, 1)
	r := simtest.Do(t, http.MethodGet, s.Admin+"/sim/state", "")
	want := `{"blocks":{"total":511,"used":2,"pinned":2},"expired":0,"released":0,"stale_reads":0,"foreign_reads":0,"requests":1,"held":0,"kv_bytes_read":0,"kv_bytes_served":0}`
	if string(r.Body) != want {
		t.Errorf("state is %s, want %s", r.Body, want)
	}
}

func TestAdminIsNotOnTheDataPort(t *testing.T) {
	s := simtest.Start(t)
	if r := simtest.Do(t, http.MethodGet, s.URL+"/sim/state", ""); r.Status != http.StatusNotFound {
		t.Errorf("status %d", r.Status)
	}
}
