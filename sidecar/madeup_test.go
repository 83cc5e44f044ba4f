package sidecar

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/madeup"
	"github.com/tandem-serving/tandem/sim/server"
)

// madeUp are dialects that no engine speaks: the sidecar has no code for them.
var madeUp = []struct {
	name string
	of   dialect.Dialect
}{{"serial", madeup.Ticket{}}, {"concurrent", madeup.Meeting{}}}

// speaks is an option: the sidecar uses a dialect that is not in the table.
func speaks(d dialect.Dialect) option { return set(func(c *Config) { c.Engine.Dialect = d }) }

// translated serves a simulated engine that speaks the made-up dialects.
func translated(t *testing.T, x *madeup.Exchange, engine *server.Server, decodes bool) (addr string) {
	t.Helper()
	transport := &http.Transport{}
	translator, err := madeup.NewTranslator(x, engine.URL, decodes, &http.Client{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(translator)
	t.Cleanup(func() {
		s.Close()
		transport.CloseIdleConnections()
	})
	return strings.TrimPrefix(s.URL, "http://")
}

// madeUpFault is what goes wrong, and what the client gets.
type madeUpFault struct {
	name          string
	first, second *fault.Fault // of the prefill candidates
	decode        *fault.Fault
	options       []option
	mode          string
	status        int
	verdict       pd.Verdict
	reason        pd.Reason
	attempts      int
	stranded      bool // the hand-off was in an answer that never came, or decode cannot be told
}

var madeUpFaults = []madeUpFault{
	{name: "none", status: 200, verdict: pd.Remote, reason: pd.External, attempts: 1},
	{name: "first refuses", first: &fault.Fault{Leg: "prefill", Fault: "refuse"}, status: 200, verdict: pd.Remote, reason: pd.External, attempts: 2},
	{name: "first resets", first: &fault.Fault{Leg: "prefill", Fault: "reset-before"}, status: 200, verdict: pd.Remote, reason: pd.External, attempts: 2},
	{name: "first 500", first: fails("500"), status: 200, verdict: pd.Remote, reason: pd.External, attempts: 2},
	{name: "first 503", first: fails("503"), status: 200, verdict: pd.Remote, reason: pd.External, attempts: 2},
	{name: "first 429", first: fails("429"), status: 200, verdict: pd.Remote, reason: pd.External, attempts: 2},
	{name: "first without hand-off", first: &fault.Fault{Leg: "prefill", Fault: "no-handoff"}, status: 200, verdict: pd.Remote, reason: pd.External, attempts: 2},
	{name: "first hangs", first: &fault.Fault{Leg: "prefill", Fault: "slow", Arg: "stop"}, options: []option{shortPrefill}, status: 200, verdict: pd.Remote, reason: pd.External, attempts: 2},
	{name: "first 400", first: fails("400"), status: 400, verdict: pd.Refused, reason: pd.BadRequest, attempts: 1},
	{name: "first 404", first: fails("404"), status: 404, verdict: pd.Refused, reason: pd.BadRequest, attempts: 1},
	{name: "both 500", first: fails("500"), second: fails("500"), status: 200, verdict: pd.Local, reason: pd.PrefillFailed, attempts: 2},
	{name: "both 500, forced", first: fails("500"), second: fails("500"), mode: "force", status: 502, verdict: pd.Refused, reason: pd.PrefillFailed, attempts: 2},
	{name: "both 500, no budget", first: fails("500"), second: fails("500"), options: []option{noBudget}, status: 503, verdict: pd.Refused, reason: pd.Budget, attempts: 2},
	{name: "both without hand-off", first: &fault.Fault{Leg: "prefill", Fault: "no-handoff"}, second: &fault.Fault{Leg: "prefill", Fault: "no-handoff"}, status: 200, verdict: pd.Local, reason: pd.HandoffInvalid, attempts: 2},
	{name: "decode 500", decode: &fault.Fault{Leg: "decode", Fault: "status", Arg: "500", Count: 1}, status: 200, verdict: pd.Local, reason: pd.TransferFailed, attempts: 1},
	{name: "decode resets", decode: &fault.Fault{Leg: "decode", Fault: "reset-before", Count: 1}, status: 200, verdict: pd.Local, reason: pd.TransferFailed, attempts: 1},
	{name: "decode 503", decode: &fault.Fault{Leg: "decode", Fault: "status", Arg: "503", Count: 1}, status: 503, verdict: pd.Remote, reason: pd.External, attempts: 1},
	{name: "decode 400", decode: &fault.Fault{Leg: "decode", Fault: "status", Arg: "400", Count: 1}, status: 400, verdict: pd.Remote, reason: pd.External, attempts: 1},
	{name: "wrong engine", first: &fault.Fault{Leg: "prefill", Fault: "bad-handoff", Arg: "wrong-engine"}, status: 200, verdict: pd.Local, reason: pd.TransferFailed, attempts: 1, stranded: true},
}

func fails(status string) *fault.Fault {
	return &fault.Fault{Leg: "prefill", Fault: "status", Arg: status}
}

var shortPrefill = set(func(c *Config) { c.Prefill.Timeout = 200 * time.Millisecond })

// Every fault of every leg ends as the table says, with the tokens of an undisturbed engine.
func TestMadeUpDialects(t *testing.T) {
	for _, d := range madeUp {
		for _, c := range madeUpFaults {
			for _, stream := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/stream=%v", d.name, c.name, stream), func(t *testing.T) {
					t.Parallel()
					c.run(t, d.of, stream)
				})
			}
		}
	}
}

func (c *madeUpFault) run(t *testing.T, d dialect.Dialect, stream bool) {
	first, second, decode, plain := startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
	for s, f := range map[*server.Server]*fault.Fault{first: c.first, second: c.second, decode: c.decode} {
		if f == nil {
			continue
		}
		if err := s.Faults.Add(*f); err != nil {
			t.Fatal(err)
		}
	}
	x := madeup.NewExchange()
	s := startRig(t, translated(t, x, decode, true), append([]option{speaks(d)}, c.options...)...)
	q := simAsk(100, 8, stream)
	header := []string{pd.HeaderPrefill, translated(t, x, first, false) + "," + translated(t, x, second, false)}
	if c.mode != "" {
		header = append(header, pd.HeaderMode, c.mode)
	}
	got := post(t, s.url+completionsPath, q, header...)
	result := got.decision(t)
	if got.status != c.status || result.Verdict != c.verdict || result.Reason != c.reason || result.Attempts != c.attempts {
		t.Errorf("%d %v, want %d %v %v after %d attempts", got.status, result, c.status, c.verdict, c.reason, c.attempts)
	}
	if c.status == http.StatusOK {
		if want := post(t, plain.URL+completionsPath, q); textOf(got.body) != textOf(want.body) || textOf(got.body) == "" {
			t.Errorf("text %q, want %q", textOf(got.body), textOf(want.body))
		}
		if moved := decode.Engine.State().KVBytesRead > 0; moved != (c.verdict == pd.Remote) {
			t.Errorf("KV moved: %v", moved)
		}
	}
	s.end()
	if !c.stranded {
		mustFree(t, first, decode)
		mustFree(t, second, decode)
		s.mustCount(t, 0, "tandem_kv_stranded_total")
	}
}

// A client that leaves leaves nothing pinned, wherever the legs are.
func TestMadeUpClientGone(t *testing.T) {
	slow := sim.Config{TimeScale: 20}
	for _, d := range madeUp {
		for _, at := range []struct {
			name            string
			prefill, decode sim.Config
		}{{"prefill", slow, sim.Config{}}, {"decode", sim.Config{}, slow}} {
			for _, stream := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/stream=%v", d.name, at.name, stream), func(t *testing.T) {
					t.Parallel()
					prefill, decode, x := startSim(t, at.prefill), startSim(t, at.decode), madeup.NewExchange()
					s := startRig(t, translated(t, x, decode, true), speaks(d.of))
					l := startLeaver(t, s.url+completionsPath, simAsk(1000, 3000, stream), pd.HeaderPrefill, translated(t, x, prefill, false))
					if at.name == "prefill" {
						mustState(t, prefill, "prefill to run", busy)
					} else {
						mustState(t, decode, "decode to run", busy)
					}
					l.mustLeave(t)
					mustFree(t, prefill, decode)
					s.end()
					s.mustCount(t, 0, "tandem_kv_stranded_total")
					s.mustCount(t, 0, "tandem_kv_release_total", "result", "failed")
				})
			}
		}
	}
}

// The legs of a concurrent dialect overlap, and the phases still add up to the span.
func TestMadeUpPhases(t *testing.T) {
	prefill, decode, x := startSim(t, sim.Config{}), startSim(t, sim.Config{}), madeup.NewExchange()
	s := startRig(t, translated(t, x, decode, true), speaks(madeup.Meeting{}))
	begun := time.Now()
	got := post(t, s.url+completionsPath, simAsk(100, 8, false), pd.HeaderPrefill, translated(t, x, prefill, false), "TE", "trailers")
	took := time.Since(begun)
	phases, err := pd.ParseTiming(got.header.Get(pd.HeaderTiming))
	if err != nil {
		t.Fatal(err)
	}
	overlap, ok := phases.Get(pd.PhaseOverlap)
	whole, _ := phases.Get(pd.PhasePrefill)
	first, _ := phases.Get(pd.PhaseFirst)
	if _, serial := phases.Get(pd.PhaseHandoff); !ok || serial || overlap <= 0 || overlap > whole || overlap > first {
		t.Errorf("overlap %v of prefill %v and first %v", overlap, whole, first)
	}
	if sum := phases.Sum(); sum <= 0 || sum > took {
		t.Errorf("the phases add up to %v, the request took %v", sum, took)
	}
}
