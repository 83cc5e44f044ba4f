package extproc

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

// linesOf returns the headers of a text, one in a line. Every second has its value where older gateways put it.
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
		h := readHead(m, 0)
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

func TestReport(t *testing.T) {
	headers := []string{pd.HeaderDecision, "local;reason=prefill-failed;attempts=2;candidate=1",
		pd.HeaderTiming, "epp;dur=0.5, recv;dur=1, prefill;dur=20, first;dur=3"}
	trailers := []string{pd.HeaderTiming, "decode;dur=300", pd.HeaderOutcome, "done;prompt=40;cached=39;completion=2", "x-mine", "1"}
	for _, c := range []struct {
		name    string
		te      string
		headers []string
		trailer []string
		removed []string
		phases  string
		result  string
	}{
		{"client takes no trailers", "", headers, trailers, []string{pd.HeaderTiming, pd.HeaderOutcome}, "epp recv prefill first decode",
			"done;prompt=40;cached=39;completion=2"},
		{"client takes trailers", "gzip;q=0.5, Trailers", headers, trailers, nil, "epp recv prefill first decode",
			"done;prompt=40;cached=39;completion=2"},
		{"trailers of others stay", "", headers, []string{"x-mine", "1"}, nil, "epp recv prefill first", ""},
		{"not a stream", "", append(slices.Clone(headers), pd.HeaderOutcome, "done;prompt=4"), nil, nil, "epp recv prefill first", "done;prompt=4"},
		{"garbage", "", []string{pd.HeaderDecision, "x", pd.HeaderTiming, "recv;dur=-1"}, []string{pd.HeaderOutcome, "?", pd.HeaderTiming, "decode"},
			[]string{pd.HeaderTiming, pd.HeaderOutcome}, "", ""},
	} {
		for _, mark := range []client.Mark{"", client.MarkAcct} {
			t.Run(c.name+" "+string(mark), func(t *testing.T) {
				r := startRig(t, remotePool())
				s := r.open(t, mark)
				var te []string
				if c.te != "" {
					te = []string{"te", c.te}
				}
				if mark == client.MarkAcct {
					s.send(chat(ends, append(te, pd.HeaderPlan, "remote;id=0123456789abcdef;reason=uncached;strict=0;epp=0.5")...))
					s.recv()
				} else {
					s.decide(te...)
				}
				s.send(responseHeaders(more, c.headers...))
				s.recv()
				if c.trailer != nil {
					s.send(responseTrailers(c.trailer...))
					m := mutationOf(s.recv())
					if !slices.Equal(m.GetRemoveHeaders(), c.removed) || len(m.GetSetHeaders()) > 0 {
						t.Errorf("trailers changed by %v, want %v removed", m, c.removed)
					}
				}
				s.mustFinish()
				all := r.outcomes(t)
				if len(all) != 1 {
					t.Fatalf("outcomes %+v", all)
				}
				if got := phasesOf(all[0].Phases); got != c.phases {
					t.Errorf("phases %q, want %q", got, c.phases)
				}
				result := ""
				if all[0].Result != nil {
					result = all[0].Result.String()
				}
				if result != c.result {
					t.Errorf("result %q, want %q", result, c.result)
				}
				decision, reason := "local", "prefill-failed"
				if c.name == "garbage" {
					decision, reason = "remote", "uncached" // what was planned
				}
				r.mustMetric(t, 1, "tandem_requests_total", "decision", decision, "reason", reason, "code", "200")
			})
		}
	}
}

func phasesOf(p *pd.Phases) string {
	if p == nil {
		return ""
	}
	var names []string
	for _, ph := range []pd.Phase{pd.PhaseEPP, pd.PhaseRecv, pd.PhasePrefill, pd.PhaseHandoff, pd.PhaseFirst, pd.PhaseDecode} {
		if took, ok := p.Get(ph); ok && took > 0 && took < time.Minute {
			names = append(names, ph.String())
		}
	}
	return strings.Join(names, " ")
}

func TestSubsetHint(t *testing.T) {
	str := structpb.NewStringValue
	list := func(all ...string) *structpb.Value {
		l := &structpb.ListValue{}
		for _, a := range all {
			l.Values = append(l.Values, str(a))
		}
		return structpb.NewListValue(l)
	}

	for _, c := range []struct {
		name string
		hint *structpb.Value // nil: none
		off  bool
		want string // the endpoints that are in the subset
	}{
		{"none", nil, false, "ab"},
		{"string", str(a), false, "a"},
		{"comma list with blanks", str(" " + a + " , " + b + ","), false, "ab"},
		{"list", list(a), false, "a"},
		{"list of two", list(b, a), false, "ab"},
		{"another port", list("10.0.0.1:8001"), false, ""},
		{"empty string", str(""), false, ""},
		{"empty list", list(), false, ""},
		{"null", structpb.NewNullValue(), false, ""},
		{"number", structpb.NewNumberValue(1), false, ""},
		{"garbage", list("x", "://"), false, ""},
		{"not obeyed", list(a), true, "ab"},
	} {
		for _, on := range []string{"headers", "body", "trailers"} {
			t.Run(c.name+" on "+on, func(t *testing.T) {
				p := newPool(a, b)
				var got string
				p.choose = func(r *epp.Request) (*epp.Decision, error) {
					for i, e := range p.endpoints {
						if r.Subset.Has(e.Addr) {
							got += string(rune('a' + i))
						}
					}
					return p.local(r, p.endpoints[0])
				}
				r := startRig(t, p, setting(func(cfg *Config) { cfg.Subset = !c.off }))
				fs := map[string]*procv3.ProcessingRequest{"headers": chat(more), "body": requestBody(more, prompt), "trailers": requestTrailers()}
				if c.hint != nil {
					with(fs[on], epp.NamespaceSubset, epp.HeaderSubset, c.hint)
				}
				s := r.open(t, client.MarkPicker)
				s.send(fs["headers"], fs["body"], fs["trailers"])
				if _, err := s.rest(); err != nil {
					t.Error(err)
				}
				if got != c.want {
					t.Errorf("subset %q, want %q", got, c.want)
				}
			})
		}
	}
}
