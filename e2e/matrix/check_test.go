package matrix

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/tandem-serving/tandem/pd"
)

// checkAnswer compares the client's answer with the table.
func (r row) checkAnswer(t *testing.T, want outcome, got reply, right []int) {
	t.Helper()
	if want.content == noClient {
		if got.err == nil {
			t.Errorf("the answer was whole: %d %s", got.status, got.body)
		}
		return
	}
	if got.status != want.status {
		t.Errorf("status %d, want %d: %s %v", got.status, want.status, got.body, got.err)
		return
	}
	decision := want.decision
	if r.several == twoChoices && want.content == refusal { // of the whole request, which has no attempts of its own
		decision, _, _ = strings.Cut(got.header.Get(pd.HeaderDecision), ";attempts")
		if !strings.HasPrefix(want.decision, decision) {
			t.Errorf("%s is %q, want %q", pd.HeaderDecision, decision, want.decision)
		}
		decision = got.header.Get(pd.HeaderDecision)
	}
	for name, value := range map[string]string{
		pd.HeaderDecision: decision, pd.HeaderRetry: map[bool]string{true: "1"}[want.retry()], "Retry-After": want.retryAfter(),
	} {
		if have := got.header.Get(name); have != value {
			t.Errorf("%s is %q, want %q", name, have, value)
		}
	}
	if timing := got.header.Get(pd.HeaderTiming); timing == "" {
		t.Error("no Server-Timing")
	}
	r.checkContent(t, want, got, right)
}

func (r row) checkContent(t *testing.T, want outcome, got reply, right []int) {
	t.Helper()
	ended := got.err == nil && (got.done || !r.stream)
	switch want.content {
	case rightTokens:
		if !ended || got.failed != nil || !slices.Equal(got.tokens, right) {
			t.Errorf("tokens %v, an engine that does not fail gives %v; %v, error %+v", got.tokens, right, got.err, got.failed)
		}
	case wrongTokens:
		if !ended || slices.Equal(got.tokens, right) {
			t.Errorf("tokens %v are right, though the table says they are wrong; %v", got.tokens, got.err)
		}
	case refusal:
		d := r.refused(t, want)
		if e := got.failed; got.err != nil || e == nil || !r.hasCode(e, string(d.Reason)) || e.Message == "" || e.Type == "" || e.Param != nil {
			t.Errorf("the API's error is %s, %v", got.body, got.err)
		}
	case engineError:
		if e := got.failed; got.err != nil || e == nil || !r.hasCode(e, float64(want.status)) || e.Message == "" {
			t.Errorf("the engine's error is %s, %v", got.body, got.err)
		}
	case errorEvent:
		r.checkBreak(t, got, right)
	}
}

func (r row) refused(t *testing.T, want outcome) pd.Result {
	t.Helper()
	d, err := pd.ParseResult(want.decision)
	if err != nil || d.Verdict != pd.Refused {
		t.Fatalf("the table is wrong: %s, %v", want.decision, err)
	}
	return d
}

// hasCode reports whether an error has a code, if the errors of the API have codes.
func (r row) hasCode(e *apiError, code any) bool {
	if r.api == pd.APIMessages {
		return e.Code == nil
	}
	if _, status := code.(float64); status && r.api == pd.APISGLang && e.Code == nil {
		return true // the engine's own errors have none
	}
	return e.Code == code
}

// checkBreak checks an answer that broke off. A stream ends with an error event, and [DONE] if its API has that; a part of a
// whole answer must not look complete.
func (r row) checkBreak(t *testing.T, got reply, right []int) {
	t.Helper()
	if !r.stream {
		if got.err == nil {
			t.Errorf("half an answer looks whole: %s", got.body)
		}
		return
	}
	n := len(got.tokens)
	if n == 0 || n >= len(right) || !slices.Equal(got.tokens, right[:n]) {
		t.Errorf("tokens %v, want the first of %v", got.tokens, right)
	}
	if e := got.failed; got.err != nil || got.done != r.hasTokens() || e == nil || !r.hasCode(e, string(r.reason)) || e.Message == "" || e.Type == "" {
		t.Errorf("the stream ends in %+v, last event %v, %v", e, got.done, got.err)
	}
}

// checkHeld checks that the engines hold no blocks, except the first candidate's for a hand-off that is lost.
func (r row) checkHeld(t *testing.T, s *fixture) {
	t.Helper()
	lost := s.prefill[0]
	if r.expectedLoss() != notLost && lost.load().pinned == 0 {
		t.Errorf("the hand-off was released, though the table says it is lost: %s", r.lost)
	}
	for i, e := range s.engines() {
		switch {
		case r.decodeKeeps && e == s.decode:
			if e.load().used == 0 {
				t.Error("decode is free, though the table says that it keeps its blocks")
			}
		case r.expectedLoss() == notLost || e != lost:
			mustBeFree(t, e)
		}
		st := e.load()
		if r.effect != deceived && (st.expired != 0 || st.stale != 0 || st.foreign != 0) {
			t.Errorf("engine %d: %+v", i, st)
		}
	}
}

// checkEngines checks which engines computed the prompt and which read KV blocks.
func (r row) checkEngines(t *testing.T, s *fixture, want outcome) {
	t.Helper()
	if r.situation == another {
		if n, asked := s.prefill[1].load().requests, strings.Contains(want.decision, "candidate=1"); (n > 0) != asked || n > 1 && r.several == one {
			t.Errorf("the other candidate has computed %d requests", n)
		}
	}
	read := s.decode.load()
	d, err := pd.ParseResult(want.decision)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case d.Verdict == pd.Remote && want.content == rightTokens && read.read == 0:
		t.Error("decode has read no KV")
	case d.Verdict == pd.Local && r.protocol != generationFirst && (want.decodes == 1 || r.effect == candidateFails) && read.read > 0:
		t.Error("decode has read KV, and should have prefilled itself")
	case r.effect == deceived && read.foreign != 1:
		t.Errorf("decode has read %d foreign hand-offs", read.foreign)
	}
}

// mustBeFree waits until an engine that runs holds no block. checkHeld checks that none was freed because its lease expired.
func mustBeFree(t *testing.T, e *engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	st, err := e.await(ctx, func(st load) bool { return st.used == 0 && st.live == 0 })
	select {
	case <-e.done:
	default:
		if err != nil && (st.used > 0 || st.live > 0) { // it may just have ended
			t.Errorf("an engine holds blocks: %+v, %v", st, err)
		}
	}
}

// checkMetrics checks that the request, its legs and its retries are counted once.
func (r row) checkMetrics(t *testing.T, counted counts, want outcome) {
	t.Helper()
	d, err := pd.ParseResult(want.decision)
	if err != nil {
		t.Fatal(err)
	}
	counted.must(t, 1, "tandem_requests_total")
	counted.must(t, 1, "tandem_requests_total", "component", "sidecar", "decision", d.Verdict.String(), "reason", string(d.Reason), "code", strconv.Itoa(want.status))
	counted.must(t, float64(want.attempts()), "tandem_leg_seconds", "leg", "prefill")
	leg, retries := r.retried()
	counted.must(t, retries, "tandem_retries_total", "leg", leg, "cause", r.cause)
	if r.effect == transferFailsPair { // the candidate is given up for it
		counted.must(t, retries, "tandem_retries_total", "leg", "prefill", "cause", "transfer")
		retries *= 2
	}
	counted.must(t, retries, "tandem_retries_total")
	counted.must(t, 0, "tandem_inflight")
	counted.must(t, 0, "tandem_open_requests")
}

// retried returns how many legs failed and were followed by another leg or a refusal.
func (r row) retried() (leg string, n float64) {
	switch r.effect {
	case candidateFails, candidateSilent:
		return "prefill", 1
	case comesLate, transferFails, transferFailsPair, decodeGone, redoLost, redoFails:
		return "decode", 1
	}
	return "", 0
}

// count is the value of a counter or gauge, or the number of a histogram's observations.
type count struct {
	name   string
	labels map[string]string
	value  float64
}

// counts are the metrics of one sidecar.
type counts []count

func (s *fixture) counts(t *testing.T) (all counts) {
	t.Helper()
	families, err := s.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			c := count{f.GetName(), map[string]string{}, m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())}
			for _, l := range m.GetLabel() {
				c.labels[l.GetName()] = l.GetValue()
			}
			all = append(all, c)
		}
	}
	return all
}

// must checks the sum of the series that have the labels, given as name, value, name, value …
func (c counts) must(t *testing.T, want float64, name string, labels ...string) {
	t.Helper()
	var sum float64
	for _, one := range c {
		fits := one.name == name
		for i := 0; i < len(labels); i += 2 {
			fits = fits && one.labels[labels[i]] == labels[i+1]
		}
		if fits {
			sum += one.value
		}
	}
	if sum != want {
		t.Errorf("%s%v is %v, want %v", name, labels, sum, want)
	}
}

// checkTrace checks the spans: one for the request, and below it one for each leg.
func (r row) checkTrace(t *testing.T, s *fixture, want outcome) {
	t.Helper()
	named := map[string][]sdktrace.ReadOnlySpan{}
	for _, span := range s.spans.Ended() {
		named[span.Name()] = append(named[span.Name()], span)
	}
	if started := len(s.spans.Started()); started != len(s.spans.Ended()) {
		t.Errorf("%d spans were started, %d ended", started, len(s.spans.Ended()))
	}
	if n := len(named["sidecar.request"]); n != 1 {
		t.Fatalf("%d spans of the request", n)
	}
	request := named["sidecar.request"][0]
	d, err := pd.ParseResult(want.decision)
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[attribute.Key]string{"tandem.pd.decision": d.Verdict.String(), "tandem.pd.reason": string(d.Reason),
		"http.response.status_code": strconv.Itoa(want.status)} {
		if have := attributeOf(request, key); have != value {
			t.Errorf("the request's span has %s %q, want %q", key, have, value)
		}
	}
	prefills, decodes := named["prefill"], named["decode"]
	if len(prefills) != want.attempts() || len(decodes) != want.decodes {
		t.Errorf("%d prefill and %d decode spans, want %d and %d", len(prefills), len(decodes), want.attempts(), want.decodes)
	}
	for i, span := range prefills {
		if n := attributeOf(span, "tandem.attempt"); n != strconv.Itoa(i+1) {
			t.Errorf("prefill span %d is attempt %s", i, n)
		}
		failed := i == 0 && (r.effect == candidateFails || r.effect == clientsFault || r.state == prefilling && r.action != noAction)
		if r.protocol.meets() && (r.state != prefilling && r.effect != served || r.protocol == sglangPair && !failed) {
			continue // it is cancelled when decode's leg ends: prefill's answer may be read before that, or not
		}
		mustHaveFailed(t, span, failed)
	}
	for i, span := range decodes {
		switch r.effect {
		case served:
			mustHaveFailed(t, span, false)
		case candidateFails:
			mustHaveFailed(t, span, r.protocol.meets() && i == 0)
		case transferFails, transferFailsPair, redoFails:
			mustHaveFailed(t, span, i == 0)
		case decodeGone, redoLost:
			mustHaveFailed(t, span, true)
		}
	}
	for _, span := range append(prefills, decodes...) {
		if span.Parent().SpanID() != request.SpanContext().SpanID() {
			t.Errorf("the %s span is not the request's", span.Name())
		}
	}
}

func mustHaveFailed(t *testing.T, span sdktrace.ReadOnlySpan, failed bool) {
	t.Helper()
	if (span.Status().Code == codes.Error) != failed {
		t.Errorf("%s span has status %+v", span.Name(), span.Status())
	}
}

func attributeOf(span sdktrace.ReadOnlySpan, key attribute.Key) string {
	for _, a := range span.Attributes() {
		if a.Key == key {
			return a.Value.String()
		}
	}
	return ""
}
