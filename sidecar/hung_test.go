package sidecar

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// noticing makes the sidecar notice soon that an engine hangs, and not for other reasons that a leg ends.
var noticing = set(func(c *Config) { c.Engine.HangAfter = 100 * time.Millisecond })

// A prefill pod that hangs costs its first request some time, and later ones none: the next candidate computes their prompts.
func TestHungPrefill(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, q question) {
		hung, good, decode := startEngine(t, hangs), startEngine(t, offering(handoffParams)), startEngine(t, q.answer())
		hung.hang()
		s := startRig(t, decode.addr, noticing)
		header := []string{pd.HeaderPrefill, hung.addr + "," + good.addr}
		first := post(t, s.url+completionsPath, q.body, header...)
		first.mustBe(t, 200, "remote;reason=external;attempts=2;candidate=1")
		for range 3 {
			post(t, s.url+completionsPath, q.body, header...).mustBe(t, 200, "remote;reason=external;attempts=1;candidate=1")
		}
		if n := len(hung.requests()); n != 1 {
			t.Errorf("the engine that hangs got %d requests", n)
		}
		s.mustCount(t, 1, "tandem_retries_total", "leg", "prefill", "cause", "hung")
		forced := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, hung.addr, pd.HeaderMode, pd.ModeForce.String())
		forced.mustRefuse(t, http.StatusBadGateway, pd.PrefillFailed)
	})
}

// If decode waits for a prefill pod that has hung since its answer, decode computes the prompt itself.
func TestPrefillHangsAfterItsAnswer(t *testing.T) {
	prefill := startEngine(t, offering(handoffParams))
	q := ask(true)
	decode := startEngine(t, then(streams(""), func(w http.ResponseWriter, r *asked) { prefill.hang(); hangs(w, r) }), q.answer())
	s := startRig(t, decode.addr, noticing)
	post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr).mustBe(t, 200, "local;reason=transfer-failed;attempts=1;candidate=0")
	s.mustCount(t, 1, "tandem_retries_total", "leg", "decode", "cause", "hung")
}

// Requests to a decode engine that hangs are refused, so that another pod serves them: the first one after some time, and all others,
// with the metrics page, at once.
func TestHungDecode(t *testing.T) {
	t.Parallel()
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, q question) {
				prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, hangs)
				decode.hang()
				s := startRig(t, decode.addr, noticing)
				for range 2 {
					got := post(t, s.url+completionsPath, q.body, way(prefill)...)
					got.mustRefuse(t, http.StatusServiceUnavailable, pd.NoEndpoint)
					if got.header.Get(pd.HeaderRetry) == "" {
						t.Error("no other pod is tried")
					}
				}
				resp, err := open(t, t.Context(), http.MethodGet, s.url+"/metrics", nil)
				if err != nil || resp.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("the metrics page: %v %v", resp, err)
				}
				if n := len(decode.requests()); n != 1 {
					t.Errorf("the engine that hangs got %d requests", n)
				}
			})
		})
	}
}

// A stream whose engine hangs after its first event ends with an error, and not when its client gives up.
func TestStreamHangs(t *testing.T) {
	t.Parallel()
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var decode *fakeEngine
			prefill := startEngine(t, offering(handoffParams))
			decode = startEngine(t, then(streams(firstEvent), func(w http.ResponseWriter, r *asked) { decode.hang(); hangs(w, r) }))
			s := startRig(t, decode.addr, noticing)
			got := post(t, s.url+completionsPath, ask(true).body, way(prefill)...)
			if kind, message := lastError(t, pd.APICompletions, got.body); kind == "" || !strings.Contains(message, "broke off") {
				t.Errorf("%d, error %s %s", got.status, kind, message)
			}
		})
	}
}

// A stream that can go on elsewhere does so when its engine hangs, wherever it has come from.
func TestHungStreamGoesOn(t *testing.T) {
	t.Parallel()
	const form = `data: {"id":"cmpl-%d","created":%d,"model":"m","choices":[{"index":0,"text":"%s","finish_reason":%s,"prompt_token_ids":%s,"token_ids":%s}]}` + "\n\n"
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var decode, second *fakeEngine
			prefill := startEngine(t, offering(handoffParams))
			decode = startEngine(t, then(streams(fmt.Sprintf(form, 1, 1, "a", "null", "[1]", "[2]")), func(w http.ResponseWriter, r *asked) { decode.hang(); hangs(w, r) }))
			second = startEngine(t, then(streams(fmt.Sprintf(form, 2, 2, "b", "null", "[1,2]", "[3]")), func(w http.ResponseWriter, r *asked) { second.hang(); hangs(w, r) }))
			third := startEngine(t, streams(fmt.Sprintf(form, 3, 3, "c", `"stop"`, "[1,2,3]", "[4]"), "data: [DONE]\n\n"))
			s := startRig(t, decode.addr, noticing, goesOn)
			header := append(way(prefill), pd.HeaderDestination, strings.Join([]string{decode.addr, second.addr, third.addr}, ","))
			got := post(t, s.url+completionsPath, `{"model":"m","prompt":"x","max_tokens":9,"stream":true}`, header...)
			want := fmt.Sprintf(form, 1, 1, "a", "null", "null", "null") + fmt.Sprintf(form, 1, 1, "b", "null", "null", "null") +
				fmt.Sprintf(form, 1, 1, "c", `"stop"`, "null", "null") + "data: [DONE]\n\n"
			if got.body != want {
				t.Errorf("%s\nwant\n%s", got.body, want)
			}
			s.mustCount(t, 2, "tandem_continuations_total", "cause", "hung", "result", "ok")
		})
	}
}
