package sim_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// moriioPair starts a prefill and a decode engine.
func moriioPair(t *testing.T, mode sim.MoRIIOMode) (p, d *server.Server) {
	t.Helper()
	start := func(producer bool) *server.Server {
		return simtest.Start(t, func(c *sim.Config) { c.KV.MoRIIO = sim.MoRIIOConfig{Mode: mode, Producer: producer} })
	}
	return start(true), start(false)
}

// toDecode are the members of a prefill leg that say where decode is.
func toDecode(d *server.Server, transfer string) map[string]any {
	return moriioLeg(d, transfer, map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": nil, "remote_block_ids": nil})
}

// toPrefill are the members of a decode leg that is sent together with its prefill leg.
func toPrefill(p *server.Server, transfer string) map[string]any {
	return moriioLeg(p, transfer, map[string]any{"do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": p.SideChannel, "remote_block_ids": []any{}})
}

func moriioLeg(other *server.Server, transfer string, m map[string]any) map[string]any {
	host, port, err := net.SplitHostPort(other.SideChannel)
	if err != nil {
		panic(err) // it is a listener's
	}
	handshake, err := strconv.Atoi(port)
	if err != nil {
		panic(err)
	}
	maps.Copy(m, map[string]any{"remote_host": host, "remote_handshake_port": handshake, "remote_notify_port": other.Engine.NotifyPort(),
		"remote_dp_rank": 0, "remote_dp_rank_override": true, "transfer_id": transfer, "tp_size": 1, "remote_dp_size": 1})
	return m
}

// The tokens are those of a plain engine, and no block stays, whichever engine moves the KV.
func TestMoRIIO(t *testing.T) {
	plain := simtest.Start(t)
	for _, mode := range []sim.MoRIIOMode{sim.MoRIIORead, sim.MoRIIOWrite} {
		p, d := moriioPair(t, mode)
		for i, n := range []int{1, 31, 32, 33, 100, 3000} {
			ids := simtest.Prompt(n, n)
			want := simtest.Complete(t, plain, simtest.Greedy(ids, 12, nil))
			leg := simtest.Complete(t, p, simtest.Greedy(ids, 1, toDecode(d, fmt.Sprint("tx", i))))
			var hand map[string]any
			if err := json.Unmarshal(leg.KVTransferParams, &hand); err != nil {
				t.Fatal(err)
			}
			got := simtest.Complete(t, d, simtest.Greedy(ids, 12, hand))
			if !slices.Equal(got.Tokens(), want.Tokens()) {
				t.Errorf("%s, %d prompt tokens: decode generated %v, a plain engine %v", mode, n, got.Tokens(), want.Tokens())
			}
		}
		given := simtest.WaitForState(t, p, "the release of every hand-off", simtest.Idle)
		read := simtest.WaitForState(t, d, "the end of every request", simtest.Idle)
		if read.ForeignReads != 0 || read.KVBytesRead == 0 || given.Released != 6 || given.Expired+given.StaleReads != 0 {
			t.Errorf("%s: prefill state %+v, decode state %+v", mode, given, read)
		}
	}
}

// Legs that are sent at once meet, whichever comes first.
func TestMoRIIOAtOnce(t *testing.T) {
	p, d := moriioPair(t, sim.MoRIIOWrite)
	ids := simtest.Prompt(1, 100)
	want := simtest.Complete(t, simtest.Start(t), simtest.Greedy(ids, 12, nil))
	answers := make(chan simtest.Reply, 1)
	go func() {
		answers <- simtest.Post(t, d.URL+"/v1/completions", simtest.Greedy(ids, 12, toPrefill(p, "tx1")))
	}()
	simtest.WaitForState(t, d, "decode to have blocks", func(st sim.State) bool { return st.Blocks.Used > 0 })
	simtest.Complete(t, p, simtest.Greedy(ids, 1, toDecode(d, "tx1")))
	var got simtest.Completion
	(<-answers).Decode(t, &got)
	if !slices.Equal(got.Tokens(), want.Tokens()) {
		t.Errorf("decode generated %v, a plain engine %v", got.Tokens(), want.Tokens())
	}
	simtest.WaitForState(t, p, "the release", simtest.Idle)
	simtest.WaitForState(t, d, "the end", simtest.Idle)
}

// A decode engine that reads answers a request without a hand-off from memory that no one has written; one that is written to computes it.
func TestMoRIIOAlone(t *testing.T) {
	ids := simtest.Prompt(1, 100)
	want := simtest.Complete(t, simtest.Start(t), simtest.Greedy(ids, 12, nil))
	for mode, right := range map[sim.MoRIIOMode]bool{sim.MoRIIORead: false, sim.MoRIIOWrite: true} {
		p, d := moriioPair(t, mode)
		if got := simtest.Complete(t, d, simtest.Greedy(ids, 12, nil)); slices.Equal(got.Tokens(), want.Tokens()) != right {
			t.Errorf("%s: decode alone generated %v, a plain engine %v", mode, got.Tokens(), want.Tokens())
		}
		if got := simtest.Complete(t, p, simtest.Greedy(ids, 12, nil)); !slices.Equal(got.Tokens(), want.Tokens()) {
			t.Errorf("%s: prefill alone generated %v, a plain engine %v", mode, got.Tokens(), want.Tokens())
		}
	}
}

// Small bodies end engines: those that the source of vLLM 0.32.0 has no answer to.
func TestMoRIIODies(t *testing.T) {
	decodeFlag, prefillFlag := map[string]any{"do_remote_decode": true}, map[string]any{"do_remote_prefill": true}
	for _, c := range []struct {
		name    string
		mode    sim.MoRIIOMode
		prefill bool // which engine gets it
		params  map[string]any
		dies    bool
	}{
		{"a prefill leg of NIXL", sim.MoRIIOWrite, true, decodeFlag, true},
		{"a prefill leg of NIXL", sim.MoRIIORead, true, decodeFlag, false},
		{"a prefill leg", sim.MoRIIOWrite, false, decodeFlag, true},
		{"a decode leg without an address", sim.MoRIIOWrite, true, prefillFlag, true},
		{"a decode leg without an address", sim.MoRIIOWrite, false, prefillFlag, true},
		{"a decode leg without blocks", sim.MoRIIORead, false, prefillFlag, false},
		{"a decode leg of NIXL", sim.MoRIIORead, false, map[string]any{"do_remote_prefill": true, "remote_engine_id": "e", "remote_block_ids": [][]int{{1, 2, 3, 4}}, "remote_host": "h", "remote_port": 1}, true},
		{"a decode leg of two groups", sim.MoRIIORead, false, map[string]any{"do_remote_prefill": true, "remote_engine_id": "e", "remote_block_ids": [][]int{{1}, {2}}, "remote_host": "127.0.0.1", "remote_handshake_port": 1, "remote_notify_port": 1}, true},
		{"too few blocks", sim.MoRIIORead, false, map[string]any{"do_remote_prefill": true, "remote_engine_id": "e", "remote_block_ids": [][]int{{1, 2}}, "remote_host": "127.0.0.1", "remote_handshake_port": 1, "remote_notify_port": 1}, true},
	} {
		p, d := moriioPair(t, c.mode)
		e := d
		if c.prefill {
			e = p
		}
		simtest.Post(t, e.URL+"/v1/completions", simtest.Greedy(simtest.Prompt(1, 100), 1, c.params))
		if died := e.Engine.Err() != nil; died != c.dies {
			t.Errorf("%s (%s, prefill %t): the engine has died: %t, want %t", c.name, c.mode, c.prefill, died, c.dies)
		}
	}
}

// A decode leg at a prefill engine makes that tell the other one of no blocks, which ends the reader of its notices: from then on no
// hand-off is released.
func TestMoRIIODeaf(t *testing.T) {
	p, d := moriioPair(t, sim.MoRIIOWrite)
	other, _ := moriioPair(t, sim.MoRIIOWrite)
	ids := simtest.Prompt(1, 100)
	leg := toPrefill(p, "tx1")
	simtest.Complete(t, other, simtest.Greedy(ids, 1, leg))
	simtest.WaitForState(t, p, "the end of the reader", func(sim.State) bool { return p.Engine.Deaf() })
	simtest.Complete(t, p, simtest.Greedy(ids, 1, toDecode(d, "tx2")))
	simtest.Leave(t, d, simtest.Greedy(ids, 4, toPrefill(p, "tx2")), func(st sim.State) bool { return st.Blocks.Used == 4 })
	if st := p.Engine.State(); st.Blocks.Pinned != 4 || st.Released != 0 {
		t.Errorf("prefill state %+v", st)
	}
}

// A request that decode refuses, or that its client leaves before it has blocks, is released; before its prompt is computed, too.
func TestMoRIIOReleases(t *testing.T) {
	for _, mode := range []sim.MoRIIOMode{sim.MoRIIORead, sim.MoRIIOWrite} {
		for _, first := range []bool{false, true} {
			p, d := moriioPair(t, mode)
			ids := simtest.Prompt(1, 100)
			prefill := func() { simtest.Complete(t, p, simtest.Greedy(ids, 1, toDecode(d, "tx1"))) }
			if !first {
				prefill()
			}
			params := toPrefill(p, "tx1")
			params["remote_block_ids"] = [][]int{{1, 2, 3, 4}}
			body := simtest.Greedy(ids, 1, params)
			body["model"] = "none"
			if r := simtest.Post(t, d.URL+"/v1/completions", body); r.Status != 404 {
				t.Fatalf("%d %s", r.Status, r.Body)
			}
			if first {
				simtest.WaitForState(t, p, "the notice", func(sim.State) bool { return p.Engine.Releases() == 1 })
				prefill()
			}
			if st := simtest.WaitForState(t, p, "the release", simtest.Idle); st.Released != 1 {
				t.Errorf("%s, before the prompt is computed %t: %+v", mode, first, st)
			}
		}
	}
}

// What decode does not ask for ends after defer_timeout.
func TestMoRIIOExpires(t *testing.T) {
	p, d := moriioPair(t, sim.MoRIIOWrite)
	if got := p.Engine.Config().KV.Lease; got != 60*time.Second {
		t.Errorf("blocks are kept for %v", got)
	}
	short := simtest.Start(t, func(c *sim.Config) {
		c.KV.MoRIIO, c.KV.Lease = sim.MoRIIOConfig{Mode: sim.MoRIIOWrite, Producer: true}, time.Millisecond
	})
	simtest.Complete(t, short, simtest.Greedy(simtest.Prompt(1, 100), 1, toDecode(d, "tx1")))
	if st := simtest.WaitForState(t, short, "the end of the lease", simtest.Idle); st.Expired != 1 {
		t.Errorf("%+v", st)
	}
}

// The page of such an engine has no metrics of NIXL, by which a sidecar would know another connector.
func TestMoRIIOMetrics(t *testing.T) {
	p, _ := moriioPair(t, sim.MoRIIOWrite)
	page := string(simtest.Do(t, "GET", p.URL+"/metrics", "").Body)
	if strings.Contains(page, "vllm:nixl_") || !strings.Contains(page, "vllm:prompt_tokens_by_source") {
		t.Error(page)
	}
}

// problemsOf returns what is wrong with a configuration.
func problemsOf(c sim.Config) (text string) {
	c.Problems(func(flag, format string, args ...any) { text += flag + ": " + fmt.Sprintf(format, args...) })
	return text
}

func TestMoRIIOConfig(t *testing.T) {
	for want, c := range map[string]sim.KVConfig{
		"":         {MoRIIO: sim.MoRIIOConfig{Mode: sim.MoRIIORead}},
		"is \"x\"": {MoRIIO: sim.MoRIIOConfig{Mode: "x"}},
		"one":      {MoRIIO: sim.MoRIIOConfig{Mode: sim.MoRIIORead}, Push: true},
	} {
		if got := problemsOf(sim.Config{KV: c}); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
