package sim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stand posts a fault through the admin port.
func stand(t *testing.T, s *Server, f Fault) {
	t.Helper()
	if r := post(t, s.Admin+"/sim/faults", f); r.status != http.StatusNoContent {
		t.Fatalf("fault %+v: status %d: %s", f, r.status, r.body)
	}
}

func clearFaults(t *testing.T, s *Server) {
	t.Helper()
	do(t, http.MethodDelete, s.Admin+"/sim/faults", "")
}

// exchange sends one completion over a connection of its own and returns what came back, and how the connection ended.
func exchange(t *testing.T, s *Server, body any) (answer []byte, end error) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	var request bytes.Buffer
	req, err := http.NewRequest(http.MethodPost, s.URL+"/v1/completions", bytes.NewReader(encodeJSON(body)))
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

func streamed(body map[string]any) map[string]any {
	body["stream"] = true
	return body
}

func TestConnectionFaults(t *testing.T) {
	whole, stream := ask(prompt(1, 40), 4, nil), streamed(ask(prompt(1, 40), 4, nil))
	for _, c := range []struct {
		name, fault string
		body        any
		reset       bool
		check       func(answer string) bool
	}{
		{"refuse", faultRefuse, whole, false, func(a string) bool { return a == "" }},
		{"reset before", faultResetBefore, whole, true, func(a string) bool { return a == "" }},
		{"reset after, whole answer", faultResetAfter, whole, true, func(a string) bool { return a == "" || strings.HasSuffix(a, "\r\n\r\n") }},
		{"reset after, stream", faultResetAfter, stream, true, func(a string) bool { return strings.Count(a, "data: ") <= 1 }},
		{"truncate, whole answer", faultTruncate, whole, false, func(a string) bool {
			_, err := http.ReadResponse(bufio.NewReader(strings.NewReader(a)), nil)
			return err == nil && strings.Contains(a, "Content-Length: ") && !strings.HasSuffix(a, "}")
		}},
		{"truncate, stream", faultTruncate, stream, false, func(a string) bool {
			return strings.Count(a, "data: ") == 1 && !strings.Contains(a, "[DONE]") && !strings.HasSuffix(a, "0\r\n\r\n")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t)
			stand(t, s, Fault{Leg: legDecode, Fault: c.fault, Count: 1})
			answer, err := exchange(t, s, c.body)
			// What had arrived before an RST may be lost with it; that there was one is certain.
			if reset := errors.Is(err, syscall.ECONNRESET); reset != c.reset || err != nil && !reset {
				t.Errorf("the connection ended with %v", err)
			}
			if !c.check(string(answer)) {
				t.Errorf("answer %q", answer)
			}
			if got := complete(t, s, whole); len(got.tokens()) != 4 {
				t.Errorf("after the fault: %+v", got)
			}
			settle(t, s, "the end of every request", idle)
		})
	}
}

func TestRefuseClosesThePort(t *testing.T) {
	s := start(t)
	stand(t, s, Fault{Fault: faultRefuse})
	if _, err := exchange(t, s, ask(prompt(1, 4), 1, nil)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connecting gave %v", err)
	}
	clearFaults(t, s)
	complete(t, s, ask(prompt(1, 4), 1, nil))
}

func TestStatusFault(t *testing.T) {
	s := start(t)
	for code, want := range map[string]string{
		"503": string(encodeJSON(errBusy.envelope(""))),
		"500": string(encodeJSON(errInternal.envelope(""))),
		"429": `{"error":{"message":"Too Many Requests","type":"Too Many Requests","param":null,"code":429}}`,
	} {
		stand(t, s, Fault{Fault: faultStatus, Arg: code, Count: 1})
		if r := post(t, s.URL+"/v1/completions", ask(prompt(1, 4), 1, nil)); string(r.body) != want {
			t.Errorf("status %s gave %d %s", code, r.status, r.body)
		}
	}
}

func TestSlowFault(t *testing.T) {
	s := start(t)
	stand(t, s, Fault{Fault: faultSlow, Arg: "1.5", Count: 1})
	complete(t, s, ask(prompt(1, 4), 1, nil))

	stand(t, s, Fault{Fault: faultSlow, Arg: forever})
	answered := make(chan reply, 1)
	go func() { answered <- post(t, s.URL+"/v1/completions", ask(prompt(1, 4), 1, nil)) }()
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
		t.Fatalf("answered while stopped: %s", r.body)
	default:
	}
	clearFaults(t, s)
	if r := <-answered; r.status != http.StatusOK {
		t.Errorf("status %d after the fault", r.status)
	}
}

// TestSlowFaultOfADyingEngine: a request that waits for an engine that ends gets its error, like all others.
func TestSlowFaultOfADyingEngine(t *testing.T) {
	s := start(t)
	stand(t, s, Fault{Fault: faultSlow, Arg: forever, Count: 1})
	stand(t, s, Fault{Fault: faultCrash})
	answered := make(chan reply, 1)
	for range 2 {
		go func() { answered <- post(t, s.URL+"/v1/completions", ask(prompt(1, 4), 1, nil)) }()
	}
	for range 2 {
		if r := <-answered; r.status != http.StatusInternalServerError || !bytes.Contains(r.body, []byte("EngineCore")) {
			t.Errorf("status %d: %q", r.status, r.body)
		}
	}
}

func TestCrashFault(t *testing.T) {
	s := start(t)
	stand(t, s, Fault{Leg: legPrefill, Fault: faultCrash})
	complete(t, s, ask(prompt(1, 4), 1, nil)) // a request of the other leg
	r := post(t, s.URL+"/v1/completions", ask(prompt(1, 4), 1, prefillLeg))
	if r.status != http.StatusInternalServerError || !bytes.Contains(r.body, []byte("EngineCore")) {
		t.Errorf("status %d: %s", r.status, r.body)
	}
	if err := s.Wait(); !errors.Is(err, errCrashed) {
		t.Errorf("the engine ended with %v", err)
	}
}

// TestDamages: every damage is what its name says, and nothing else is touched.
func TestDamages(t *testing.T) {
	h := &handoff{DoRemotePrefill: true, RemoteBlockIDs: [][]int{{4, 5, 6}}, RemoteEngineID: "e", RemoteRequestID: "r", RemoteHost: "h",
		RemotePort: 7, TPSize: 1, RemoteNumTokens: 90, TransferMode: "pull", RemotePrefillCachedTokens: new(int)}
	want := map[string]string{ // a member as the damage leaves it; "" for a missing one
		"missing-engine-id": "remote_engine_id=", "missing-request-id": "remote_request_id=", "missing-blocks": "remote_block_ids=",
		"missing-cached": "remote_prefill_cached_tokens=", "null-blocks": "remote_block_ids=null", "empty-blocks": "remote_block_ids=[]",
		"empty-group": "remote_block_ids=[[]]", "flat-blocks": "remote_block_ids=[4,5,6]", "string-blocks": `remote_block_ids=[["4","5","6"]]`,
		"short-blocks": "remote_block_ids=[[5,6]]", "far-blocks": "remote_block_ids=[[1048580,1048581,1048582]]", "foreign": "remote_block_ids=[[0,5,4]]",
		"wrong-engine": `remote_engine_id="00000000-0000-0000-0000-000000000000"`, "wrong-request": `remote_request_id="cmpl-nope"`,
		"wrong-port": "remote_port=1", "flag-false": "do_remote_prefill=false",
	}
	documents := map[string]string{"only-flag": `{"do_remote_prefill":true}`, "string": `"remote"`, "empty": "{}", "list": "[" + string(encodeJSON(h)) + "]"}
	for _, name := range Damages() {
		got := encodeJSON((&Fault{Fault: faultBadHandoff, Arg: name}).damaged(h))
		if document, ok := documents[name]; ok {
			if string(got) != document {
				t.Errorf("%s is %s, want %s", name, got, document)
			}
			continue
		}
		member, value, _ := strings.Cut(want[name], "=")
		expected, damaged := members(h), map[string]json.RawMessage{}
		if err := json.Unmarshal(got, &damaged); err != nil {
			t.Fatal(err)
		}
		if value == "" {
			delete(expected, member)
		} else {
			expected[member] = json.RawMessage(value)
		}
		if !maps.EqualFunc(damaged, expected, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
			t.Errorf("%s is %s, want %s", name, got, want[name])
		}
	}
}

func TestHandoffFaults(t *testing.T) {
	s := start(t)
	stand(t, s, Fault{Leg: legPrefill, Fault: faultBadHandoff, Arg: "string", Count: 1})
	if got := prefillBytes(t, s, 2); string(got) != `"remote"` {
		t.Errorf("hand-off is %s, want a damaged one", got)
	}
	stand(t, s, Fault{Leg: legPrefill, Fault: faultNoHandoff, Count: 1})
	pinned := s.Engine.State().Blocks.Pinned
	if got := prefillBytes(t, s, 3); string(got) != "null" {
		t.Errorf("hand-off is %s, want none", got)
	}
	if st := s.Engine.State(); st.Blocks.Pinned != pinned || pinned == 0 {
		t.Errorf("%d blocks pinned, want those of the damaged hand-off alone (%d)", st.Blocks.Pinned, pinned)
	}
}

func prefillBytes(t *testing.T, s *Server, seed int) json.RawMessage {
	t.Helper()
	return complete(t, s, ask(prompt(seed, 40), 1, prefillLeg)).KVTransferParams
}

func TestFaultsChoose(t *testing.T) {
	s := start(t)
	body := ask(prompt(1, 4), 1, nil)
	stand(t, s, Fault{Leg: legAny, Fault: faultStatus, Arg: "429", Match: "tenant-7"})
	for id, want := range map[string]int{"tenant-7-a": 429, "tenant-8": 200} {
		if r := post(t, s.URL+"/v1/completions", body, "X-Request-Id", id); r.status != want {
			t.Errorf("request %s: status %d, want %d", id, r.status, want)
		}
	}
	clearFaults(t, s)
	stand(t, s, Fault{Leg: legDecode, Fault: faultStatus, Arg: "429", Count: 2})
	if r := post(t, s.URL+"/tokenize", map[string]any{"prompt": "a"}); r.status != http.StatusOK {
		t.Errorf("tokenizing, which generates nothing: status %d", r.status)
	}
	count := map[string]any{"model": "tiny", "messages": []any{map[string]any{"role": "user", "content": "a"}}}
	if r := post(t, s.URL+"/v1/messages/count_tokens", count); r.status != http.StatusOK {
		t.Errorf("counting tokens, which generates nothing: status %d", r.status)
	}
	var got []int
	for range 3 {
		got = append(got, post(t, s.URL+"/v1/completions", body).status)
	}
	if !slices.Equal(got, []int{429, 429, 200}) {
		t.Errorf("statuses %v: want the fault used up after two", got)
	}
	if r := do(t, http.MethodGet, s.URL+"/health", ""); r.status != http.StatusOK {
		t.Errorf("health is %d", r.status)
	}
}

func TestFaultsAreChecked(t *testing.T) {
	s := start(t)
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
		r := do(t, http.MethodPost, s.Admin+"/sim/faults", body)
		if r.status != http.StatusBadRequest || !strings.Contains(string(r.body), want) {
			t.Errorf("%s: status %d, %q, want %q", body, r.status, r.body, want)
		}
	}
}

// TestStateContract: the members that other programs read.
func TestStateContract(t *testing.T) {
	s := start(t)
	prefillBytes(t, s, 1)
	r := do(t, http.MethodGet, s.Admin+"/sim/state", "")
	want := `{"blocks":{"total":511,"used":2,"pinned":2},"expired":0,"released":0,"stale_reads":0,"foreign_reads":0,"requests":1,"held":0,"kv_bytes_read":0,"kv_bytes_served":0}`
	if string(r.body) != want {
		t.Errorf("state is %s, want %s", r.body, want)
	}
}

func TestAdminIsNotOnTheDataPort(t *testing.T) {
	s := start(t)
	if r := do(t, http.MethodGet, s.URL+"/sim/state", ""); r.status != http.StatusNotFound {
		t.Errorf("status %d", r.status)
	}
}
