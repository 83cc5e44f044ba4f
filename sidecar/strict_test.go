package sidecar

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/madeup"
)

// otherHandoff is the hand-off of a second prefill engine.
var otherHandoff = strings.Replace(handoffParams, "e-1", "e-2", 1)

// decodeOther is what decode must get of the question with the hand-off of a second prefill engine.
func (q question) decodeOther() string {
	return strings.Replace(q.decode, handoffParams, otherHandoff, 1)
}

// forced returns the headers of a request that must be prefilled by one of these pods.
func forced(prefill ...string) []string {
	return []string{pd.HeaderPlan, strictPlan, pd.HeaderPrefill, strings.Join(prefill, ",")}
}

const servedByOther = "remote;reason=forced;attempts=2;candidate=1"

// A forced request whose prefill engine gives no hand-off is prefilled by the next candidate, as every other request.
func TestForcedPrefillFails(t *testing.T) {
	for name, c := range map[string]struct {
		act   act // nil: connecting is refused
		hangs bool
		cause string
	}{
		"hangs":               {act: hangs, hangs: true, cause: "hung"},
		"takes too long":      {act: hangs, cause: "timeout"},
		"refuses connections": {cause: "connection"},
		"breaks off":          {act: resets, cause: "connection"},
		"answers 500":         {act: says(500, "text/plain", ""), cause: "status"},
		"answers 503":         {act: says(503, "text/plain", ""), cause: "status"},
		"hands nothing over":  {act: says(200, "application/json", wholeAnswer), cause: "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, q question) {
				first := refusingAddr(t)
				if c.act != nil {
					e := startEngine(t, c.act)
					if first = e.addr; c.hangs {
						e.hang()
					}
				}
				second, decode := startEngine(t, offering(otherHandoff)), startEngine(t, q.answer())
				s := startRig(t, decode.addr, noticing, set(func(cfg *Config) {
					if c.cause == "timeout" {
						cfg.Prefill.Timeout = 500 * time.Millisecond
					}
				}))
				got := post(t, s.url+completionsPath, q.body, forced(first, second.addr)...)
				got.mustBe(t, 200, servedByOther)
				if got.body != q.right() {
					t.Errorf("body %s", got.body)
				}
				second.mustSee(t, q.prefill)
				decode.mustSee(t, q.decodeOther())
				s.mustCount(t, 1, "tandem_retries_total")
				s.mustCount(t, 1, "tandem_retries_total", "leg", "prefill", "cause", c.cause)
				s.mustCount(t, float64(s.cfg.Fallback.Burst), "tandem_fallback_tokens")
			})
		})
	}
}

// A forced request whose hand-off decode could not use is prefilled once more, by the next candidate, and takes from the budget for it.
func TestForcedHandoffIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		lose   func(prefill *fakeEngine) act // decode's answer to the first hand-off
		stream bool                          // only a stream is lost like this
		option option
		cause  string
	}{
		"decode answers 500": {lose: func(*fakeEngine) act { return says(500, "application/json", `{"error":{}}`) }, cause: "failed"},
		"decode breaks off":  {lose: func(*fakeEngine) act { return resets }, cause: "failed"},
		"an error event":     {lose: func(*fakeEngine) act { return streams(errorEvent, doneEvent) }, stream: true, cause: "failed"},
		"decode is silent":   {lose: func(*fakeEngine) act { return then(streams(), hangs) }, stream: true, option: soon, cause: "timeout"},
		"prefill is gone": {lose: func(prefill *fakeEngine) act {
			return func(w http.ResponseWriter, r *asked) { prefill.crash(); hangs(w, r) }
		}, option: soon, cause: "timeout"},
		"prefill hangs": {lose: func(prefill *fakeEngine) act {
			return func(w http.ResponseWriter, r *asked) { prefill.hang(); hangs(w, r) }
		}, option: noticing, cause: "hung"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, q question) {
				if c.stream && !q.stream {
					return
				}
				first, second := startEngine(t, offering(handoffParams)), startEngine(t, offering(otherHandoff))
				decode := startEngine(t, c.lose(first), q.answer())
				var options []option
				if c.option != nil {
					options = append(options, c.option)
				}
				s := startRig(t, decode.addr, options...)
				got := post(t, s.url+completionsPath, q.body, forced(first.addr, second.addr)...)
				got.mustBe(t, 200, servedByOther)
				if got.body != q.right() {
					t.Errorf("body %s", got.body)
				}
				first.mustSee(t, q.prefill)
				second.mustSee(t, q.prefill)
				decode.mustSee(t, q.decode, q.decodeOther())
				s.mustReleaseByDecode(t, decode, 1) // the first one
				s.mustCount(t, 1, "tandem_retries_total")
				s.mustCount(t, 1, "tandem_retries_total", "leg", "decode", "cause", c.cause)
				s.mustCount(t, 1, "tandem_requests_total", "decision", "remote", "reason", "forced", "code", "200")
				s.mustCount(t, float64(s.cfg.Fallback.Burst-1), "tandem_fallback_tokens")
				record, _ := s.record(t, got.header.Get("X-Request-Id"))
				if len(record.Legs) != 4 || record.Error != "" {
					t.Errorf("record %+v", record)
				}
			})
		})
	}
}

// Of a protocol with both legs at the same time as well, also for one of several choices.
func TestForcedMeetingIsLost(t *testing.T) {
	for _, n := range []int{1, 3} {
		for _, stream := range []bool{true, false} {
			prefill, decode := startMadeUp(t, sim.Config{}, sim.Config{})
			if err := decode.Faults.Add(fault.Fault{Leg: "decode", Fault: "status", Arg: "500", Count: 1}); err != nil {
				t.Fatal(err)
			}
			s := startRig(t, addrOf(decode), speaks(madeup.Meeting{}))
			at := addrOf(prefill)
			got := post(t, s.url+completionsPath, choicesAsk(pd.APICompletions, n, 1, 6, stream), forced(at, at)...)
			got.mustBe(t, 200, servedByOther)
			if said := readChoices(t, stream, got.body, n); strings.Join(said.texts, "") == "" || said.errors > 0 {
				t.Errorf("%+v", said)
			}
			mustFree(t, prefill, decode)
			s.end()
			s.mustCount(t, 0, "tandem_kv_stranded_total")
			s.mustCount(t, float64(s.cfg.Fallback.Burst-1), "tandem_fallback_tokens")
		}
	}
}

// A forced request is refused when every candidate has failed it, or the budget is spent: never is it prefilled by decode.
func TestForcedFails(t *testing.T) {
	fails := says(500, "text/plain", "")
	for name, c := range map[string]struct {
		first, second act // nil: connecting is refused
		decode        act
		option        option
		decision      string
		handoffs      int // that decode gets
	}{
		"every prefill engine":        {first: fails, decode: fails, decision: "attempts=2;candidate=1"},
		"every hand-off":              {first: offering(handoffParams), second: offering(otherHandoff), decode: fails, decision: "attempts=2;candidate=1", handoffs: 2},
		"a hand-off, then the engine": {first: offering(handoffParams), decode: fails, decision: "attempts=2;candidate=1", handoffs: 1},
		"an engine, then a hand-off":  {second: offering(otherHandoff), decode: fails, decision: "attempts=2;candidate=1", handoffs: 1},
		"no budget": {first: offering(handoffParams), second: offering(otherHandoff), decode: fails, option: noBudget,
			decision: "attempts=1;candidate=0", handoffs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, q question) {
				addr := func(a act) string {
					if a == nil {
						return refusingAddr(t)
					}
					return startEngine(t, a).addr
				}
				decode := startEngine(t, c.decode)
				var options []option
				if c.option != nil {
					options = append(options, c.option)
				}
				s := startRig(t, decode.addr, options...)
				got := post(t, s.url+completionsPath, q.body, forced(addr(c.first), addr(c.second))...)
				got.mustRefuse(t, http.StatusBadGateway, pd.PrefillFailed)
				got.mustBe(t, 502, "refused;reason=prefill-failed;"+c.decision)
				if n := len(decode.requests()); n != c.handoffs {
					t.Errorf("decode was asked %d times, want %d", n, c.handoffs)
				}
				s.end()
				s.mustCount(t, 0, "tandem_kv_stranded_total")
				s.mustCount(t, 0, "tandem_inflight")
			})
		})
	}
}

// If decode ends with a hand-off, no candidate is asked for another one: the proxy tries another decode pod.
func TestForcedDecodeIsGone(t *testing.T) {
	both(t, func(t *testing.T, q question) {
		first, second := startEngine(t, offering(handoffParams)), startEngine(t, offering(otherHandoff))
		decode := startEngine(t, q.answer())
		decode.script[0] = func(w http.ResponseWriter, r *asked) {
			decode.server.Listener.Close()
			resets(w, r)
		}
		s := startRig(t, decode.addr)
		post(t, s.url+completionsPath, q.body, forced(first.addr, second.addr)...).mustRefuse(t, http.StatusServiceUnavailable, pd.NoEndpoint)
		second.mustSee(t)
	})
}

// A forced request whose only candidate has hung goes there as soon as that goes on, and not only after the next look at it.
func TestForcedPrefillGoesOn(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, q question) {
		prefill, decode := startEngine(t, hangs, offering(handoffParams)), startEngine(t, q.answer())
		prefill.hang()
		s := startRig(t, decode.addr, noticing)
		post(t, s.url+completionsPath, q.body, forced(prefill.addr)...).mustRefuse(t, http.StatusBadGateway, pd.PrefillFailed)
		prefill.goOn()
		post(t, s.url+completionsPath, q.body, forced(prefill.addr)...).mustBe(t, 200, "remote;reason=forced;attempts=1;candidate=0")
	})
}

// Of two prefill legs of a forced request, one of which ended because the other was faster, the pod of the former is tried again if the
// hand-off of the latter is lost.
func TestForcedHandoffIsLostAfterHedge(t *testing.T) {
	t.Parallel()
	leaves := then(hangs, closes)
	for name, c := range map[string]struct {
		first, second func(g gate) act // in answer to the legs at the same time
		decision      string
	}{
		"the second was faster": {func(gate) act { return leaves }, func(gate) act { return offering(otherHandoff) }, "remote;reason=forced;attempts=3;candidate=0"},
		"the first was faster": {func(g gate) act { return then(g.act, offering(handoffParams)) }, func(g gate) act { return then(g.open, leaves) },
			"remote;reason=forced;attempts=3;candidate=1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, q question) {
				g := newGate()
				first, second := quickly(t, earned, c.first(g), offering(handoffParams)), startEngine(t, c.second(g), offering(otherHandoff))
				answers := slices.Repeat([]act{q.answer()}, earned)
				decode := startEngine(t, append(answers, says(500, "text/plain", ""), q.answer())...)
				s := startRig(t, decode.addr, hedging)
				learnPace(t, s, earned, first.addr, q.body)
				got := post(t, s.url+completionsPath, q.body, forced(first.addr, second.addr)...)
				got.mustBe(t, 200, c.decision)
				if got.body != q.right() {
					t.Errorf("body %s", got.body)
				}
				s.end()
				s.mustCount(t, 1, "tandem_retries_total")
				s.mustCount(t, 0, "tandem_kv_stranded_total")
				s.mustCount(t, float64(s.cfg.Fallback.Burst-1), "tandem_fallback_tokens")
			})
		})
	}
}
