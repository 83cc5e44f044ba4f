package extproc

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// ask sends a complete request on a stream and returns the first answer.
func (r *rig) ask(t testing.TB, headers *procv3.ProcessingRequest) *procv3.ProcessingResponse {
	t.Helper()
	s := r.open(t, "")
	s.send(headers)
	if !headers.GetRequestHeaders().GetEndOfStream() {
		s.send(requestBody(ends, prompt))
	}
	a := s.recv()
	_, _ = s.finish()
	r.gone(t)
	return a
}

func TestHeadersAnswer(t *testing.T) {
	const auth = "shibboleth"
	decode := func(n int) func(p *pool) func(*epp.Request) (*epp.Decision, error) {
		return func(p *pool) func(*epp.Request) (*epp.Decision, error) {
			return func(r *epp.Request) (*epp.Decision, error) { return p.local(r, p.endpoints[:n]...) }
		}
	}
	remote := func(p *pool) func(*epp.Request) (*epp.Decision, error) {
		return func(*epp.Request) (*epp.Decision, error) {
			d, err := p.remote(p.endpoints[0], p.endpoints[2], p.endpoints[1])
			d.Strict = true
			return d, err
		}
	}

	pulling := func(p *pool) func(*epp.Request) (*epp.Decision, error) {
		return func(r *epp.Request) (*epp.Decision, error) {
			d, err := p.local(r, p.endpoints[0])
			d.PullFrom = p.endpoints[1]
			return d, err
		}
	}

	for _, c := range []struct {
		name    string
		choose  func(p *pool) func(*epp.Request) (*epp.Decision, error)
		config  func(*Config)
		headers *procv3.ProcessingRequest
		want    map[string]string // besides the plan
		plan    string            // without id and time; "" = none
		removed []string
	}{
		{"local", decode(1), nil, chat(more), map[string]string{epp.HeaderDestination: a}, "local;reason=below-threshold;strict=0;report", nil},
		{"several endpoints", decode(2), nil, chat(more), map[string]string{epp.HeaderDestination: a + "," + b},
			"local;reason=below-threshold;strict=0;report", nil},
		{"one of several", decode(2), func(c *Config) { c.SingleEndpoint = true }, chat(more), map[string]string{epp.HeaderDestination: a},
			"local;reason=below-threshold;strict=0;report", nil},
		{"remote", remote, nil, chat(more), map[string]string{epp.HeaderDestination: a, pd.HeaderPrefill: c6 + "," + b},
			"remote;reason=uncached;strict=1;report", nil},
		{"source of blocks, and not the client's", pulling, nil, chat(more, pd.HeaderSource, "6.6.6.6:6"),
			map[string]string{epp.HeaderDestination: a, pd.HeaderSource: b}, "local;reason=below-threshold;strict=0;report", nil},
		{"no trailers", remote, func(c *Config) { c.Trailers = false }, chat(more),
			map[string]string{epp.HeaderDestination: a, pd.HeaderPrefill: c6 + "," + b}, "remote;reason=uncached;strict=1", nil},
		{"shared secret", remote, func(c *Config) { c.Auth = func() string { return auth } }, chat(more),
			map[string]string{epp.HeaderDestination: a, pd.HeaderPrefill: c6 + "," + b, pd.HeaderAuth: auth},
			"remote;reason=uncached;strict=1;report", nil},
		{"secret stays here where nothing is generated", decode(1), func(c *Config) { c.Auth = func() string { return auth } }, get("/v1/models"),
			map[string]string{epp.HeaderDestination: a}, "", nil},
		{"counting tokens", decode(1), nil, requestHeaders(more, ":method", "POST", ":path", "/v1/messages/count_tokens", pd.HeaderMode, "force"),
			map[string]string{epp.HeaderDestination: a}, "", nil},
		{"query", decode(1), nil, requestHeaders(more, ":method", "POST", ":path", "/v1/chat/completions?x=/tokenize"),
			map[string]string{epp.HeaderDestination: a}, "local;reason=below-threshold;strict=0;report", nil},
		{"internal headers of a client", decode(1), nil, chat(more, pd.HeaderPrefill, "1.2.3.4:5", pd.HeaderPlan, "x", "x-tandem-foo", "1",
			"x-tandem-auth", "guess", pd.HeaderMode, "auto", "x-encoder-hosts-ports", "a", "x-kv-cache-source-host-port", "b",
			"x-data-parallel-host-port", "c", "x-gateway-destination-endpoint", "6.6.6.6:6", "x-gateway-destination-endpoint-subset", "d",
			"authorization", "mine"),
			map[string]string{epp.HeaderDestination: a}, "local;reason=below-threshold;strict=0;report",
			[]string{"x-data-parallel-host-port", "x-encoder-hosts-ports", "x-gateway-destination-endpoint-subset",
				"x-kv-cache-source-host-port", pd.HeaderPrefill, "x-tandem-auth", "x-tandem-foo"}},
		{"plan of a client where nothing is generated", decode(1), nil, requestHeaders(ends, ":method", "GET", ":path", "/x", pd.HeaderPlan, "x"),
			map[string]string{epp.HeaderDestination: a}, "", []string{pd.HeaderPlan}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool(a, b, c6)
			p.choose = c.choose(p)
			var options []option
			if c.config != nil {
				options = append(options, setting(c.config))
			}
			got := startRig(t, p, options...).ask(t, c.headers)
			set := headersSet(t, got)
			plan, planned := set[pd.HeaderPlan]
			delete(set, pd.HeaderPlan)
			if !maps.Equal(set, c.want) {
				t.Errorf("set  %v\nwant %v", set, c.want)
			}
			if parsed, err := pd.ParsePlan(plan); planned && err != nil {
				t.Error(err)
			} else if said := without(plan, parsed.ID); said != c.plan {
				t.Errorf("plan %s, want %s", said, c.plan)
			}
			removed := slices.Sorted(slices.Values(mutationOf(got).GetRemoveHeaders()))
			if !slices.Equal(removed, c.removed) {
				t.Errorf("removed %q\nwant    %q", removed, c.removed)
			}
			lb := got.GetDynamicMetadata().GetFields()[epp.NamespaceLB].GetStructValue()
			if said := lb.GetFields()[epp.HeaderDestination].GetStringValue(); said != set[epp.HeaderDestination] {
				t.Errorf("metadata says %q, the header %q", said, set[epp.HeaderDestination])
			}
		})
	}
}

// without cuts id and time out of a plan.
func without(plan, id string) string {
	var kept []string
	for part := range strings.SplitSeq(plan, ";") {
		if part != "id="+id && !strings.HasPrefix(part, "epp=") {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, ";")
}

func TestRouteCache(t *testing.T) {
	for _, clear := range []bool{false, true} {
		r := startRig(t, newPool("10.0.0.1:8000"), setting(func(c *Config) { c.ClearRouteCache = clear }))
		if got := r.ask(t, get("/x")).GetRequestHeaders().GetResponse().GetClearRouteCache(); got != clear {
			t.Errorf("clear_route_cache is %t, want %t", got, clear)
		}
	}
}

func TestPlanIDs(t *testing.T) {
	for bits, want := range map[uint64]string{0: "0000000000000000", 0xabc: "0000000000000abc", ^uint64(0): "ffffffffffffffff"} {
		if got := planID(bits); got != want {
			t.Errorf("planID(%x) = %s", bits, got)
		}
	}
	r := startRig(t, newPool("10.0.0.1:8000"))
	seen := map[string]bool{}
	for range 20 {
		plan, err := pd.ParsePlan(headersSet(t, r.ask(t, chat(more)))[pd.HeaderPlan])
		if err != nil || seen[plan.ID] {
			t.Fatalf("plan %v of the same request id: %v", plan, err)
		}
		seen[plan.ID] = true
	}
}

func TestRefusals(t *testing.T) {
	refuse := func(err error) func(*epp.Request) (*epp.Decision, error) {
		return func(*epp.Request) (*epp.Decision, error) { return nil, err }
	}
	messages := requestHeaders(more, ":method", "POST", ":path", "/v1/messages")
	for _, c := range []struct {
		name   string
		choose func(*epp.Request) (*epp.Decision, error)
		frames frames
		status int
		reason pd.Reason
		want   map[string]string // headers besides those of every refusal
		says   string
	}{
		{"bad mode", nil, frames{chat(more, pd.HeaderMode, "maybe"), requestBody(ends, prompt)}, 400, pd.BadPDHeader, nil, "force"},
		{"bad mode, before the body has come", nil, frames{chat(more, pd.HeaderMode, "maybe"), requestBody(more, prompt[:5])}, 400,
			pd.BadPDHeader, nil, "force"},
		{"two modes", nil, frames{chat(more, pd.HeaderMode, "force", pd.HeaderMode, "bypass"), requestBody(ends, prompt)}, 400,
			pd.BadPDHeader, nil, ""},
		{"no JSON", nil, frames{chat(more), requestBody(more, "hello")}, 400, pd.BadRequest, nil, "not valid JSON"},
		{"half of a JSON", nil, frames{chat(more), requestBody(ends, prompt[:20])}, 400, pd.BadRequest, nil, "not valid JSON"},
		{"half of a JSON before trailers", nil, frames{chat(more), requestBody(more, prompt[:20]), requestTrailers()}, 400, pd.BadRequest,
			nil, "not valid JSON"},
		{"no body", nil, frames{chat(ends)}, 400, pd.BadRequest, nil, "no body"},
		{"empty body", nil, frames{chat(more), requestBody(ends, "")}, 400, pd.BadRequest, nil, "no body"},
		{"member twice", nil, frames{chat(more), requestBody(ends, `{"model":"a","model":"b"}`)}, 400, pd.DuplicateKey, nil, "model"},
		{"too large by its own word", nil, frames{chat(more, "content-length", "1048577")}, 413, pd.TooLarge, nil, "1048576"},
		{"too large", nil, frames{chat(more), requestBody(more, prompt), requestBody(more, strings.Repeat(" ", 1<<20))}, 413, pd.TooLarge,
			nil, "1048576"},
		{"too large where nothing is read", nil, frames{requestHeaders(more, ":method", "POST", ":path", "/tokenize"),
			requestBody(more, strings.Repeat(" ", 1<<20)), requestBody(more, " ")}, 413, pd.TooLarge, nil, ""},
		{"no model", nil, frames{chat(more), requestBody(ends, `{"messages":[]}`)}, 400, pd.BadRequest, nil, "names no model"},
		{"messages with an empty model", nil, frames{messages, requestBody(ends, `{"model":"","messages":[]}`)}, 400, pd.BadRequest, nil, "names no model"},
		{"nothing cached, where that was asked", func(r *epp.Request) (*epp.Decision, error) {
			if !r.IfAvailable {
				return nil, grpc.ErrServerStopped
			}
			return nil, pd.Refuse(pd.NotCached, "Nothing is cached.")
		}, frames{chat(more, "prefer", "respond-async", "prefer", "if-available"), requestBody(ends, prompt)}, 412, pd.NotCached, nil, "Nothing is cached."},
		{"no endpoint", refuse(pd.Refuse(pd.NoEndpoint, "None.")), frames{chat(more), requestBody(ends, prompt)}, 503, pd.NoEndpoint,
			map[string]string{"retry-after": "1", pd.HeaderDropped: "rejected-no-endpoints"}, "None."},
		{"no endpoint for a GET", refuse(pd.Refuse(pd.NoEndpoint, "None.")), frames{get("/v1/models")}, 503, pd.NoEndpoint,
			map[string]string{"retry-after": "1", pd.HeaderDropped: "rejected-no-endpoints"}, "None."},
		{"saturated", refuse(&pd.Refusal{Reason: pd.Saturated, After: 3 * time.Second}), frames{chat(more), requestBody(ends, prompt)}, 429,
			pd.Saturated, map[string]string{"retry-after": "3", pd.HeaderDropped: "rejected-saturated"}, ""},
		{"a malformed id", nil, frames{chat(more, pd.HeaderRequestID, "r 1"), requestBody(ends, "")}, 400, pd.BadRequest, nil, "no body"},
		{"messages have their own shape", refuse(pd.Refuse(pd.Saturated, "Full.")), frames{messages, requestBody(ends, prompt)}, 429,
			pd.Saturated, map[string]string{"retry-after": "1", pd.HeaderDropped: "rejected-saturated"}, "Full."},
		{"messages that are counted have it too", refuse(pd.Refuse(pd.NoEndpoint, "None.")), frames{requestHeaders(more, ":method", "POST", ":path",
			"/v1/messages/count_tokens"), requestBody(ends, prompt)}, 503, pd.NoEndpoint,
			map[string]string{"retry-after": "1", pd.HeaderDropped: "rejected-no-endpoints"}, "None."},
		{"error that is no refusal", refuse(grpc.ErrServerStopped), frames{chat(more), requestBody(ends, prompt)}, 500, pd.InternalError, nil,
			"in its log"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool("10.0.0.1:8000")
			p.choose = c.choose
			r := startRig(t, p)
			s := r.open(t, "")
			s.send(c.frames...)
			answers, err := s.rest() // the server ends the stream, in good order
			if err != nil || len(answers) != 1 || answers[0].GetImmediateResponse() == nil {
				t.Fatalf("got %q, %v", describe(answers), err)
			}
			a := answers[0].GetImmediateResponse()
			set := headersSet(t, answers[0])
			if got := set[pd.HeaderDecision]; int(a.GetStatus().GetCode()) != c.status || got != "refused;reason="+string(c.reason) {
				t.Errorf("%d %s, want %d %s", a.GetStatus().GetCode(), got, c.status, c.reason)
			}
			if phases, err := pd.ParseTiming(set[pd.HeaderTiming]); err != nil {
				t.Error(err)
			} else if _, ok := phases.Get(pd.PhaseEPP); !ok {
				t.Errorf("%s: %q does not tell the picker's time", pd.HeaderTiming, set[pd.HeaderTiming])
			}
			for name, value := range c.want {
				if set[name] != value {
					t.Errorf("%s: %q, want %q", name, set[name], value)
				}
			}
			// The client may ask for the request by its id, if a sidecar would have taken it.
			more, wantID := 3, ""
			if id := readHead(c.frames[0].GetRequestHeaders().GetHeaders(), 0).RequestID; pd.WellFormedRequestID(id) {
				more, wantID = 4, id
			}
			if set[pd.HeaderRequestID] != wantID {
				t.Errorf("%s: %q, want %q", pd.HeaderRequestID, set[pd.HeaderRequestID], wantID)
			}
			if len(set) != len(c.want)+more || set["content-type"] != "application/json" {
				t.Errorf("headers %v", set)
			}
			mustBeError(t, a.GetBody(), strings.HasPrefix(c.name, "messages"), c.says)
			if a.GetDetails() != "tandem_"+string(c.reason) {
				t.Errorf("details %q", a.GetDetails())
			}
			r.mustOutcome(t, c.status, c.frames[0].GetRequestHeaders(), c.reason)
		})
	}
}

func mustBeError(t *testing.T, body []byte, anthropic bool, says string) {
	t.Helper()
	var e struct {
		Type  string
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal(body, &e); err != nil || !strings.Contains(e.Error.Message, says) || e.Error.Type == "" {
		t.Errorf("body %s (%v)", body, err)
	}
	if (e.Type == "error") != anthropic || (e.Error.Code == "") != anthropic {
		t.Errorf("shape of %s", body)
	}
}

// mustOutcome checks the outcome of a single request that was refused.
func (r *rig) mustOutcome(t *testing.T, status int, h *procv3.HttpHeaders, reason pd.Reason) {
	t.Helper()
	all := r.outcomes(t)
	if len(all) != 1 || !all[0].Immediate || all[0].Status != status || all[0].Happened == nil || all[0].Happened.Reason != reason {
		t.Errorf("outcomes %+v", all)
	}
	generates := 0.0
	if head := readHead(h.GetHeaders(), 0); head.generates() {
		generates = 1
	}
	r.mustMetric(t, generates, "tandem_requests_total", "component", "epp", "decision", "refused", "reason", string(reason))
	r.mustMetric(t, 1, "tandem_phase_seconds", "phase", "epp", "decision", "refused")
	r.mustMetric(t, 0, "tandem_extproc_violations_total")
	r.pool.mustLoad(t, "0/0")
}

// An immediate answer after the gateway began to answer would corrupt what the client already has.
func TestRefusalAfterTheAnswerBegan(t *testing.T) {
	r := startRig(t, newPool("10.0.0.1:8000"))
	s := r.open(t, "")
	s.send(chat(more), responseHeaders(more), requestBody(ends, "no JSON"))
	answers, err := s.rest()
	if d := describe(answers); !slices.Equal(d, []string{"response headers"}) || err == nil || !strings.Contains(err.Error(), "bad-request") {
		t.Errorf("got %q, %v", d, err)
	}
}

func TestLargeBodies(t *testing.T) {
	for _, c := range []struct {
		name   string
		frames []int // bytes
		want   []int
	}{
		{"one frame of Envoy's HTTP/1.1", []int{400_000}, []int{62000, 62000, 62000, 62000, 62000, 62000, 28000}},
		{"HTTP/2", []int{16384, 16384, 100}, []int{16384, 16384, 100}},
		{"exactly one answer", []int{62000}, []int{62000}},
		{"frames are not joined", []int{62001, 1}, []int{62000, 1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startRig(t, newPool("10.0.0.1:8000"))
			s := r.open(t, "")
			s.send(requestHeaders(more, ":method", "POST", ":path", "/tokenize"))
			var sent strings.Builder
			for i, n := range c.frames {
				part := strings.Repeat(string(rune('a'+i)), n)
				sent.WriteString(part)
				s.send(requestBody(i == len(c.frames)-1, part))
			}
			var got strings.Builder
			var sizes []int
			answers, err := s.finish()
			if err != nil {
				t.Fatal(err)
			}
			for i, a := range answers[1:] {
				part := a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
				got.Write(part.GetBody())
				sizes = append(sizes, len(part.GetBody()))
				if part.GetEndOfStream() != (i == len(answers)-2) {
					t.Errorf("end_of_stream of part %d of %d is %t", i, len(answers)-1, part.GetEndOfStream())
				}
			}
			if !slices.Equal(sizes, c.want) || got.String() != sent.String() {
				t.Errorf("parts of %v bytes, want %v; same: %t", sizes, c.want, got.String() == sent.String())
			}
		})
	}
}

// sink is a stream that keeps the messages sent on it.
type sink struct {
	grpc.BidiStreamingServer[procv3.ProcessingRequest, procv3.ProcessingResponse]
	sent []*procv3.ProcessingResponse
}

func (s *sink) Context() context.Context { return context.Background() }

func (s *sink) Send(m *procv3.ProcessingResponse) error {
	s.sent = append(s.sent, m)
	return nil
}

func TestBodiesAreNotCopied(t *testing.T) {
	kept := sink{}
	body := make([]byte, 2*maxFrame+1)
	st := &stream{grpc: &kept}
	if _, err := st.sendBody(true, [][]byte{body[:100], body[100:]}, true); err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, m := range kept.sent {
		part := m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()
		if &part[0] != &body[at] {
			t.Errorf("the part at %d is a copy", at)
		}
		at += len(part)
	}
	if at != len(body) {
		t.Errorf("%d bytes sent of %d", at, len(body))
	}
}

func TestModeCanBeIgnored(t *testing.T) {
	for _, obey := range []bool{true, false} {
		p := newPool("10.0.0.1:8000")
		var mode pd.Mode
		p.choose = func(r *epp.Request) (*epp.Decision, error) { mode = r.Mode; return p.local(r, p.endpoints[0]) }
		r := startRig(t, p, setting(func(c *Config) { c.PDHeader = obey }))
		r.ask(t, chat(more, pd.HeaderMode, "bypass"))
		if (mode == pd.ModeBypass) != obey {
			t.Errorf("obey %t: mode %v", obey, mode)
		}
	}
}

func TestNew(t *testing.T) {
	r := startRig(t, newPool())
	for name, c := range map[string]struct {
		cfg  Config
		deps Deps
	}{
		"nothing given":       {Defaults(), Deps{}},
		"no body limit":       {Config{}, r.deps},
		"metrics there twice": {Defaults(), r.deps},
	} {
		if _, err := New(c.cfg, c.deps); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// An answer may run for hours: its prompt is not kept.
func TestBodiesAreNotKept(t *testing.T) {
	st := &stream{s: startRig(t, newPool(a)).Server, grpc: &sink{}, modes: modes{known: true}}
	for _, f := range []*procv3.ProcessingRequest{chat(more), requestBody(ends, prompt)} {
		if done, err := st.step(f); done || err != nil {
			t.Fatal(done, err)
		}
	}
	if st.request.reader != nil {
		t.Error("the answered stream still has the reader with its body")
	}
	st.close()
}

// Bodies beyond the buffer limit are refused, before they are read if their length is declared. An answer of any kind releases the
// body of its request.
func TestBufferLimit(t *testing.T) {
	const limit = 1 << 20
	p := newPool(a)
	p.choose = func(r *epp.Request) (*epp.Decision, error) {
		if r.Model == "unserved" {
			return nil, pd.Refuse(pd.NoEndpoint, "None.")
		}
		return p.local(r, p.endpoints[0])
	}
	r := startRig(t, p, setting(func(c *Config) { c.BodyLimit, c.BufferLimit = limit/2, limit }))
	mustRefuse := func(what string, s *call, reason pd.Reason) {
		t.Helper()
		got := s.recv()
		if code := got.GetImmediateResponse().GetStatus().GetCode(); code != 503 || headersSet(t, got)["retry-after"] != "1" ||
			headersSet(t, got)[pd.HeaderDecision] != "refused;reason="+string(reason) {
			t.Errorf("%s: %s, want 503 and %s", what, describe1(got), reason)
		}
		s.mustFinish()
	}
	filler := strings.Repeat(" ", limit/4)
	var buffered []*call
	for range 4 {
		s := r.open(t, "")
		s.send(chat(more), requestBody(more, filler))
		buffered = append(buffered, s)
	}
	for r.buffered.Fits(1) { // the client has no event for a frame that was read
		s := r.open(t, "")
		s.send(get("/v1/models"))
		s.recv()
		s.mustFinish()
	}
	announced := r.open(t, "")
	announced.send(chat(more, "content-length", fmt.Sprint(len(filler))))
	mustRefuse("a body that is announced", announced, pd.Busy)
	growing := r.open(t, "")
	growing.send(chat(more), requestBody(more, filler))
	mustRefuse("a body that grows", growing, pd.Busy)

	buffered[0].send(requestBody(ends, `{"model":"m","messages":[]}`))
	mustRefuse("the rest of a buffered body", buffered[0], pd.Busy)
	buffered[1].send(requestBody(ends, `{"model":"unserved","messages":[]}`))
	mustRefuse("a body for a model that no endpoint serves", buffered[1], pd.NoEndpoint)
	late := r.open(t, "")
	late.send(chat(more), requestBody(more, filler), requestBody(ends, `{"model":"m","messages":[]}`))
	if got := late.recv(); got.GetRequestHeaders() == nil {
		t.Errorf("after a body was released: %s", describe1(got))
	}
	for _, s := range append(buffered[2:], late) {
		s.cancel()
	}
	r.allGone(t)
	if n := r.buffered.Bytes(); n != 0 {
		t.Errorf("%v bytes are buffered after the last request", n)
	}
	r.mustMetric(t, 0, "tandem_buffered_bytes")
}
