package extproc

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// linesOf are the headers of a text, one in a line. Every second has its value where older gateways put it.
func linesOf(text string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		h := &corev3.HeaderValue{Key: name, RawValue: []byte(value)}
		if len(m.Headers)%2 == 1 {
			h = &corev3.HeaderValue{Key: name, Value: value}
		}
		m.Headers = append(m.Headers, h)
	}
	return m
}

// FuzzHeaders: whatever headers a request has, those of Tandem's parts end here, each of them and no other, and whatever an
// answer reports is taken only if it can be read.
func FuzzHeaders(f *testing.F) {
	f.Add(":method: POST\n:path: /v1/chat/completions\ncontent-type: application/json\ncontent-length: -1\nx-tandem-pd: force\nx-tandem-pd: auto")
	f.Add("x-prefiller-host-port: 10.0.0.1:8000\nX-Tandem-Plan: remote;id=0123456789abcdef;reason=uncached;strict=1;epp=0.1\nx-kv-cache-x: \nx-tandem-")
	f.Add("x-llm-d-inference-objective: a\nx-gateway-inference-objective: b\nx-llm-d-model-name-rewrite: c\nx-gateway-model-name-rewrite: d\nx-tandem-pdx: e")
	f.Add("te: gzip, Trailers;q=1\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\nx-request-id: \xff\n\n: x")
	f.Add(":status: 200\nx-tandem-pd-decision: remote;reason=uncached;attempts=1;candidate=0\nserver-timing: recv;dur=0.3, first;dur=1e9\nx-tandem-outcome: done;prompt=1;cached=-1;completion=3")
	f.Fuzz(func(t *testing.T, text string) {
		m := linesOf(text)
		h := readHead(m)
		want := 0
		for _, v := range m.GetHeaders() {
			ends := pd.Internal(v.GetKey()) && v.GetKey() != pd.HeaderMode || v.GetKey() == epp.HeaderTarget || v.GetKey() == epp.HeaderTargetOld
			if !ends {
				continue
			}
			if want >= len(h.internal) || h.internal[want] != v.GetKey() {
				t.Fatalf("%q: %q end here, not %q", text, h.internal, v.GetKey())
			}
			want++
		}
		if want != len(h.internal) {
			t.Fatalf("%q: %q end here", text, h.internal)
		}
		var o epp.Outcome
		r := readReport(m, &o)
		if r.status != 0 && (r.status < 100 || r.status > 999) || o.Happened != nil && !r.decided || o.Phases != nil && !r.timed || o.Result != nil && !r.closed {
			t.Fatalf("%q: %+v, %+v", text, r, o)
		}
		for ph := range pd.PhaseEPP + 1 {
			if o.Phases == nil {
				break
			}
			if took, ok := o.Phases.Get(ph); ok && took < 0 {
				t.Fatalf("%q: %v took %v", text, ph, took)
			}
		}
	})
}
