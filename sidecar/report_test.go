package sidecar

import (
	"net/http"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// An engine that requires credentials requires them for a release too; if it refuses, the hand-off is not released.
func TestReleaseCarriesCredentials(t *testing.T) {
	q := ask(false)
	prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, says(500, "text/plain", ""), q.answer())
	decode.releaseAnswer = func(w http.ResponseWriter, r *asked) {
		if r.Header.Get("Authorization") != "Bearer key" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	}
	s := startRig(t, decode.addr)
	post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr, "Authorization", "Bearer key").mustBe(t, 200, transferFailed)
	s.mustReleaseByDecode(t, decode, 1)

	decode = startEngine(t, says(500, "text/plain", ""), q.answer())
	decode.releaseAnswer = says(http.StatusUnauthorized, "application/json", "{}")
	s = startRig(t, decode.addr)
	post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr).mustBe(t, 200, transferFailed)
	s.end()
	s.mustCount(t, 1, "tandem_kv_stranded_total")
}

// A reader of reports gets them for refusals too: a missing outcome would mean that the answer was aborted.
func TestRefusalReports(t *testing.T) {
	s := startRig(t, startEngine(t, ask(false).answer()).addr)
	got := post(t, s.url+completionsPath, ask(false).body, "TE", "trailers", pd.HeaderMode, "maybe")
	got.mustRefuse(t, http.StatusBadRequest, pd.BadPDHeader)
	if o, err := pd.ParseAnswerSummary(got.header.Get(pd.HeaderOutcome)); err != nil || o.End != pd.EndError {
		t.Errorf("outcome %q, %v", got.header.Get(pd.HeaderOutcome), err)
	}
}

// An engine cannot set the headers that only Tandem may write, on any path.
func TestEnginesDoNotSpeakForTandem(t *testing.T) {
	engine := startEngine(t, says(200, "application/json", "{}", "Server-Timing", "x;dur=1", "X-Tandem-Outcome", "done", "X-Prefiller-Host-Port", "h:1",
		"X-Other", "stays"))
	s := startRig(t, engine.addr)
	got := get(t, s.url+"/v1/models")
	for _, name := range []string{"Server-Timing", pd.HeaderOutcome, pd.HeaderPrefill} {
		if v := got.header.Get(name); v != "" {
			t.Errorf("%s: %s", name, v)
		}
	}
	if got.header.Get("X-Other") != "stays" {
		t.Errorf("headers %v", got.header)
	}
}

// A remote plan without candidates is a local prefill that was planned remote.
func TestPlanWithoutCandidatesIsBudgeted(t *testing.T) {
	s := startRig(t, startEngine(t, ask(false).answer()).addr, set(func(c *Config) { c.Fallback.Ratio, c.Fallback.Burst = 0, 1 }))
	plan := []string{pd.HeaderPlan, "remote;id=" + planID + ";reason=uncached;strict=0;epp=1"}
	post(t, s.url+completionsPath, ask(false).body, plan...).mustBe(t, 200, "local;reason=no-prefill")
	post(t, s.url+completionsPath, ask(false).body, plan...).mustRefuse(t, http.StatusServiceUnavailable, pd.Budget)
}

// A hand-off that is too damaged to be released is counted; a prefill without a hand-off pins nothing.
func TestDamagedHandoffIsCounted(t *testing.T) {
	for answer, stranded := range map[string]float64{
		`{"kv_transfer_params":{"do_remote_prefill":true}}`: 1,
		`{"kv_transfer_params":null}`:                       0,
		`{"kv_transfer_params"`:                             1,
	} {
		prefill := startEngine(t, says(200, "application/json", answer))
		s := startRig(t, startEngine(t, ask(false).answer()).addr)
		post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, prefill.addr).mustBe(t, 200, "local;reason=handoff-invalid;attempts=1;candidate=0")
		s.mustCount(t, stranded, "tandem_kv_stranded_total")
	}
}
