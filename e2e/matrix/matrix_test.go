package matrix

import (
	"bytes"
	"context"
	"net/http"
	"regexp"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
)

// TestMatrix runs every row: it brings a request into its state, has the strike happen, and holds what came of it against
// what is promised.
func TestMatrix(t *testing.T) {
	right := undisturbed(t)
	t.Cleanup(func() { mustEnd(t) }) // after the last row
	for _, r := range rows() {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			// What is started under the label inherits it, so that a goroutine that stays behind tells its row.
			pprof.Do(t.Context(), pprof.Labels(rowLabel, r.String()), func(context.Context) { r.run(t, right[r.api]) })
		})
	}
}

// undisturbed returns the tokens of an engine that answers alone.
func undisturbed(t *testing.T) map[pd.API][]int {
	t.Helper()
	e := startEngine(t, nil, 0)
	defer e.Close()
	right := map[pd.API][]int{}
	for _, api := range []pd.API{pd.APICompletions, pd.APIChat} {
		req, err := http.NewRequest(http.MethodPost, e.URL+api.Path(), bytes.NewReader(row{api: api}.body()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		got := (&asker{begun: make(chan struct{})}).exchange(&http.Transport{DisableKeepAlives: true}, req)
		if got.err != nil || len(got.tokens) != 8 {
			t.Fatalf("a plain engine answers %d %s, %v", got.status, got.body, got.err)
		}
		right[api] = got.tokens
	}
	return right
}

const rowLabel = "row"

var labelled = regexp.MustCompile(`\{"` + rowLabel + `":"([^"]*)"\}`)

// mustEnd waits for the goroutines of all rows to end. Those that do not have their rows named.
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
			t.Error(all.String()) // not Fatal: within a cleanup that would lose the rows' own words
			return
		}
	}
}

func (r row) run(t *testing.T, right []int) {
	s := startStage(t, r)
	a := ask(t, s, r)
	r.strikes(t, s, a)
	got := wait(t, a.ended, "the end of the answer")
	a.hangUp()
	r.thaw(s)
	want := r.expected(r.situation)
	r.judgeAnswer(t, want, got, right)
	s.end()
	r.judgeHeld(t, s)
	r.judgeEngines(t, s, want)
	counted := s.counts(t)
	r.judgeMetrics(t, counted, want)
	r.judgeRelease(t, s, counted)
	r.judgeTrace(t, s, want)
	for _, e := range s.engines() {
		until(t, "every connection to be closed", e.door.empty)
		e.Close()
	}
}

func (s *stage) engines() []engine { return append([]engine{s.decode}, s.prefill...) }

// strikes waits until the request is in its state, if the test has a part in what happens then, and plays it.
func (r row) strikes(t *testing.T, s *stage, a *asker) {
	t.Helper()
	switch r.deed {
	case nothing, tooOld:
		return
	}
	r.awaitState(t, s, a)
	switch r.deed {
	case leave:
		a.hangUp()
		wait(t, s.noticed, "the sidecar to notice")
		r.goOn(s)
	case outwait:
		time.AfterFunc(patience, a.hangUp)
	case cut:
		drained, drain := context.WithCancel(context.Background())
		drain()
		over := make(chan struct{})
		go func() { defer close(over); s.Drain(drained) }()
		wait(t, s.noticed, "the sidecar to cut the request")
		r.goOn(s)
		wait(t, over, "the drain to end")
	case shut:
		if err := s.decode.Engine.AddFault(sim.Fault{Fault: "refuse"}); err != nil {
			t.Fatal(err)
		}
		s.prefill[0].Engine.ClearFaults()
	case kill:
		s.prefill[0].Close()
		s.decode.Engine.ClearFaults()
	case freeze:
		if err := s.prefill[0].Engine.AddFault(sim.Fault{Fault: "slow", Arg: "stop"}); err != nil {
			t.Fatal(err)
		}
	}
}

func (r row) awaitState(t *testing.T, s *stage, a *asker) {
	t.Helper()
	at := s.decode
	held := func(st sim.State) bool { return st.Held > 0 }
	switch {
	case r.state == received: // it is, since ask returned
		return
	case r.prefill.Fault != "":
		at = s.prefill[0]
	case r.deed == freeze:
		held = func(st sim.State) bool { return st.Requests > 0 }
	}
	if st, err := at.Engine.WaitState(within(t), held); err != nil {
		t.Fatalf("the request does not come into its state: %+v, %v", st, err)
	}
	if r.state == streaming {
		wait(t, a.begun, "the answer to begin")
	}
}

// goOn lets a held answer come that the sidecar waits for although nobody else does: the word of a hand-off, or that it was
// taken up.
func (r row) goOn(s *stage) {
	switch {
	case r.state == handedOff:
		s.prefill[0].Engine.ClearFaults()
	case r.state == beforeHeaders && r.stream:
		s.decode.Engine.ClearFaults()
	}
}

// thaw ends what a standing engine was held by.
func (r row) thaw(s *stage) {
	if r.deed == freeze {
		s.prefill[0].Engine.ClearFaults()
		s.link.repair()
	}
}
