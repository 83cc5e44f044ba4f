package sidecar

import (
	"io"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// exemplars returns the traces that a histogram's buckets name.
func (r *rig) exemplars(t *testing.T, name string) (traces []string) {
	t.Helper()
	r.busy.Wait()
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, b := range m.GetHistogram().GetBucket() {
				if e := b.GetExemplar(); f.GetName() == name && e != nil {
					traces = append(traces, e.GetLabel()[0].GetName()+"="+e.GetLabel()[0].GetValue())
				}
			}
		}
	}
	return traces
}

// What clients see is measured by decision, with the trace of one of them.
func TestLatencyMetrics(t *testing.T) {
	const usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":2}}\n\n"
	const parent, trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "trace_id=0af7651916cd43dd8448eb211c80319c"
	answer := func(read gate) act { // the second token comes after the client has the first one
		return then(streams(firstEvent), read.act, streams(secondEvent+usage+doneEvent))
	}
	for _, c := range []struct{ name, decision string }{{"local", "local"}, {"remote", "remote"}} {
		t.Run(c.name, func(t *testing.T) {
			read := newGate()
			prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, answer(read))
			_, recording := recorder(t)
			s := startRig(t, decode.addr, recording)
			header := []string{"Traceparent", parent}
			if c.decision == "remote" {
				header = append(header, pd.HeaderPrefill, prefill.addr)
			}
			resp := mustOpen(t, s.url+completionsPath, ask(true).body, header...)
			if _, err := io.ReadFull(resp.Body, make([]byte, len(firstEvent))); err != nil {
				t.Fatal(err)
			}
			read.open(nil, nil)
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"tandem_ttft_seconds", "tandem_itl_seconds", "tandem_e2e_seconds"} {
				s.mustCount(t, 1, name, "decision", c.decision)
				s.mustCount(t, 1, name)
				if got := s.exemplars(t, name); len(got) != 1 || got[0] != trace {
					t.Errorf("exemplars of %s: %q, want %s", name, got, trace)
				}
			}
			s.mustCount(t, 1, "tandem_request_tokens", "decision", c.decision, "kind", tokensPrompt)
			s.mustCount(t, 1, "tandem_request_tokens", "decision", c.decision, "kind", tokensCompletion)
		})
	}
}

// Only complete answers have an end-to-end time, and only streams a first token: errors, which are fast, would hide slow
// answers.
func TestLatencyIgnoresErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		stream bool
		answer act
		ttft   float64
		e2e    float64
	}{
		{"a whole answer", false, says(200, "application/json", wholeAnswer), 0, 1},
		{"a stream", true, streams(wholeStream), 1, 1},
		{"an error", false, says(500, "application/json", `{"error":{}}`), 0, 0},
		{"a stream that begins with an error", true, streams(errorEvent, doneEvent), 0, 0},
		{"a stream that breaks off", true, then(streams(firstEvent), closes), 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startRig(t, startEngine(t, c.answer).addr)
			post(t, s.url+completionsPath, ask(c.stream).body)
			s.mustCount(t, c.ttft, "tandem_ttft_seconds")
			s.mustCount(t, c.e2e, "tandem_e2e_seconds")
			if got := s.exemplars(t, "tandem_e2e_seconds"); got != nil {
				t.Errorf("exemplars without a trace: %q", got)
			}
		})
	}
}

// Each hand-off is counted for the pod that it came from, by what became of it.
func TestLinkMetrics(t *testing.T) {
	good, bad := startEngine(t, offering(handoffParams)), startEngine(t, says(500, "text/plain", ""))
	q := ask(true)
	decode := startEngine(t, q.answer(), says(500, "text/plain", ""), q.answer())
	s := startRig(t, decode.addr, set(func(c *Config) { c.Prefill.BlockBytes = 1 << 20 }))
	candidates := strings.Join([]string{bad.addr, good.addr}, ",")
	post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, candidates).mustBe(t, 200, "remote;reason=external;attempts=2;candidate=1")
	post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, good.addr).mustBe(t, 200, transferFailed)
	s.mustCount(t, 1, "tandem_kv_link_handoffs_total", "prefill", bad.addr, "result", "prefill-failed")
	s.mustCount(t, 1, "tandem_kv_link_handoffs_total", "prefill", good.addr, "result", "read")
	s.mustCount(t, 1, "tandem_kv_link_handoffs_total", "prefill", good.addr, "result", "failed")
	s.mustCount(t, 3, "tandem_kv_link_blocks_total", "prefill", good.addr)
	s.mustCount(t, 3<<20, "tandem_kv_link_bytes_total", "prefill", good.addr)
	s.mustCount(t, 0, "tandem_kv_link_blocks_total", "prefill", bad.addr)
}
