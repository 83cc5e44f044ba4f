package matrix

import (
	"bytes"
	"context"
	"net/http"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
)

// TestMatrix runs every row: it brings a request into its state, causes the failure, and compares what happens with the
// tables.
func TestMatrix(t *testing.T) {
	right := map[question][]int{}
	for _, p := range protocols {
		undisturbed(t, p, right)
	}
	t.Cleanup(func() { mustEnd(t) }) // after the last row
	for _, r := range rows() {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			// Goroutines inherit the label, so that a leaked one names its row.
			pprof.Do(t.Context(), pprof.Labels(rowLabel, r.String()), func(context.Context) { r.run(t, right[r.question()]) })
		})
	}
}

// undisturbed adds the tokens of an engine that does not fail and prefills itself.
func undisturbed(t *testing.T, p *protocol, right map[question][]int) {
	t.Helper()
	var e *engine
	if p.start != nil {
		e = p.start(t, row{failure: failure{protocol: p}}, pd.RolePrefill|pd.RoleDecode)
	} else {
		e = startEngine(t, sim.Config{ScaleOut: true})
	}
	defer e.close()
	for _, r := range rows() {
		if _, has := right[r.question()]; r.protocol != p || has {
			continue
		}
		if r.several == twoChoices { // greedy ones are alike, except those that a simulated engine makes of one request
			right[r.question()] = slices.Repeat(right[question{p, r.api, one}], 2)
			continue
		}
		r.stream = false
		req, err := http.NewRequest(http.MethodPost, e.url+r.api.Path(), bytes.NewReader(r.body()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		got := (&asker{begun: make(chan struct{})}).exchange(&http.Transport{DisableKeepAlives: true}, req, r)
		if got.err != nil || len(got.tokens) < 8 {
			t.Fatalf("a plain engine answers %d %s, %v", got.status, got.body, got.err)
		}
		right[r.question()] = got.tokens
	}
}

const rowLabel = "row"

var labelled = regexp.MustCompile(`\{"` + rowLabel + `":"([^"]*)"\}`)

// mustEnd waits for the goroutines of all rows to end, and names the rows of those that do not.
func mustEnd(t *testing.T) {
	t.Helper()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for limit := time.Now().Add(soon); ; <-poll.C {
		var all strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&all, 1); err != nil {
			t.Error(err)
			return
		}
		rest := labelled.FindAllStringSubmatch(all.String(), -1)
		switch {
		case len(rest) == 0:
			return
		case time.Now().After(limit):
			for _, row := range rest {
				t.Errorf("%s has left goroutines behind", row[1])
			}
			t.Error(all.String()) // not Fatal: within a cleanup it would drop the rows' own messages
			return
		}
	}
}

func (r row) run(t *testing.T, right []int) {
	s := startFixture(t, r)
	a := ask(t, s, r)
	r.inject(t, s, a)
	got := wait(t, a.ended, "the end of the answer")
	a.hangUp()
	r.unfreeze(s)
	want := r.expected(r.situation)
	r.checkAnswer(t, want, got, right)
	s.end()
	r.checkHeld(t, s)
	if r.several != twoChoices { // whose legs are those of two requests
		r.checkEngines(t, s, want)
		counted := s.counts(t)
		r.checkMetrics(t, counted, want)
		r.checkRelease(t, s, counted)
		r.checkTrace(t, s, want)
	}
	for _, e := range s.engines() {
		until(t, "every connection to be closed", e.listener.empty)
		e.close()
	}
}

func (s *fixture) engines() []*engine { return append([]*engine{s.decode}, s.prefill...) }

// inject does what the row's action says once the request is in its state.
func (r row) inject(t *testing.T, s *fixture, a *asker) {
	t.Helper()
	switch r.action {
	case noAction, tooOld:
		return
	}
	r.awaitState(t, s, a)
	switch r.action {
	case leave:
		a.hangUp()
		wait(t, s.noticed, "the sidecar to notice")
		r.resumeAnswer(s)
	case outwait:
		time.AfterFunc(patience, a.hangUp)
	case cut:
		drained, drain := context.WithCancel(context.Background())
		drain()
		over := make(chan struct{})
		go func() { defer close(over); s.Drain(drained) }()
		wait(t, s.noticed, "the sidecar to cut the request")
		r.resumeAnswer(s)
		wait(t, over, "the drain to end")
	case shut:
		if err := s.decode.faults.Add(fault.Fault{Fault: "refuse"}); err != nil {
			t.Fatal(err)
		}
		s.prefill[0].faults.Clear()
	case answer:
		close(s.answers)
	case end:
		s.decode.close()
	case kill:
		s.prefill[0].close()
		s.decode.faults.Clear()
	case freeze:
		if err := s.prefill[0].faults.Add(fault.Fault{Fault: "slow", Arg: "stop"}); err != nil {
			t.Fatal(err)
		}
	}
}

func (r row) awaitState(t *testing.T, s *fixture, a *asker) {
	t.Helper()
	at := s.decode
	held := func(st load) bool { return st.held > 0 }
	switch {
	case r.state == received: // ask has returned, so the request is in its state
		return
	case r.prefill.Fault != "":
		at = s.prefill[0]
	case r.action == freeze:
		held = func(st load) bool { return st.requests > 0 }
	}
	if st, err := at.await(within(t), held); err != nil {
		t.Fatalf("the request does not come into its state: %+v, %v", st, err)
	}
	if r.protocol == sglangPair { // an abort that came before the other leg would not end it
		other := s.prefill[0]
		if at == other {
			other = s.decode
		}
		if st, err := other.await(within(t), func(st load) bool { return st.requests > 0 }); err != nil {
			t.Fatalf("the other leg does not come: %+v, %v", st, err)
		}
	}
	if r.state == streaming {
		wait(t, a.begun, "the answer to begin")
	}
}

// resumeAnswer lets the engine send an answer that only the sidecar still waits for, because it must learn from it which hand-off to
// release, or that decode has noted the hand-off.
func (r row) resumeAnswer(s *fixture) {
	switch {
	case r.state == handedOff:
		s.prefill[0].faults.Clear()
	case r.state == beforeHeaders && r.stream:
		s.decode.faults.Clear()
	}
}

// unfreeze lets a frozen engine and its transfers continue.
func (r row) unfreeze(s *fixture) {
	if r.action == freeze {
		s.prefill[0].faults.Clear()
		s.link.repair()
	}
}
