package sidecar

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/transfer"
)

// A decode engine that is not ready is waited for, in silence; one that was away is another one.
func TestWarmupWaitsForDecode(t *testing.T) {
	prefill := startEngine(t, offering(handoff))
	answer := says(200, "application/json", `{"data":[{"id":"m"}]}`)
	decode := startEngine(t, answer)
	var log logBook
	w := byHand(startRig(t, decode.addr, log.to), all(t, prefill.addr))
	sick := func(is bool) {
		decode.mu.Lock()
		defer decode.mu.Unlock()
		decode.sick = is
	}
	for i, step := range []struct {
		sick, warm bool
		handoffs   int // by then
	}{{true, false, 0}, {true, false, 0}, {false, true, 1}, {false, true, 1}, {true, false, 1}, {false, true, 2}} {
		sick(step.sick)
		later(w)
		w.step(t)
		if got := len(prefill.requests()); got != step.handoffs || w.warm(prefill.addr) != step.warm {
			t.Errorf("step %d: %d hand-offs, want %d; warm: %v", i, got, step.handoffs, w.warm(prefill.addr))
		}
	}
	if log.lines("level=WARN") != 0 {
		t.Errorf("it said %s", log.text.String())
	}
}

// later has everything be due again.
func later(w *warmup) {
	w.looked = time.Time{}
	for _, p := range w.known {
		p.again, p.ask = time.Time{}, time.Time{}
	}
}

// A prefill engine that was away is another one.
func TestWarmupNoticesAbsence(t *testing.T) {
	decode := startSim(t, sim.Config{})
	stays, goes := startSim(t, sim.Config{}), startEngine(t, says(500, "text/plain", ""))
	w := byHand(startRig(t, addrOf(decode)), all(t, addrOf(stays), goes.addr))
	w.step(t)
	for t, p := range w.known { // as if it had gone well
		p.warm = p.warm || t.String() == goes.addr
	}
	goes.fallSick()
	later(w)
	w.round(within(t))
	if w.warm(goes.addr) || !w.warm(addrOf(stays)) {
		t.Error("the pair with the one that is away counts as warm, or the other does not")
	}
}

// keeps gives a sidecar a notifier.
func keeps(t *testing.T, sideChannel int) option {
	t.Helper()
	agent, err := transfer.NewTCP(transfer.TCPConfig{Name: "sidecar"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { agent.Close() })
	return set(func(c *Config) { c.Keep.Notifier, c.Keep.SideChannel = agent, sideChannel })
}

// portOf is the port of an address.
func portOf(t *testing.T, address string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Engines are met before they have handed anything over, once; one that comes under the address of another is met again,
// and the pair with it is cold.
func TestWarmupJoins(t *testing.T) {
	prefill, decode := startSim(t, sim.Config{}), startSim(t, sim.Config{})
	var log logBook
	s := startRig(t, addrOf(decode), keeps(t, portOf(t, prefill.SideChannel)), log.to)
	w := &warmup{s: s.Server, find: all(t, addrOf(prefill), "127.0.0.1:1")} // two ports of one host
	engine := func() string {
		for _, p := range w.known {
			return p.engine
		}
		return ""
	}
	joined := func(want float64, id string) {
		t.Helper()
		later(w)
		w.round(within(t))
		s.mustCount(t, want, "tandem_lease_joins_total", "result", "ok")
		if engine() != id {
			t.Errorf("engine %q is met, want %q", engine(), id)
		}
	}
	joined(1, prefill.Engine.ID())
	joined(1, prefill.Engine.ID())
	if got := prefill.Engine.State().Requests; got != 0 {
		t.Errorf("%d requests without --warm-up", got)
	}

	s.cfg.Keep.WarmUp = true
	w.step(t)
	sideChannel := prefill.SideChannel
	prefill.Close()
	joined(1, prefill.Engine.ID()) // nobody is there, which says nothing new
	if log.lines("level=WARN") != 1 {
		t.Errorf("it said %s", log.text.String())
	}
	next := startSim(t, sim.Config{Transfer: sim.TransferConfig{SideChannel: sideChannel}})
	for _, p := range w.known {
		p.warm = true
	}
	joined(2, next.Engine.ID())
	for target, p := range w.known {
		if p.warm {
			t.Errorf("the pair with %s counts as warm", target)
		}
	}
}

// Many side channels that do not answer neither hold up a drain nor each other.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most, done := 0, 0, 0
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		together(ctx, make([]int, 100), func(int) {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(2 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			running--
			done++
		})
		if most != looksAtOnce || done != 3*looksAtOnce || running != 0 {
			t.Errorf("%d at once, %d done, %d running", most, done, running)
		}
	})
}

// While users' requests still run, nothing is begun.
func TestWarmupBeginsNothing(t *testing.T) {
	engine := newGate()
	s := startRig(t, startEngine(t, engine.act).addr)
	l := startLeaver(t, s.url+completionsPath, ask(false).body)
	wait(t, engine.arrived, "a user's request")
	drained := startDrain(t, s, within(t))
	w := byHand(s, func(context.Context) ([]pd.Target, error) {
		t.Error("engines are looked for")
		return nil, nil
	})
	ended := make(chan struct{})
	s.life.run(func(ctx context.Context) { defer close(ended); w.run(ctx) })
	l.mustLeave(t)
	wait(t, drained, "the drain")
	wait(t, ended, "the end of the warm-up")
}

// What is under way when the sidecar drains ends, and is given back.
func TestWarmupDrains(t *testing.T) {
	models := says(200, "application/json", `{"data":[{"id":"m"}]}`)
	for _, c := range []struct {
		name     string
		prefill  func(gate) act
		decode   func(gate) act
		releases float64
	}{
		{"prefill", func(g gate) act { return g.act }, func(gate) act { return hangs }, 0},
		{"decode", func(gate) act { return offering(handoff) }, func(g gate) act { return g.act }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGate()
			prefill, decode := startEngine(t, c.prefill(g)), startEngine(t, models, c.decode(g))
			s := startRig(t, decode.addr)
			w := byHand(s, all(t, prefill.addr))
			ended := make(chan struct{})
			s.life.run(func(ctx context.Context) { defer close(ended); w.run(ctx) })
			wait(t, g.arrived, "the leg")
			s.Drain(within(t))
			wait(t, ended, "the end of the warm-up")
			s.mustCount(t, c.releases, "tandem_kv_release_total", "way", "cancel", "result", "ok")
			s.mustCount(t, c.releases, "tandem_kv_release_total")
			s.mustCount(t, 0, "tandem_warmup_total")
			s.mustCount(t, 0, "tandem_open_requests")
		})
	}
}
