package plugin

import (
	"encoding/base64"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// headers are request headers by lower-case name.
type headers map[string]string

func (h headers) Get(name string) string { return h[name] }

// asked is a round for a request with these headers, given as name and value in turn.
func asked(pairs ...string) *epp.Round {
	r, h := round(source(1)), headers{}
	for i := 0; i < len(pairs); i += 2 {
		h[pairs[i]] = pairs[i+1]
	}
	r.Request.Headers = h
	return r
}

// sentTo is the decision for an endpoint of a decode profile, and, if there is a second one, of a prefill profile.
func sentTo(endpoints ...*epp.Endpoint) *epp.Decision {
	d := &epp.Decision{}
	decode, prefill := epp.DecodeRow("decode"), epp.PrefillRow("prefill", 1)
	for i, row := range []*epp.StageRow{&decode, &prefill}[:len(endpoints)] {
		d.Picks = append(d.Picks, epp.StagePick{Row: row, Endpoints: endpoints[i : i+1]})
	}
	return d
}

// tokenFor is what a client gets for an endpoint.
func tokenFor(e *epp.Endpoint) string { return base64.StdEncoding.EncodeToString([]byte(e.String())) }

// TestSessionToken: the endpoint that an answer's header names is preferred, or insisted on.
func TestSessionToken(t *testing.T) {
	c := labelled(nil, nil, nil)
	c[2].Load = &epp.Load{Unreachable: true}
	for _, test := range []struct {
		name, parameters string
		headers          []string
		keeps            string
		scores           []float64
	}{
		{"no token", "", nil, "abc", []float64{0, 0, 0}},
		{"a token", "", []string{"x-session-token", tokenFor(c[1].Endpoint)}, "b", []float64{0, 1, 0}},
		{"of an endpoint that is no candidate", "", []string{"x-session-token", base64.StdEncoding.EncodeToString([]byte("ns/gone"))}, "abc", []float64{0, 0, 0}},
		{"of one that refuses connections", "", []string{"x-session-token", tokenFor(c[2].Endpoint)}, "abc", []float64{0, 0, 1}},
		{"nonsense", "", []string{"x-session-token", "?"}, "abc", []float64{0, 0, 0}},
		{"another header", "encodedEndpointHeaderConfig: {header: X-Pin}", []string{"x-pin", tokenFor(c[0].Endpoint)}, "a", []float64{1, 0, 0}},
		{"the older parameter", "headerName: x-pin", []string{"x-pin", tokenFor(c[0].Endpoint)}, "a", []float64{1, 0, 0}},
		{"the default header where another is set", "headerName: x-pin", []string{"x-session-token", tokenFor(c[0].Endpoint)}, "abc", []float64{0, 0, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := asked(test.headers...)
			wantScores(t, scored(t, build[epp.Scorer](t, "session-affinity-scorer", test.parameters), r, c), test.scores...)
			f := build[epp.Filter](t, "session-affinity-filter", test.parameters)
			if got := names(f.Filter(r, append([]epp.Candidate{}, c...))); got != test.keeps {
				t.Errorf("keeps %s, want %s", got, test.keeps)
			}
			again := make([]epp.Candidate, len(c))
			if n := testing.AllocsPerRun(100, func() { copy(again, c); f.Filter(r, again) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// TestStamps: what answers tell clients.
func TestStamps(t *testing.T) {
	c := labelled(map[string]string{"zone": "z1"}, map[string]string{"zone": "z2"}, nil)
	decode, prefill, other := c[0].Endpoint, c[1].Endpoint, c[2].Endpoint
	for _, test := range []struct {
		name, typ, parameters string
		by                    *epp.Endpoint
		header, want          string
	}{
		{"the endpoint", "session-affinity-filter", "", decode, "x-session-token", tokenFor(decode)},
		{"another one served", "session-affinity-scorer", "", other, "x-session-token", tokenFor(other)},
		{"that of decode, by name", "session-affinity-scorer", "profileName: decode", other, "x-session-token", tokenFor(other)},
		{"that of prefill", "session-affinity-scorer", "{profileName: prefill, headerName: X-P}", other, "x-p", tokenFor(prefill)},
		{"a profile that did not run", "session-affinity-scorer", "profileName: encode", decode, "", ""},
		{"a label", "header-label-affinity-scorer", "{headerName: X-Zone, labelKey: zone}", decode, "x-zone", "z1"},
		{"a label that it does not have", "header-label-affinity-scorer", "{headerName: x-zone, labelKey: zone}", other, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var header, value string
			build[epp.Stamper](t, test.typ, test.parameters).Stamp(&epp.Answer{Decision: sentTo(decode, prefill), By: test.by}, func(n, v string) { header, value = n, v })
			if header != test.header || value != test.want {
				t.Errorf("sets %q to %q, want %q and %q", header, value, test.header, test.want)
			}
		})
	}
	for typ, parameters := range map[string]string{"session-affinity-scorer": "strategy: session_id", "session-affinity-filter": "strategy: session_id",
		"header-label-affinity-scorer": "{headerName: a, labelKey: b, stampResponseHeader: false}"} {
		if _, stamps := build[any](t, typ, parameters).(epp.Stamper); stamps {
			t.Errorf("%s {%s} stamps", typ, parameters)
		}
	}
}

// TestSessionID: the endpoint that a session was sent to last is remembered for a time.
func TestSessionID(t *testing.T) {
	agent, err := decode(t, "agent-identity", "additionalSessionHeaders: [X-Mine]")
	if err != nil {
		t.Fatal(err)
	}
	if others["agent-identity"], err = agent.Build(builder()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { delete(others, "agent-identity") })
	const byAgent = "{strategy: session_id, sessionIdConfig: {sources: [{header: x-session-id}, {attribute: agent-identity}]}}"
	c := labelled(nil, nil)
	for _, test := range []struct {
		name, parameters string
		first, second    []string
		later            time.Duration
		keeps            string
	}{
		{"the same session", "strategy: session_id", []string{"x-session-id", "s"}, []string{"x-session-id", "s"}, time.Minute, "b"},
		{"another session", "strategy: session_id", []string{"x-session-id", "s"}, []string{"x-session-id", "t"}, time.Minute, "ab"},
		{"no session", "strategy: session_id", nil, nil, time.Minute, "ab"},
		{"at the end of its time", "strategy: session_id", []string{"x-session-id", "s"}, []string{"x-session-id", "s"}, 300 * time.Second, "b"},
		{"after its time", "strategy: session_id", []string{"x-session-id", "s"}, []string{"x-session-id", "s"}, 301 * time.Second, "ab"},
		{"a shorter time", "{strategy: session_id, sessionIdConfig: {evictionTtlSeconds: 0.5}}", []string{"x-session-id", "s"}, []string{"x-session-id", "s"}, time.Second, "ab"},
		{"the prefill endpoint", "{strategy: session_id, profileName: prefill}", []string{"x-session-id", "s"}, []string{"x-session-id", "s"}, time.Minute, "a"},
		{"an agent", byAgent, []string{"session_id", "s"}, []string{"x-claude-code-session-id", "s"}, time.Minute, "b"},
		{"an agent with a header of its own", byAgent, []string{"x-mine", "s", "session-id", "t"}, []string{"session-id", "s"}, time.Minute, "b"},
		{"the header comes before the agent", byAgent, []string{"x-session-id", "s", "session-id", "t"}, []string{"session-id", "t"}, time.Minute, "ab"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := build[epp.Filter](t, "session-affinity-filter", test.parameters)
			s := build[epp.Scorer](t, "session-affinity-scorer", test.parameters)
			for _, learns := range []any{f, s} {
				learns.(epp.PickObserver).Picked(asked(test.first...), c, sentTo(c[1].Endpoint, c[0].Endpoint))
			}
			r := asked(test.second...)
			r.Now = r.Now.Add(test.later)
			if got := names(f.Filter(r, append([]epp.Candidate{}, c...))); got != test.keeps {
				t.Errorf("keeps %s, want %s", got, test.keeps)
			}
			scores := scored(t, s, r, c)
			for i, name := range []string{"a", "b"} {
				if preferred := scores[name] == 1; preferred != (test.keeps == name) {
					t.Errorf("candidate %d scores %v, and the filter is to keep %s", i, scores[name], test.keeps)
				}
			}
		})
	}
}

// TestSessionIDProducer: two plugins go by the sessions of a producer, which alone learns them, and forgets the oldest ones.
func TestSessionIDProducer(t *testing.T) {
	c := labelled(nil, nil)
	for _, test := range []struct {
		name, parameters string
		session          func(name string) []string // headers that name a session
		keeps            string                     // for the session s, after t and u
	}{
		{"default", "", func(s string) []string { return []string{"x-session-id", s} }, "b"},
		{"header", "headerName: X-Mine", func(s string) []string { return []string{"x-mine", s} }, "b"},
		{"cookie", "cookieName: sid", func(s string) []string { return []string{"cookie", "a=b; sid=" + s + "; c=d"} }, "b"},
		{"no room", "lruSize: 2", func(s string) []string { return []string{"x-session-id", s} }, "ab"},
		{"another cookie", "cookieName: sid", func(s string) []string { return []string{"cookie", "side=" + s} }, "ab"},
	} {
		t.Run(test.name, func(t *testing.T) {
			sessions := build[epp.PickObserver](t, "session-id-producer", test.parameters)
			before := others["sessions"]
			others["sessions"] = sessions
			t.Cleanup(func() { others["sessions"] = before })
			for _, name := range []string{"s", "t", "u"} {
				sessions.Picked(asked(test.session(name)...), c, sentTo(c[1].Endpoint))
			}
			f := build[epp.Filter](t, "session-affinity-filter", "sessionIDProducerName: sessions")
			if _, learns := f.(epp.PickObserver); learns {
				t.Error("the filter learns sessions too")
			}
			if got := names(f.Filter(asked(test.session("s")...), append([]epp.Candidate{}, c...))); got != test.keeps {
				t.Errorf("keeps %s, want %s", got, test.keeps)
			}
		})
	}
}

func TestHeaderLabel(t *testing.T) {
	c := labelled(map[string]string{"zone": "z1"}, map[string]string{"zone": "z2"}, nil)
	s := build[epp.Scorer](t, "header-label-affinity-scorer", "{headerName: X-Zone, labelKey: zone}")
	wantScores(t, scored(t, s, asked("x-zone", "z2"), c), 0, 1, 0)
	wantScores(t, scored(t, s, asked("x-zone", "z3"), c), 0, 0, 0)
	wantScores(t, scored(t, s, asked(), c), 0, 0, 0)
}

// TestNoHitLRU: of requests that find nothing cached, the next one goes where the last one was longest ago.
func TestNoHitLRU(t *testing.T) {
	c := labelled(nil, nil, nil, nil)
	for i := range c {
		c[i].Slot = i
	}
	s := build[epp.Scorer](t, "no-hit-lru-scorer", "")
	picks := func(warm bool, endpoints ...int) {
		for _, i := range endpoints {
			all := append([]epp.Candidate{}, c...)
			if warm {
				all[0].Cached = 16
			}
			s.(epp.PickObserver).Picked(asked(), all, sentTo(c[i].Endpoint))
		}
	}
	wantScores(t, scored(t, s, asked(), c), 1, 1, 1, 1)
	picks(false, 2, 0)
	wantScores(t, scored(t, s, asked(), c), 0, 1, 1.0/3, 1)
	picks(true, 1, 2, 3)
	wantScores(t, scored(t, s, asked(), c), 0, 1, 1.0/3, 1)
	picks(false, 1, 3, 2)
	wantScores(t, scored(t, s, asked(), c), 1, 2.0/3, 0, 1.0/3)
	cached := append([]epp.Candidate{}, c...)
	cached[1].Cached = 16
	wantScores(t, scored(t, s, asked(), cached), 0.5, 0.5, 0.5, 0.5)

	few := build[epp.Scorer](t, "no-hit-lru-scorer", "lruSize: 1")
	for _, i := range []int{0, 1} {
		few.(epp.PickObserver).Picked(asked(), c, sentTo(c[i].Endpoint))
	}
	wantScores(t, scored(t, few, asked(), c), 1, 0, 1, 1)
}
