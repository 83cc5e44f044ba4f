package sidecar

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/simtest"
)

var update = flag.Bool("update", false, "write testdata/pairs.txt anew")

// setting is what a sidecar is told of its engines.
type setting struct {
	name  string // its flags, without --
	apply func(*Config)
}

// settings are all protocols, with the modes of those that have some.
func settings() (list []setting) {
	for _, row := range dialect.Table {
		connector := func(c *Config) { c.Engine.Connector, c.Prefill.PodIP = row.Name, "127.0.0.1" }
		list = append(list, setting{row.Name, connector})
		if row.Name == protocolMoRIIO {
			list = append(list, setting{row.Name + " moriio-write-mode", func(c *Config) { connector(c); c.MoRIIO.Write = true }},
				setting{row.Name + " moriio-write-mode moriio-parallel-dispatch", func(c *Config) { connector(c); c.MoRIIO.Write, c.MoRIIO.Parallel = true, true }})
		}
	}
	return list
}

// enginePair is a pair of simulated engines.
type enginePair struct {
	prefill, decode string // addresses
	alone           string // URL of an engine of the kind that serves whole requests
	ports           func(*Config)
	check           func(t *testing.T) // that both engines run, and hold nothing
}

// enginePairs are all kinds of simulated engines.
var enginePairs = []struct {
	name  string
	start func(t *testing.T) enginePair
}{
	{"vLLM, NixlConnector", simPair(func(bool) sim.Config { return sim.Config{} })},
	{"vLLM, NixlPushConnector", simPair(func(bool) sim.Config { return sim.Config{KV: sim.KVConfig{Push: true}} })},
	{"vLLM, MoRIIOConnector, read_mode", simPair(moriioConfig(sim.MoRIIORead))},
	{"vLLM, MoRIIOConnector", simPair(moriioConfig(sim.MoRIIOWrite))},
	{"SGLang", func(t *testing.T) enginePair {
		prefill, decode := simtest.SGLang(t, sglang.Prefill), simtest.SGLang(t, sglang.Decode)
		return enginePair{hostPort(prefill.URL), hostPort(decode.URL), simtest.SGLang(t, sglang.Plain).URL, nil, simtest.Pair{Prefill: prefill, Decode: decode}.Rests}
	}},
	{"TensorRT-LLM", func(t *testing.T) enginePair {
		prefill, decode := simtest.TRTLLM(t), simtest.TRTLLM(t)
		return enginePair{hostPort(prefill.URL), hostPort(decode.URL), simtest.TRTLLM(t).URL, nil, func(*testing.T) {}}
	}},
}

func moriioConfig(mode sim.MoRIIOMode) func(prefill bool) sim.Config {
	return func(prefill bool) sim.Config {
		return sim.Config{KV: sim.KVConfig{MoRIIO: sim.MoRIIOConfig{Mode: mode, Producer: prefill}}}
	}
}

// simPair starts vLLM's engines.
func simPair(of func(prefill bool) sim.Config) func(t *testing.T) enginePair {
	return func(t *testing.T) enginePair {
		p, d := startSim(t, of(true)), startSim(t, of(false))
		return enginePair{addrOf(p), addrOf(d), startSim(t, sim.Config{}).URL, func(c *Config) {
			if p.Engine.NotifyPort() != 0 {
				c.MoRIIO.DecodeNotify, c.MoRIIO.DecodeHandshake = d.Engine.NotifyPort(), sidePort(t, d)
				c.MoRIIO.PrefillNotify, c.MoRIIO.PrefillHandshake = p.Engine.NotifyPort(), sidePort(t, p)
			}
		}, func(t *testing.T) {
			t.Helper()
			for _, e := range []*server.Server{p, d} {
				if err := e.Engine.Err(); err != nil {
					t.Errorf("an engine has ended: %v", err)
				}
			}
			mustState(t, d, "decode to be free", free)
		}}
	}
}

// TestEveryPair: a sidecar of each setting before engines of each kind gives no wrong token and keeps no client waiting, and what it does
// with a request that is planned remote, and with one that is not, is what testdata/pairs.txt says. Answer, log and metric tell it.
func TestEveryPair(t *testing.T) {
	lines := make([][]string, len(enginePairs))
	t.Run("pairs", func(t *testing.T) {
		for i, kind := range enginePairs {
			lines[i] = make([]string, len(settings()))
			for j, s := range settings() {
				t.Run(s.name+"/"+kind.name, func(t *testing.T) {
					t.Parallel()
					lines[i][j] = tryPair(t, s, kind.start(t))
				})
			}
		}
	})
	var b strings.Builder
	for i, kind := range enginePairs {
		fmt.Fprintf(&b, "== %s ==\n", kind.name)
		for j, s := range settings() {
			fmt.Fprintf(&b, "%s: %s\n", s.name, lines[i][j])
		}
	}
	file := filepath.Join("testdata", "pairs.txt")
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != b.String() {
		t.Errorf("%s is not what was seen (%v): run the test with -update, and read the difference\n%s", file, err, b.String())
	}
}

// tryPair returns what a pair of engines makes of requests, and which of the engines the sidecar has found to speak another protocol.
func tryPair(t *testing.T, s setting, engines enginePair) string {
	rig := startRig(t, engines.decode, set(s.apply), set(func(c *Config) {
		if engines.ports != nil {
			engines.ports(c)
		}
	}))
	rig.Recognize(within(t))
	var planned, local string
	for _, stream := range []bool{false, true} {
		ask := `{"model":"tiny","prompt":"` + strings.Repeat("the quick brown fox ", 6) + fmt.Sprintf(`","max_tokens":8,"temperature":0,"stream":%v}`, stream)
		want := completionText(post(t, engines.alone+completionsPath, ask).body)
		try := func(header ...string) string {
			r := post(t, rig.url+completionsPath, ask, header...)
			switch got := completionText(r.body); {
			case r.status == http.StatusOK && (got != want || want == ""):
				t.Errorf("stream %v, headers %q: WRONG TOKENS %q, want %q", stream, header, got, want)
			case r.status != http.StatusOK && r.status != http.StatusServiceUnavailable:
				t.Errorf("stream %v, headers %q: %d %s", stream, header, r.status, r.body)
			}
			result, err := pd.ParseResult(r.header.Get(pd.HeaderDecision))
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%d %s %s", r.status, result.Verdict, result.Reason)
		}
		planned, local = either(t, planned, try(pd.HeaderPrefill, engines.prefill)), either(t, local, try())
	}
	found := ""
	for _, role := range []pd.Role{pd.RolePrefill, pd.RoleDecode} {
		if rig.mismatches(role) > 0 {
			found += ", " + role.String() + " is found out"
		}
	}
	rig.end()
	engines.check(t)
	return planned + "; unplanned " + local + found
}

// either returns what streams and whole answers have in common, which must be all.
func either(t *testing.T, whole, streamed string) string {
	t.Helper()
	if whole != "" && whole != streamed {
		t.Errorf("a stream gets %q, a whole answer %q", streamed, whole)
	}
	return streamed
}
