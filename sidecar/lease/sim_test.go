package lease

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/api"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/transport"
)

// prefilled has a simulated engine finish a prefill, and gives its hand-off.
func prefilled(t *testing.T, e *sim.Engine) dialect.Pin {
	t.Helper()
	const ask = `{"model":"tiny","prompt":[20,21,22,23,24],"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}}`
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(ask))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	api.NewHandler(e, fault.NewList()).ServeHTTP(w, r)
	d, _ := dialect.New("nixlv2", dialect.Options{})
	a, err := d.Attempt(t.Context(), &request.Request{API: pd.APICompletions}, pd.Target{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := a.Accept(w.Body.Bytes())
	if err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return h.(dialect.Leased).Pin()
}

func mustPin(t *testing.T, e *sim.Engine, blocks int, expired int64) {
	t.Helper()
	synctest.Wait()
	if st := e.State(); st.Blocks.Pinned != blocks || st.Expired != expired || st.StaleReads != 0 {
		t.Fatalf("want %d blocks pinned and %d expired: %+v", blocks, expired, st)
	}
}

// The simulated engine keeps the blocks of a hold for exactly as long as Until says, and frees them when it is released.
func TestSimHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1")
		cfg := sim.Config{Transfer: sim.TransferConfig{SideChannel: "10.0.0.1:5600", EngineID: "e", Transport: w.agent("e")}}
		cfg.Transfer.Fetch = func(context.Context, string) ([]byte, error) { return nil, errRefused } // it never reads
		p.ranks[0] = cfg.Transfer.Transport
		e, err := sim.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		b := w.registry()

		held := b.Hold(prefilled(t, e), time.Now())
		time.Sleep(10 * term)
		mustPin(t, e, 1, 0)
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustPin(t, e, 0, 0)

		left := b.Hold(prefilled(t, e), time.Now())
		time.Sleep(2 * term)
		synctest.Wait() // a heartbeat that is on its way when the hold ends prolongs it without saying so
		left.End()
		time.Sleep(time.Until(left.Until()) - time.Nanosecond)
		mustPin(t, e, 1, 0)
		time.Sleep(time.Millisecond)
		mustPin(t, e, 0, 1)
		if st := e.State(); st.Released != 1 {
			t.Errorf("%+v", st)
		}
		b.Close()
	})
}

// The same over sockets, where the engine has a side channel of its own.
func TestSimRelease(t *testing.T) {
	s, err := server.Start(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := New(Config{Noticer: vllm, Lease: term, Notifier: tcpAgent(t, transport.TCPConfig{Name: "sidecar"})})
	defer b.Close()
	for range 3 {
		if err := b.Hold(prefilled(t, s.Engine), time.Now()).Release(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	back := func(st sim.State) bool { return st.Released == 3 }
	st, err := s.Engine.WaitState(within(t), back)
	if err != nil || st.Blocks.Pinned != 0 || st.Expired != 0 || st.StaleReads != 0 {
		t.Errorf("%+v, %v", st, err)
	}
}
