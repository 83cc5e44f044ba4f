package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/server"
)

// readsMoRIIO has the sidecar speak to engines of MoRIIOConnector of which decode reads.
var readsMoRIIO = set(func(c *Config) { c.Engine.Connector, c.MoRIIO.Local = "moriio", "127.0.0.1" })

// A decode engine that reads must get no request alone: it would answer from memory that no one has written. e2e/matrix has the failures of
// both modes with simulated engines.
func TestMoRIIOReadServesNoneAlone(t *testing.T) {
	both(t, func(t *testing.T, q question) {
		prefill, decode := startEngine(t, says(http.StatusInternalServerError, "application/json", `{}`)), startEngine(t, q.answer())
		s := startRig(t, decode.addr, readsMoRIIO)
		post(t, s.url+"/v1/completions", q.body, pd.HeaderPrefill, prefill.addr).mustBe(t, http.StatusServiceUnavailable, "refused;reason=decode-only;attempts=1;candidate=0")
		post(t, s.url+"/v1/completions", q.body).mustBe(t, http.StatusServiceUnavailable, "refused;reason=decode-only")
		if n := len(decode.requests()); n > 0 {
			t.Errorf("decode got %d requests", n)
		}
	})
}

// One that is written to computes prompts itself.
func TestMoRIIOWriteServesAlone(t *testing.T) {
	prefill, decode := startEngine(t, says(http.StatusInternalServerError, "application/json", `{}`)), startEngine(t, says(http.StatusOK, "application/json", `{"choices":[{"text":"alone"}]}`))
	s := startRig(t, decode.addr, set(func(c *Config) { c.MoRIIO.Write, c.MoRIIO.Local = true, "127.0.0.1" })) // llm-d's flags, with nixlv2
	post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, prefill.addr).mustBe(t, http.StatusOK, "local;reason=prefill-failed;attempts=1;candidate=0")
	if leg := prefill.only(t).body; !strings.Contains(leg, `"remote_host":"127.0.0.1"`) || !strings.Contains(leg, `"transfer_id":"tx`) {
		t.Errorf("prefill leg %s", leg)
	}
}

func TestMoRIIOProblems(t *testing.T) {
	for _, c := range []struct {
		flag   string // "": all is right
		change func(*Config)
	}{
		{"", func(c *Config) { c.MoRIIO.Write, c.MoRIIO.Local = true, "10.0.0.8" }},
		{"", func(c *Config) { c.MoRIIO.Write, c.MoRIIO.Parallel, c.Prefill.PodIP = true, true, "10.0.0.8" }},
		{"", func(c *Config) { c.Engine.Connector, c.Prefill.PodIP = "moriio", "10.0.0.8" }},
		{"", func(c *Config) { c.MoRIIO.Tensor = 8 }}, // without effect, as in llm-d
		{"", func(c *Config) {
			c.MoRIIO.Write, c.MoRIIO.Local, c.MoRIIO.Data, c.MoRIIO.LocalData, c.MoRIIO.RemoteHosts = true, "decode-0.pods", 16, 8, []string{"prefill-0.pods", "prefill-1.pods"}
		}},
		{"moriio-local-pod-ip", func(c *Config) { c.MoRIIO.Write = true }},
		{"moriio-local-pod-ip", func(c *Config) { c.Engine.Connector = "moriio" }},
		{"moriio-write-mode", func(c *Config) { c.MoRIIO.Write, c.Engine.Connector = true, "mooncake" }},
		{"moriio-parallel-dispatch", func(c *Config) { c.Engine.Connector, c.Prefill.PodIP, c.MoRIIO.Parallel = "moriio", "10.0.0.8", true }},
		{"moriio-dp-size", func(c *Config) { c.MoRIIO.Data = 8 }},
		{"moriio-dp-size", func(c *Config) { c.MoRIIO.Write, c.MoRIIO.Local, c.MoRIIO.Data = true, "10.0.0.8", 0 }},
		{"moriio-tp-size", func(c *Config) { c.MoRIIO.Tensor = 0 }},
		{"moriio-dp-size-local", func(c *Config) { c.MoRIIO.LocalData = -1 }},
		{"moriio-decode-notify-port", func(c *Config) { c.MoRIIO.DecodeNotify = 0 }},
		{"moriio-decode-handshake-port", func(c *Config) { c.MoRIIO.DecodeHandshake = 65536 }},
		{"moriio-prefill-notify-port", func(c *Config) { c.MoRIIO.PrefillNotify = -1 }},
		{"moriio-prefill-handshake-port", func(c *Config) { c.MoRIIO.PrefillHandshake = 0 }},
		{"moriio-parallel-decode-wait-timeout", func(c *Config) { c.MoRIIO.Wait = 0 }},
		{"moriio-dns-ttl-seconds", func(c *Config) { c.MoRIIO.ResolveTTL = 0 }},
		{"moriio-dns-timeout-seconds", func(c *Config) { c.MoRIIO.ResolveTimeout = 0 }},
		{"moriio-remote-hosts", func(c *Config) { c.MoRIIO.RemoteHosts = []string{"a", "b"} }},
		{"moriio-decode-hosts", func(c *Config) { c.MoRIIO.DecodeHosts, c.MoRIIO.LocalData = []string{"a", "b"}, 8 }},
		{"hedge-ratio", func(c *Config) { c.MoRIIO.Write, c.MoRIIO.Local, c.Prefill.HedgeRatio = true, "10.0.0.8", 0.01 }},
		{"enable-p2p-pull", func(c *Config) { c.MoRIIO.Write, c.MoRIIO.Local, c.Prefill.Pull = true, "10.0.0.8", true }},
	} {
		cfg := Defaults()
		c.change(&cfg)
		var got []string
		cfg.Problems(func(flag, format string, args ...any) { got = append(got, flag) })
		if c.flag == "" && len(got) > 0 || c.flag != "" && (len(got) != 1 || got[0] != c.flag) {
			t.Errorf("%+v of %s: problems of %q, want %q", cfg.MoRIIO, cfg.Engine.Connector, got, c.flag)
		}
	}
}

// With both legs at once, decode waits for prefill no longer than llm-d's flag says.
func TestMoRIIOWait(t *testing.T) {
	cfg := Defaults()
	if got := cfg.prefillTimeout(); got != time.Minute {
		t.Errorf("one after the other: %v", got)
	}
	if cfg.MoRIIO.Parallel = true; cfg.prefillTimeout() != 30*time.Second {
		t.Errorf("at once: %v", cfg.prefillTimeout())
	}
	if cfg.Prefill.Timeout = time.Second; cfg.prefillTimeout() != time.Second {
		t.Errorf("at once, with a shorter --prefill-timeout: %v", cfg.prefillTimeout())
	}
}

// An address is resolved again after its time. If that fails, or while it takes place, the last one is used.
func TestResolver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, asked := "10.0.0.1", 0
		var wait chan struct{}
		r := &resolver{ttl: 30 * time.Second, timeout: 5 * time.Second, known: map[string]*resolved{}, lookup: func(ctx context.Context, _, host string) ([]netip.Addr, error) {
			asked++
			if wait != nil {
				select {
				case <-wait:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			if answer == "" {
				return nil, errors.New("no such host")
			}
			return []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr(answer)}, nil
		}}
		must := func(want string, times int) {
			t.Helper()
			if got, err := r.resolve(t.Context(), "decode-0.pods"); got != want || (err == nil) != (want != "") || asked != times {
				t.Fatalf("%q, %v after %d lookups, want %q after %d", got, err, asked, want, times)
			}
		}
		for _, address := range []string{"10.0.0.8", "fd00::8"} {
			if got, err := r.resolve(t.Context(), address); got != address || err != nil || asked != 0 {
				t.Fatalf("an address is resolved: %q, %v", got, err)
			}
		}
		answer = ""
		must("", 1)
		answer = "10.0.0.1"
		must("10.0.0.1", 2) // a failure is not kept
		must("10.0.0.1", 2)
		answer = "10.0.0.2"
		time.Sleep(30 * time.Second)
		must("10.0.0.2", 3)
		answer = ""
		time.Sleep(30 * time.Second)
		must("10.0.0.2", 4) // the last one
		must("10.0.0.2", 4)
		answer, wait = "10.0.0.3", make(chan struct{})
		time.Sleep(30 * time.Second)
		first := make(chan string)
		go func() {
			got, err := r.resolve(t.Context(), "decode-0.pods")
			first <- fmt.Sprint(got, err)
		}()
		synctest.Wait()
		must("10.0.0.2", 5) // while another request resolves it
		close(wait)
		if got := <-first; got != "10.0.0.3<nil>" {
			t.Errorf("resolved to %s", got)
		}
		must("10.0.0.3", 5)
		wait = make(chan struct{})
		time.Sleep(30 * time.Second)
		began := time.Now()
		must("10.0.0.3", 6)
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("a name server that does not answer has held a request for %v", took)
		}
	})
}

// moriioMode is how a pair of simulated engines hands over.
type moriioMode struct {
	name     string
	mode     sim.MoRIIOMode
	parallel bool
}

var moriioModes = []moriioMode{{"read", sim.MoRIIORead, false}, {"written", sim.MoRIIOWrite, false}, {"written, at once", sim.MoRIIOWrite, true}}

// pair starts simulated engines and a sidecar of this mode.
func (m moriioMode) pair(t *testing.T, prefill, decode sim.Config) (p, d *server.Server, s *rig) {
	t.Helper()
	prefill.KV.MoRIIO, decode.KV.MoRIIO = sim.MoRIIOConfig{Mode: m.mode, Producer: true}, sim.MoRIIOConfig{Mode: m.mode}
	p, d = startSim(t, prefill), startSim(t, decode)
	s = startRig(t, addrOf(d), set(func(c *Config) {
		c.Engine.Connector, c.MoRIIO.Local, c.MoRIIO.Write, c.MoRIIO.Parallel = "moriio", "127.0.0.1", m.mode == sim.MoRIIOWrite, m.parallel
		c.MoRIIO.DecodeNotify, c.MoRIIO.DecodeHandshake = d.Engine.NotifyPort(), sidePort(t, d)
		c.MoRIIO.PrefillNotify, c.MoRIIO.PrefillHandshake = p.Engine.NotifyPort(), sidePort(t, p)
	}))
	s.Recognize(within(t)) // its request must not take a fault that is for another
	return p, d, s
}

func sidePort(t *testing.T, s *server.Server) int {
	t.Helper()
	_, port, err := net.SplitHostPort(s.SideChannel)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The tokens are those of a plain engine, and neither engine keeps a block. The count of cached tokens is prefill's.
func TestSimMoRIIO(t *testing.T) {
	t.Parallel()
	plain := startSim(t, sim.Config{})
	alone := startRig(t, addrOf(plain))
	for _, m := range moriioModes {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%v", m.name, stream), func(t *testing.T) {
				t.Parallel()
				p, d, s := m.pair(t, sim.Config{}, sim.Config{})
				for _, n := range []int{1, 32, 33, 1000} {
					ask := simAsk(n, 8, stream)
					want := textOf(post(t, alone.url+completionsPath, ask).body)
					r := post(t, s.url+completionsPath, ask, pd.HeaderPrefill, addrOf(p))
					r.mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
					if got := textOf(r.body); got != want || want == "" {
						t.Errorf("%d tokens: %q, a plain engine answers %q", n, got, want)
					}
					if !stream && !strings.Contains(r.body, `"cached_tokens":0`) {
						t.Errorf("%d tokens: %s", n, r.body)
					}
				}
				if d.Engine.State().KVBytesRead == 0 {
					t.Error("decode has read nothing")
				}
				mustFree(t, p, d)
			})
		}
	}
}

// What fails at a prefill engine costs the client time at most, but for a decode engine that computes no prompts; and leaves no block behind
// on engines that run.
func TestSimMoRIIOPrefillFails(t *testing.T) {
	t.Parallel()
	faults := map[string]fault.Fault{
		"refuses":            {Leg: "prefill", Fault: "status", Arg: "500"},
		"hangs":              {Leg: "prefill", Fault: "slow", Arg: "stop"},
		"answers a part":     {Leg: "prefill", Fault: "truncate"},
		"answers rubbish":    {Leg: "prefill", Fault: "bad-handoff", Arg: "string"},
		"hands nothing over": {Leg: "prefill", Fault: "no-handoff"},
		"dies":               {Leg: "prefill", Fault: "crash"},
	}
	for _, m := range moriioModes {
		for name, f := range faults {
			t.Run(m.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				p, d, s := m.pair(t, sim.Config{}, sim.Config{})
				if err := p.Faults.Add(f); err != nil {
					t.Fatal(err)
				}
				if name == "hangs" {
					p.Faults.Clear()
					if err := p.Faults.Add(fault.Fault{Fault: "slow", Arg: "stop"}); err != nil { // all of the engine
						t.Fatal(err)
					}
				}
				r := post(t, s.url+completionsPath, simAsk(100, 8, false), pd.HeaderPrefill, addrOf(p))
				switch {
				case m.mode == sim.MoRIIORead && r.status != http.StatusServiceUnavailable, m.mode == sim.MoRIIOWrite && r.status != http.StatusOK:
					t.Errorf("%d %s (%s)", r.status, r.body, r.header.Get(pd.HeaderDecision))
				}
				if d.Engine.Err() != nil {
					t.Errorf("decode has died: %v", d.Engine.Err())
				}
				if st := d.Engine.State(); st.ForeignReads != 0 {
					t.Errorf("decode has answered from memory of others: %+v", st)
				}
				if !m.parallel { // which leaves blocks of decode behind, as real engines do
					mustState(t, d, "decode to be free", free)
				}
			})
		}
	}
}

// Bodies that end these engines, or stop them from handing over, do not reach them from a client.
func TestSimMoRIIOHostileBodies(t *testing.T) {
	t.Parallel()
	for _, m := range moriioModes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			p, d, s := m.pair(t, sim.Config{}, sim.Config{})
			for _, params := range []string{`{"do_remote_decode":true}`, `{"do_remote_prefill":true}`, `{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e"}`,
				fmt.Sprintf(`{"do_remote_prefill":true,"remote_host":"127.0.0.1","remote_notify_port":%d,"transfer_id":"t"}`, p.Engine.NotifyPort())} {
				body := strings.Replace(simAsk(100, 4, false), "{", `{"kv_transfer_params":`+params+`,`, 1)
				post(t, s.url+completionsPath, body, pd.HeaderPrefill, addrOf(p)).mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
				alone := post(t, s.url+completionsPath, body) // which a decode engine that reads does not serve
				if want := map[bool]int{true: http.StatusServiceUnavailable, false: http.StatusOK}[m.mode == sim.MoRIIORead]; alone.status != want {
					t.Errorf("%s: %d %s", params, alone.status, alone.body)
				}
			}
			for _, e := range []*server.Server{p, d} {
				if e.Engine.Err() != nil {
					t.Errorf("an engine has died: %v", e.Engine.Err())
				}
			}
			mustFree(t, p, d)
		})
	}
}

// A client that leaves strands no block, at whatever time.
func TestSimMoRIIOClientGone(t *testing.T) {
	t.Parallel()
	slow := sim.Config{TimeScale: 20}
	for _, m := range moriioModes {
		for name, at := range map[string]func(p, d *server.Server){
			"during prefill": func(p, _ *server.Server) { mustState(t, p, "prefill to run", busy) },
			"during decode": func(_, d *server.Server) {
				mustState(t, d, "decode to run", func(st sim.State) bool { return st.KVBytesRead > 0 })
			},
		} {
			t.Run(m.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				p, d, s := m.pair(t, slow, slow)
				l := startLeaver(t, s.url+completionsPath, simAsk(1000, 3000, true), pd.HeaderPrefill, addrOf(p))
				at(p, d)
				l.mustLeave(t)
				mustFree(t, p, d)
				s.end()
				s.mustCount(t, 0, "tandem_kv_stranded_total")
			})
		}
	}
}

// What decode refuses is released at prefill.
func TestSimMoRIIORefused(t *testing.T) {
	t.Parallel()
	for _, m := range moriioModes {
		for _, status := range []string{"400", "404", "500", "503"} {
			t.Run(m.name+"/"+status, func(t *testing.T) {
				t.Parallel()
				p, d, s := m.pair(t, sim.Config{}, sim.Config{})
				if err := d.Faults.Add(fault.Fault{Leg: "decode", Fault: "status", Arg: status, Count: 1}); err != nil {
					t.Fatal(err)
				}
				r := post(t, s.url+completionsPath, simAsk(100, 8, false), pd.HeaderPrefill, addrOf(p))
				if status != "500" && fmt.Sprint(r.status) != status || status == "500" && m.mode == sim.MoRIIOWrite && r.status != http.StatusOK {
					t.Errorf("%d %s", r.status, r.body)
				}
				s.end()
				if m.parallel && status == "500" { // decode may have told prefill of its blocks: a release would keep them for good
					mustState(t, d, "decode to be free", free)
					s.mustCount(t, 1, "tandem_kv_release_total", "way", "cancel", "result", "unsure")
					return
				}
				mustFree(t, p, d)
			})
		}
	}
}
