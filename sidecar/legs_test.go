package sidecar

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pd"
)

// The legs change only their controlled members of a body.
func TestLegBodies(t *testing.T) {
	const odd = `"a" : [1e5,0.70, "\u00e9<&>" ],"seed":12345678901234567890,"x":{"b":1,"a":2,"stream":true}`
	cases := []struct{ name, path, body, prefill, decode string }{
		{"chat", chatPath,
			` {"model":"m","messages":[{"role":"user","content":"\ud83d\ude00"}],` + odd + "}\n",
			` {"model":"m","messages":[{"role":"user","content":"\ud83d\ude00"}],` + odd + `,"max_tokens":1,"kv_transfer_params":` + primed + "}\n",
			` {"model":"m","messages":[{"role":"user","content":"\ud83d\ude00"}],` + odd + `,"kv_transfer_params":` + handoffParams + "}\n"},
		{"chat with all limits", chatPath,
			`{"max_tokens": 9 ,"min_tokens":3,"max_completion_tokens":8,"stream":true,"stream_options":{"include_usage":true},"model":"m","messages":[]}`,
			`{"max_tokens": 1 ,"max_completion_tokens":1,"stream":false,"model":"m","messages":[],"kv_transfer_params":` + primed + `}`,
			`{"max_tokens": 9 ,"min_tokens":3,"max_completion_tokens":8,"stream":true,"stream_options":{"include_usage":true},"model":"m","messages":[],"kv_transfer_params":` + handoffParams + `}`},
		{"chat with the newer limit", chatPath,
			`{"model":"m","messages":[],"max_completion_tokens":8}`,
			`{"model":"m","messages":[],"max_completion_tokens":1,"kv_transfer_params":` + primed + `}`,
			`{"model":"m","messages":[],"max_completion_tokens":8,"kv_transfer_params":` + handoffParams + `}`},
		{"completions", completionsPath,
			`{"model":"m","prompt":[1,2,3],"max_tokens":null,"stream":false}`,
			`{"model":"m","prompt":[1,2,3],"max_tokens":1,"stream":false,"kv_transfer_params":` + primed + `}`,
			`{"model":"m","prompt":[1,2,3],"max_tokens":null,"stream":false,"kv_transfer_params":` + handoffParams + `}`},
		{"null params", completionsPath,
			`{"kv_transfer_params":null,"model":"m","prompt":"x","max_tokens":2}`,
			`{"kv_transfer_params":` + primed + `,"model":"m","prompt":"x","max_tokens":1}`,
			`{"kv_transfer_params":` + handoffParams + `,"model":"m","prompt":"x","max_tokens":2}`},
	}
	for _, c := range cases {
		for _, length := range []bool{true, false} {
			t.Run(c.name+"/length="+strconv.FormatBool(length), func(t *testing.T) {
				p := startPool(t)
				body := io.Reader(strings.NewReader(c.body))
				if !length {
					body = io.MultiReader(body)
				}
				resp, err := open(t, within(t), http.MethodPost, p.url+c.path, body, pd.HeaderPrefill, p.prefill.addr)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				p.prefill.mustSee(t, c.prefill)
				p.decode.mustSee(t, c.decode)
				for _, leg := range []*asked{p.prefill.only(t), p.decode.only(t)} {
					if leg.ContentLength != int64(len(leg.body)) || len(leg.TransferEncoding) != 0 {
						t.Errorf("Content-Length %d, encoding %v", leg.ContentLength, leg.TransferEncoding)
					}
				}
			})
		}
	}
}

// A body larger than many segments arrives whole on both legs.
func TestLongBody(t *testing.T) {
	p := startPool(t)
	long := strings.Repeat("0123456789abcdef", 3<<20/16)
	for i, length := range []bool{true, false} {
		body := io.Reader(strings.NewReader(`{"model":"m","prompt":"` + long + `"}`))
		if !length {
			body = io.MultiReader(body)
		}
		resp, err := open(t, within(t), http.MethodPost, p.url+completionsPath, body, pd.HeaderPrefill, p.prefill.addr)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := p.prefill.requests()[i].body; got != `{"model":"m","prompt":"`+long+`","max_tokens":1,"kv_transfer_params":`+primed+`}` {
			t.Errorf("prefill got %d bytes, %s", len(got), tail(got))
		}
		if got := p.decode.requests()[i].body; got != `{"model":"m","prompt":"`+long+`","kv_transfer_params":`+handoffParams+`}` {
			t.Errorf("decode got %d bytes, %s", len(got), tail(got))
		}
	}
}

// internalHeaders has one header of each family that must not reach an engine.
var internalHeaders = []string{"X-Tandem-Auth", "X-Tandem-Other", "X-Prefiller-Url", "X-Encoder-Hosts-Ports", "X-Kv-Cache-Hit", "X-Data-Parallel-Host-Port", "X-Gateway-Destination-Endpoint"}

func TestLegHeaders(t *testing.T) {
	p := startPool(t)
	const uri = completionsPath + "?a=%2Fb;c&&d"
	header := []string{pd.HeaderPrefill, p.prefill.addr, pd.HeaderPlan, remotePlan, pd.HeaderMode, "auto", "X-Request-Id", "call-1", "X-Request-Id", "call-2",
		"Accept-Encoding", "br;q=1", "Authorization", "Bearer x", "X-Mine", "1", "X-Mine", "2", "Connection", "X-Hop", "X-Hop", "1", "Keep-Alive", "1",
		"Proxy-Authorization", "secret", "TE", "trailers", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "User-Agent", "mine/1"}
	for _, name := range internalHeaders {
		header = append(header, name, "x")
	}
	got := post(t, p.url+uri, ask(false).body, header...)
	got.mustBe(t, 200, "remote;reason=uncached;attempts=1;candidate=0")
	if id := got.header["X-Request-Id"]; !slices.Equal(id, []string{"call-1"}) {
		t.Errorf("the answer's request id is %v", id)
	}
	for name, leg := range map[string]*asked{"prefill": p.prefill.only(t), "decode": p.decode.only(t)} {
		t.Run(name, func(t *testing.T) {
			if leg.RequestURI != uri {
				t.Errorf("URI %s", leg.RequestURI)
			}
			encoding := map[string]string{"prefill": "identity", "decode": "br;q=1"}[name]
			for name, want := range map[string][]string{"X-Request-Id": {"call-1"}, "Accept-Encoding": {encoding}, "Authorization": {"Bearer x"}, "X-Mine": {"1", "2"},
				"Content-Type": {"application/json"}, "Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "User-Agent": {"mine/1"}} {
				if got := leg.Header[name]; !slices.Equal(got, want) {
					t.Errorf("%s is %v, want %v", name, got, want)
				}
			}
			for got := range leg.Header {
				if pd.Internal(got) || slices.Contains([]string{"X-Hop", "Connection", "Keep-Alive", "Proxy-Authorization", "Te"}, got) {
					t.Errorf("the engine got %s", got)
				}
			}
		})
	}
}

func TestRequestIDIsMade(t *testing.T) {
	p := startPool(t)
	for name, header := range map[string][]string{"none": nil, "insane": {"X-Request-Id", "a b"}, "too long": {"X-Request-Id", strings.Repeat("a", 129)}} {
		for way, candidate := range map[string][]string{"local": nil, "remote": {pd.HeaderPrefill, p.prefill.addr}} {
			got := post(t, p.url+completionsPath, ask(false).body, append(candidate, header...)...)
			id := got.header.Get("X-Request-Id")
			if len(id) != 32 || len(got.header["X-Request-Id"]) != 1 {
				t.Errorf("%s, %s: id %v", name, way, got.header["X-Request-Id"])
			}
			seen := p.decode.requests()
			if leg := seen[len(seen)-1].Header["X-Request-Id"]; !slices.Equal(leg, []string{id}) {
				t.Errorf("%s, %s: decode got id %v, the client %s", name, way, leg, id)
			}
		}
	}
}

// An engine's answer headers reach the client unchanged, but for those that only Tandem may write.
func TestAnswerHeaders(t *testing.T) {
	engine := says(200, "application/json", wholeAnswer, "Server-Timing", "e;dur=1", "X-Tandem-Retry", "1", "X-Tandem-Pd-Decision", "remote;reason=always",
		"X-Prefiller-Host-Port", "x", "X-Request-Id", "theirs", "Connection", "X-Hop", "X-Hop", "1", "Keep-Alive", "x", "X-Mine", "1", "X-Mine", "2", "Set-Cookie", "a=b")
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			s, header := serve(t, way, handoffParams, engine)
			got := post(t, s.url+completionsPath, ask(false).body, append(header, "X-Request-Id", "mine")...)
			if got.status != 200 || got.body != wholeAnswer {
				t.Errorf("%d %s", got.status, got.body)
			}
			for name, want := range map[string][]string{"X-Request-Id": {"mine"}, "X-Mine": {"1", "2"}, "Set-Cookie": {"a=b"}, "X-Hop": nil, "Keep-Alive": nil,
				"X-Tandem-Retry": nil, "X-Prefiller-Host-Port": nil, "Content-Length": {strconv.Itoa(len(wholeAnswer))}} {
				if got := got.header[name]; !slices.Equal(got, want) {
					t.Errorf("%s is %v, want %v", name, got, want)
				}
			}
			if timing := got.header["Server-Timing"]; len(timing) != 1 || strings.Contains(timing[0], "e;") {
				t.Errorf("Server-Timing %v", timing)
			}
			if d := got.header[http.CanonicalHeaderKey(pd.HeaderDecision)]; len(d) != 1 || !strings.HasPrefix(d[0], name) {
				t.Errorf("decision %v", d)
			}
		})
	}
}

// recorder collects the spans of a sidecar.
func recorder(t *testing.T) (*tracetest.InMemoryExporter, option) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	t.Cleanup(func() {
		if err := provider.Shutdown(within(t)); err != nil {
			t.Error(err)
		}
	})
	return spans, traced(provider.Tracer("test"))
}

func attributes(s tracetest.SpanStub) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

// The span of each leg is a child of the call's span, which is a child of the caller's.
func TestSpans(t *testing.T) {
	spans, o := recorder(t)
	p := startPool(t, o)
	const caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	post(t, p.url+completionsPath, ask(false).body, pd.HeaderPrefill, refusingAddr(t)+","+p.prefill.addr, pd.HeaderPlan, remotePlan, "Traceparent", caller).
		mustBe(t, 200, "remote;reason=uncached;attempts=2;candidate=1")
	p.end()
	byName := map[string][]tracetest.SpanStub{}
	for _, s := range spans.GetSpans() {
		byName[s.Name] = append(byName[s.Name], s)
	}
	if len(byName["sidecar.request"]) != 1 || len(byName["prefill"]) != 2 || len(byName["decode"]) != 1 {
		t.Fatalf("spans %v", byName)
	}
	call := byName["sidecar.request"][0]
	if call.SpanKind != trace.SpanKindServer || call.SpanContext.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || call.Parent.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("the call's span is %v under %v", call.SpanContext, call.Parent)
	}
	for name, want := range map[string]string{"tandem.pd.mode": "auto", "tandem.pd.plan": "remote", "tandem.pd.decision": "remote", "tandem.pd.reason": "uncached",
		"tandem.endpoint.prefill": p.prefill.addr, "tandem.tokens.prompt": "40", "tandem.tokens.completion": "1", "tandem.handoff.blocks": "3", "http.response.status_code": "200"} {
		if got := attributes(call)[name]; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, phase := range []string{"recv", "prefill", "handoff", "first", "decode"} {
		if attributes(call)["tandem.phase."+phase+"_ms"] == "" {
			t.Errorf("no time for phase %s", phase)
		}
	}
	for _, leg := range slices.Concat(byName["prefill"], byName["decode"]) {
		if leg.Parent.SpanID() != call.SpanContext.SpanID() || leg.SpanKind != trace.SpanKindClient {
			t.Errorf("%s is under %v", leg.Name, leg.Parent)
		}
	}
	if got := p.prefill.only(t).Header.Get("Traceparent"); !strings.Contains(got, byName["prefill"][1].SpanContext.SpanID().String()) {
		t.Errorf("prefill got %s", got)
	}
	if got := p.decode.only(t).Header.Get("Traceparent"); !strings.Contains(got, byName["decode"][0].SpanContext.SpanID().String()) {
		t.Errorf("decode got %s", got)
	}
	if attributes(byName["prefill"][0])["tandem.attempt"] != "1" || attributes(byName["prefill"][1])["tandem.attempt"] != "2" {
		t.Error("attempts are not counted")
	}
}

// An aborted answer ends all of its spans too.
func TestSpansOfBrokenAnswers(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			spans, o := recorder(t)
			s, header := serve(t, way, handoffParams, breaks("application/json", wholeAnswer), o)
			if got := post(t, s.url+completionsPath, ask(false).body, header...); got.err == nil {
				t.Errorf("half an answer looks whole: %s", got.body)
			}
			s.end()
			names := map[string]int{}
			for _, s := range spans.GetSpans() {
				names[s.Name]++
			}
			if names["sidecar.request"] != 1 || names["decode"] != 1 {
				t.Errorf("spans %v", names)
			}
		})
	}
}
