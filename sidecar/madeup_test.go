package sidecar

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/madeup"
	"github.com/tandem-serving/tandem/sim/server"
)

// Every fault of engines that speak made-up dialects is in e2e/matrix. The tests here are about engines that work.

// madeUp are dialects that no engine speaks: the sidecar has no code for them.
var madeUp = []struct {
	name string
	of   dialect.Dialect
}{{"serial", madeup.Ticket{}}, {"concurrent", madeup.Meeting{}}}

// speaks returns an option: the sidecar uses a dialect that is not in the table.
func speaks(d dialect.Dialect) option { return set(func(c *Config) { c.Engine.Dialect = d }) }

// startMadeUp serves a pair of simulated engines that speak the made-up dialects.
func startMadeUp(t *testing.T, prefillCfg, decodeCfg sim.Config) (prefill, decode *server.Server) {
	t.Helper()
	x := madeup.NewExchange()
	return startSim(t, prefillCfg, x.Engine(false)), startSim(t, decodeCfg, x.Engine(true))
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
					prefill, decode := startMadeUp(t, at.prefill, at.decode)
					s := startRig(t, addrOf(decode), speaks(d.of))
					l := startLeaver(t, s.url+completionsPath, simAsk(1000, 3000, stream), pd.HeaderPrefill, addrOf(prefill))
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

// Streams of engines that meet may have their headers long before prefill has ended: only then is a stream's silence that of
// the decode engine.
func TestMadeUpLongPrefill(t *testing.T) {
	const limit = 20 * time.Millisecond
	begun, done := make(chan struct{}), make(chan struct{})
	prefill := startEngine(t, untilAbort(func(w http.ResponseWriter, r *asked) {
		<-begun
		<-time.After(10 * limit)
		meets(200)(w, r)
		close(done)
	}))
	decode := startEngine(t, then(streams(), func(_ http.ResponseWriter, r *asked) {
		close(begun)
		select {
		case <-done:
		case <-r.Context().Done():
		}
	}, streams(firstEvent, doneEvent)), ask(true).answer())
	s := startRig(t, decode.addr, speaks(madeup.Meeting{}), set(func(c *Config) { c.Engine.FirstEvent = limit }))
	got := post(t, s.url+completionsPath, ask(true).body, pd.HeaderPrefill, prefill.addr)
	got.mustBe(t, 200, "remote;reason=external;attempts=1;candidate=0")
}

// The legs of a concurrent dialect overlap, and the phases still add up to the span.
func TestMadeUpPhases(t *testing.T) {
	prefill, decode := startMadeUp(t, sim.Config{}, sim.Config{})
	s := startRig(t, addrOf(decode), speaks(madeup.Meeting{}))
	begun := time.Now()
	got := post(t, s.url+completionsPath, simAsk(100, 8, false), pd.HeaderPrefill, addrOf(prefill), "TE", "trailers")
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
