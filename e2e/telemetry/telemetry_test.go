package telemetry

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"testing"

	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/otlp"
	"github.com/tandem-serving/tandem/pd"
)

// TestTelemetry follows requests from the client's traceparent to both engines, through every front, with and without
// Envoy's own tracer, by what a real OTLP receiver gets.
func TestTelemetry(t *testing.T) {
	for _, c := range []struct {
		harness.Layout
		tracer bool // the proxy makes spans too
	}{
		{harness.Layout{Proxy: "gateway", Mode: "pair"}, false},
		{harness.Layout{Proxy: "envoy", Mode: "pair"}, false}, {harness.Layout{Proxy: "envoy", Mode: "single"}, false},
		{harness.Layout{Proxy: "envoy", Mode: "pair"}, true}, {harness.Layout{Proxy: "envoy", Mode: "single"}, true},
	} {
		name := c.Layout.String()
		if c.tracer {
			name += " traced"
		}
		t.Run(name, func(t *testing.T) { testTelemetry(t, c.Layout, c.tracer) })
	}
}

// journey is a request, and what its trace has to tell.
type journey struct {
	name   string
	call   harness.Call
	body   string // instead of the call's
	mode   string
	bare   bool // the client sends no traceparent
	leaves bool // the client leaves once the answer has begun
	status int
	legs   []string // spans under the sidecar's; nil: it never got there
	want   string   // decision
	plan   string   // what the picker chose; empty: it refused
}

func journeys(f *harness.TappedFleet) []journey {
	short := func() harness.Call { return f.TokensCall(harness.Threshold/2, false) }
	long := func(stream bool) harness.Call { return f.TokensCall(2*harness.Threshold, stream) }
	batch, doubted, endless := long(false), short(), long(true)
	batch.Members = map[string]any{"prompt": [][]int{f.Fresh(20), f.Fresh(30)}}
	doubted.Members = map[string]any{"max_tokens": -1}
	endless.Tokens = harness.WholeModel
	both, decode := []string{"prefill", "decode"}, []string{"decode"}
	failed := []string{"prefill", "prefill", "decode"}
	return []journey{
		{name: "remote", call: long(false), status: 200, legs: both, want: "remote;reason=uncached", plan: "remote"},
		{name: "stream", call: long(true), status: 200, legs: both, want: "remote;reason=uncached", plan: "remote"},
		{name: "forced", call: f.TokensCall(harness.Threshold/2, true), mode: "force", status: 200, legs: both,
			want: "remote;reason=forced", plan: "remote"},
		// An id of Envoy's own form, which it is not to alter.
		{name: "0f8fad5b-d9cb-469f-a165-70867728950e", call: short(), status: 200, legs: decode,
			want: "local;reason=short-prompt", plan: "local"},
		{name: "bypassed", call: long(true), mode: "bypass", status: 200, legs: decode,
			want: "local;reason=bypassed", plan: "local"},
		{name: "fault-prefill", call: long(false), status: 200, legs: failed,
			want: "local;reason=prefill-failed", plan: "remote"},
		{name: "left", call: endless, leaves: true, status: 200, legs: both, want: "remote;reason=uncached", plan: "remote"},
		{name: "engine-refuses", call: doubted, status: 400, legs: decode, want: "local;reason=not-splittable", plan: "local"},
		{name: "bad-mode", call: short(), mode: "perhaps", status: 400, want: "refused;reason=bad-pd-header"},
		{name: "not-splittable", call: batch, mode: "force", status: 400, want: "refused;reason=not-splittable"},
		{name: "twice", body: `{"model":"m","prompt":"a","prompt":"b"}`, call: short(), status: 400,
			want: "refused;reason=duplicate-key"},
		{name: "bare", call: long(false), bare: true, status: 200, legs: both, want: "remote;reason=uncached", plan: "remote"},
		{name: "bare-bad-mode", call: short(), mode: "perhaps", bare: true, status: 400, want: "refused;reason=bad-pd-header"},
	}
}

const (
	clientSpan   = "00f067aa0ba902b7" // the client's own, in all of its traces
	vendor       = "vendor=1"         // what it says besides
	untraced     = "ffffffffffffffffffffffffffffffff"
	odd          = "dddddddddddddddddddddddddddddddd"
	proxyService = "tandem-gateway"
)

func testTelemetry(t *testing.T, l harness.Layout, tracer bool) {
	r := harness.StartReceiver(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+r.Addr()) // all programs inherit it
	f := harness.NewTappedFleet(t, 2)
	for _, e := range f.Prefill {
		e.Fault(t, `{"leg":"prefill","fault":"status","arg":"500","match":"fault-prefill"}`)
	}
	f.StartPicker(t)
	var flags []string
	if tracer {
		flags = []string{"--otlp=" + r.Addr()}
	}
	f.StartFront(t, l, flags...)
	all := journeys(f)
	for i, j := range all {
		j.travel(t, f, fmt.Sprintf("%032x", i+1))
	}
	travelUntraced(t, f)
	if tracer {
		awaitProxy(t, r, f, len(all))
	} else { // Envoy's own spans say what the client said as it is, and would be lost
		travelOddly(t, f)
	}
	f.Fleet.Decode[0].Sidecar.MustStop(t) // what is left of the traces is sent at the end
	f.Pickers[0].MustStop(t)
	for i, j := range all {
		t.Run(j.name, func(t *testing.T) {
			id := fmt.Sprintf("%032x", i+1)
			if j.bare {
				id = traceOf(r, j.name)
			}
			tr := travelled{journey: j, fleet: f, spans: r.Of(id), traceID: id}
			tr.mustBeginRight(t, tracer)
			tr.mustTellOfThePick(t)
			tr.mustTellOfTheLegs(t)
		})
	}
	if spans := r.Of(odd); !tracer && len(spans) != 4 {
		t.Errorf("%d spans of a request with an odd id", len(spans))
	}
	if spans := r.Of(untraced); len(spans) > 0 {
		t.Errorf("%d spans of a client that chose not to be traced", len(spans))
	}
}

// travel sends the request.
func (j journey) travel(t *testing.T, f *harness.TappedFleet, traceID string) {
	t.Helper()
	q := j.call
	q.Header = map[string]string{pd.HeaderRequestID: j.name}
	if j.mode != "" {
		q.Header[pd.HeaderMode] = j.mode
	}
	if !j.bare {
		q.Header["traceparent"], q.Header["tracestate"] = "00-"+traceID+"-"+clientSpan+"-01", vendor
	}
	body := q.Body(f.Model)
	if j.body != "" {
		body = []byte(j.body)
	}
	if j.leaves {
		leave(t, f.Fleet, q)
		return
	}
	got, err := q.SendBody(harness.Within(t), f.Front.Addr, body)
	if err != nil || got.Status != j.status || harness.Planned(got) != j.want {
		t.Errorf("%s: status %d, decision %q, error %v, want %d %q", j.name, got.Status, harness.Planned(got), err, j.status, j.want)
	}
}

// leave reads the beginning of an answer and goes.
func leave(t *testing.T, f *harness.Fleet, q harness.Call) {
	t.Helper()
	ctx, cancel := context.WithCancel(harness.Within(t))
	defer cancel()
	resp, err := f.Open(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := resp.Body.Read(make([]byte, 1)); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the stream did not begin: status %d, %v", resp.StatusCode, err)
	}
}

// travelUntraced is a request that its client does not want to be traced: the engines are told so too.
func travelUntraced(t *testing.T, f *harness.TappedFleet) {
	t.Helper()
	q := f.TokensCall(2*harness.Threshold, false)
	q.Header = map[string]string{pd.HeaderRequestID: "untraced", "traceparent": "00-" + untraced + "-" + clientSpan + "-00"}
	if got := f.Send(t, q); got.Status != http.StatusOK {
		t.Errorf("untraced: status %d %s", got.Status, got.Body)
	}
	for leg, seen := range legsOf(f, "untraced") {
		parent := seen.Header.Get("Traceparent")
		if !strings.HasPrefix(parent, "00-"+untraced) || !strings.HasSuffix(parent, "-00") {
			t.Errorf("%s of an untraced request has traceparent %q", leg, parent)
		}
	}
}

// travelOddly is a request whose id is no text: no span may say so, since its whole batch would be lost.
func travelOddly(t *testing.T, f *harness.TappedFleet) {
	t.Helper()
	q := f.TokensCall(2*harness.Threshold, false)
	q.Header = map[string]string{pd.HeaderRequestID: "odd \xff", "traceparent": "00-" + odd + "-" + clientSpan + "-01"}
	if got := f.Send(t, q); got.Status != http.StatusOK {
		t.Errorf("odd: status %d %s", got.Status, got.Body)
	}
}

// legsOf returns the requests that reached engines under a request id, and the name of their leg.
func legsOf(f *harness.TappedFleet, id string) iter.Seq2[string, harness.Tapped] {
	return func(yield func(string, harness.Tapped) bool) {
		for _, e := range f.Prefill {
			for _, r := range e.Tap.Seen(id) {
				if !yield("prefill", r) {
					return
				}
			}
		}
		for _, r := range f.Decode[0].Tap.Seen(id) {
			if !yield("decode", r) {
				return
			}
		}
	}
}

// awaitProxy waits for the spans of the proxy, which sends them in its own time.
func awaitProxy(t *testing.T, r *otlp.Receiver, f *harness.TappedFleet, requests int) {
	t.Helper()
	f.Eventually(t, "the proxy's spans", func() (string, bool) {
		n := 0
		for _, s := range r.Spans() {
			if ofProxy(s) {
				n++
			}
		}
		return fmt.Sprintf("%d of %d", n, requests), n >= requests
	})
}

// traceOf returns the trace of the request with an id.
func traceOf(r *otlp.Receiver, id string) string {
	for _, s := range r.Spans() {
		if s.Attributes()["tandem.request_id"].GetStringValue() == id {
			return hex.EncodeToString(s.TraceId)
		}
	}
	return ""
}

// travelled is a journey with its spans.
type travelled struct {
	journey
	fleet   *harness.TappedFleet
	traceID string
	spans   []otlp.Span
}

// named returns the spans of a name.
func (j travelled) named(name string) (spans []otlp.Span) {
	for _, s := range j.spans {
		if s.Name == name {
			spans = append(spans, s)
		}
	}
	return spans
}

// only returns the one span of a name and a service.
func (j travelled) only(t *testing.T, name, service string, kind trace.Span_SpanKind) otlp.Span {
	t.Helper()
	spans := j.named(name)
	if len(spans) != 1 {
		t.Fatalf("%d spans %s among %v", len(spans), name, j)
	}
	if spans[0].Service != service || spans[0].Kind != kind {
		t.Errorf("span %s is %v of %q", name, spans[0].Kind, spans[0].Service)
	}
	return spans[0]
}

// String lists the spans.
func (j travelled) String() string {
	var b strings.Builder
	for _, s := range j.spans {
		fmt.Fprintf(&b, "\n%x under %-16x %v %s %q", s.SpanId, s.ParentSpanId, s.Kind, s.Service, s.Name)
	}
	return b.String()
}

// mustBeginRight is about who is whose parent: from the client to the two parts of ours.
func (j travelled) mustBeginRight(t *testing.T, tracer bool) {
	t.Helper()
	client := clientSpan
	if j.bare {
		client = ""
	}
	pick := j.only(t, "epp.pick", "tandem-epp", trace.Span_SPAN_KIND_SERVER)
	pickParent, requestParent := client, client
	if tracer {
		in := slices.IndexFunc(j.spans, ofProxy)
		out := slices.IndexFunc(j.spans, func(s otlp.Span) bool { return id(s.SpanId) == id(pick.ParentSpanId) })
		if in < 0 || out < 0 {
			t.Fatalf("the proxy's span, or the one that the pick belongs to, is not among %v", j)
		}
		if got := id(j.spans[in].ParentSpanId); got != client {
			t.Errorf("the proxy's span is under %q, want the client's %q", got, client)
		}
		requestParent = id(j.spans[in].SpanId)
		asks := j.spans[out]
		pickParent = id(asks.SpanId)
		if asks.Service != proxyService || asks.Kind != trace.Span_SPAN_KIND_CLIENT || id(asks.ParentSpanId) != requestParent {
			t.Errorf("the pick is under %v %q of %q", asks.Kind, asks.Name, asks.Service)
		}
	} else if j.bare {
		requestParent = id(pick.SpanId)
	}
	if got := id(pick.ParentSpanId); got != pickParent {
		t.Errorf("epp.pick is under %q, want %q, in %v", got, pickParent, j)
	}
	if j.legs == nil {
		if spans := j.named("sidecar.request"); len(spans) > 0 {
			t.Errorf("a refused request has %d spans of the sidecar", len(spans))
		}
		return
	}
	request := j.only(t, "sidecar.request", "tandem-sidecar", trace.Span_SPAN_KIND_SERVER)
	if got := id(request.ParentSpanId); got != requestParent {
		t.Errorf("sidecar.request is under %q, want %q, in %v", got, requestParent, j)
	}
}

// ofProxy says whether it is the proxy's own span of a request.
func ofProxy(s otlp.Span) bool {
	return s.Service == proxyService && s.Kind == trace.Span_SPAN_KIND_SERVER
}

func id(b []byte) string { return hex.EncodeToString(b) }

// mustTellOfThePick is about what the picker's span says.
func (j travelled) mustTellOfThePick(t *testing.T) {
	t.Helper()
	pick := j.only(t, "epp.pick", "tandem-epp", trace.Span_SPAN_KIND_SERVER)
	attrs := pick.Attributes()
	want := map[string]string{"tandem.request_id": j.name}
	if j.plan == "" {
		if got := attrs["http.response.status_code"].GetIntValue(); got != int64(j.status) {
			t.Errorf("epp.pick has status %d, want %d", got, j.status)
		}
		want["tandem.pd.decision"], want["tandem.pd.reason"], _ = strings.Cut(j.want, ";reason=")
		if pick.Status.GetCode() != trace.Status_STATUS_CODE_ERROR {
			t.Error("the span of a refusal is not marked as failed")
		}
	} else {
		want["tandem.pd.mode"], want["tandem.pd.plan"] = cmp.Or(j.mode, "auto"), j.plan
		want["tandem.endpoint.decode"] = j.fleet.Fleet.Decode[0].Addr()
		j.mustCount(t, pick, "prompt", len(j.call.Prompt))
		j.mustCount(t, pick, "cached", 0)
		if took, length := attrs["tandem.phase.epp_ms"].GetDoubleValue(), harness.Milliseconds(pick.Span); took <= 0 || took > length {
			t.Errorf("the pick took %v ms of a span of %v ms", took, length)
		}
	}
	mustSay(t, pick, want)
	if _, ok := attrs["tandem.endpoint.prefill"]; ok != (j.plan == "remote") {
		t.Errorf("epp.pick names a prefill pod: %v", ok)
	}
}

// mustTellOfTheLegs is about the sidecar's spans, and what the engines were told of them.
func (j travelled) mustTellOfTheLegs(t *testing.T) {
	t.Helper()
	if j.legs == nil {
		return
	}
	request := j.only(t, "sidecar.request", "tandem-sidecar", trace.Span_SPAN_KIND_SERVER)
	harness.MustAddUp(t, request.Span)
	decision, reason, _ := strings.Cut(j.want, ";reason=")
	mustSay(t, request, map[string]string{
		"tandem.request_id": j.name, "tandem.pd.mode": cmp.Or(j.mode, "auto"), "tandem.pd.plan": j.plan,
		"tandem.pd.decision": decision, "tandem.pd.reason": reason, "tandem.endpoint.decode": j.fleet.Fleet.Decode[0].Addr(),
	})
	attrs := request.Attributes()
	if j.status == http.StatusOK && !j.leaves {
		j.mustCount(t, request, "prompt", len(j.call.Prompt))
		j.mustCount(t, request, "completion", j.call.Tokens)
	}
	if decision == "remote" {
		mustSay(t, request, map[string]string{"tandem.release.way": "none"})
		if blocks := attrs["tandem.handoff.blocks"].GetIntValue(); blocks <= 0 {
			t.Errorf("%d blocks were handed off", blocks)
		}
		if age := attrs["tandem.handoff.age_ms"].GetDoubleValue(); age <= 0 {
			t.Errorf("the hand-off was %v ms old", age)
		}
	}
	var legs []string
	carried := map[string]string{} // traceparent that a leg has to carry → its name
	var last uint64
	for _, s := range j.spans {
		if s.Name != "prefill" && s.Name != "decode" {
			continue
		}
		legs = append(legs, s.Name)
		carried["00-"+j.traceID+"-"+id(s.SpanId)+"-01"] = s.Name
		if s.Service != "tandem-sidecar" || s.Kind != trace.Span_SPAN_KIND_CLIENT || id(s.ParentSpanId) != id(request.SpanId) {
			t.Errorf("%s is not a leg under the sidecar's span in %v", s.Name, j)
		}
		if attempt := s.Attributes()["tandem.attempt"].GetIntValue(); s.Name == "prefill" && attempt != int64(len(legs)) {
			t.Errorf("prefill %d is attempt %d", len(legs), attempt)
		}
		if s.StartTimeUnixNano < last || s.EndTimeUnixNano > request.EndTimeUnixNano {
			t.Errorf("%s does not follow the leg before, or ends after the request", s.Name)
		}
		last = s.EndTimeUnixNano
	}
	if !slices.Equal(legs, j.legs) {
		t.Errorf("legs %q, want %q", legs, j.legs)
	}
	for leg, seen := range legsOf(j.fleet, j.name) {
		parent := seen.Header.Get("Traceparent")
		if carried[parent] != leg {
			t.Errorf("%s carries %q, which is no span of it", leg, parent)
		}
		delete(carried, parent)
		if state := seen.Header.Get("Tracestate"); !j.bare && state != vendor {
			t.Errorf("%s carries tracestate %q", leg, state)
		}
	}
	if len(carried) > 0 {
		t.Errorf("no engine was told of %v", carried)
	}
}

func (j travelled) mustCount(t *testing.T, s otlp.Span, what string, want int) {
	t.Helper()
	if v, ok := s.Attributes()["tandem.tokens."+what]; !ok || v.GetIntValue() != int64(want) {
		t.Errorf("%s has %v %s tokens, want %d", s.Name, v, what, want)
	}
}

func mustSay(t *testing.T, s otlp.Span, want map[string]string) {
	t.Helper()
	attrs := s.Attributes()
	for name, want := range want {
		if got := attrs[name].GetStringValue(); got != want {
			t.Errorf("%s of %s is %q, want %q", name, s.Name, got, want)
		}
	}
}
