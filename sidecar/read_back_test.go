package sidecar

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
)

// readsBack is a sidecar whose pod has the address that planOf names.
var readsBack = set(func(c *Config) { c.Prefill.ReadBack, c.Prefill.PodIP = true, "10.1.2.3" })

// planOf returns headers of a picker that sends a request to two pods, and says how much of its prompt a third, or the first, has.
func planOf(prefill, source string, tokens int) []string {
	return []string{pd.HeaderPrefill, prefill, pd.HeaderSource, source, pd.HeaderPlan, fmt.Sprintf("%s;source-tokens=%d", remotePlan, tokens)}
}

const ourPod = "10.1.2.3:8000"

// turn is a request for a conversation's next turn, and its answer.
type turn struct {
	prompt []int
	stream bool
}

func (q turn) body(members string) string {
	ids, err := json.Marshal(q.prompt)
	if err != nil {
		panic(err) // numbers always marshal
	}
	return fmt.Sprintf(`{"model":"tiny","prompt":%s,"max_tokens":40,"temperature":0,"return_token_ids":true,"stream":%t%s}`, ids, q.stream, members)
}

// tokensOf returns the ids that an answer has, of either form.
func tokensOf(t *testing.T, body string) (ids []int) {
	t.Helper()
	for line := range strings.Lines(body) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "data: ")
		if line == "" || line == "[DONE]" {
			continue
		}
		var event struct {
			Choices []struct {
				IDs []int `json:"token_ids"`
			}
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		for _, c := range event.Choices {
			ids = append(ids, c.IDs...)
		}
	}
	return ids
}

// computed returns how many tokens of prompts an engine has computed.
func computed(t *testing.T, s *server.Server) (n float64) {
	t.Helper()
	for line := range strings.Lines(string(s.Engine.MetricsPage())) {
		if strings.HasPrefix(line, "vllm:prompt_tokens_by_source_total{") && strings.Contains(line, `source="local_compute"`) {
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

// TestReadBack: of a conversation's next turn each prefill engine computes what is new, also one that has seen nothing of it, and decode
// at most a block. The answers are those of a plain engine, and nothing stays pinned.
func TestReadBack(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, q question) {
		stream := strings.Contains(q.body, `"stream":true`)
		decode, plain := startSim(t, sim.Config{}), startSim(t, sim.Config{})
		s := startRig(t, addrOf(decode), readsBack)
		var prompt []int
		for n := range 5 {
			prefill := startSim(t, sim.Config{KV: sim.KVConfig{Bidirectional: true}})
			known := len(prompt)
			for i := range 200 {
				prompt = append(prompt, 20+(int(prompts.Add(1))*131+i*7)%900)
			}
			body := turn{prompt, stream}.body("")
			before := computed(t, decode)
			got := post(t, s.url+completionsPath, body, planOf(addrOf(prefill), ourPod, max(1, known/32*32))...)
			got.mustBe(t, http.StatusOK, "remote;reason=uncached;attempts=1;candidate=0")
			want := tokensOf(t, post(t, plain.URL+completionsPath, body).body)
			if ids := tokensOf(t, got.body); len(want) != 40 || !slices.Equal(ids, want) {
				t.Fatalf("turn %d: tokens %v, a plain engine has %v", n, ids, want)
			}
			if here, there := computed(t, prefill), computed(t, decode)-before; here > 200+32 || there > 32 {
				t.Errorf("turn %d of %d tokens: prefill computes %v, decode %v", n, len(prompt), here, there)
			}
			mustFree(t, prefill, decode)
			prompt = append(prompt, want[:len(want)-1]...)
		}
		s.end()
		s.mustCount(t, 4, "tandem_kv_pull_requests_total", "result", "asked")
		s.mustCount(t, 1, "tandem_kv_pull_requests_total", "result", "not-needed")
		s.mustCount(t, 0, "tandem_kv_stranded_total")
	})
}

// TestReadBackOfNothing: whatever a prefill leg cannot read, it computes, as without the flag.
func TestReadBackOfNothing(t *testing.T) {
	t.Parallel()
	all := func(c *Config) { c.Prefill.ReadBack, c.Prefill.PodIP = true, "10.1.2.3" }
	for _, c := range []struct {
		name, source string
		tokens       int
		members      string
		flags        func(*Config)
		result       string // "": nothing is counted
	}{
		{"off", ourPod, 640, "", func(c *Config) { c.Prefill.PodIP = "10.1.2.3" }, ""},
		{"another pod", "10.1.2.4:8000", 640, "", all, ""},
		{"a few tokens", ourPod, 127, "", all, "not-needed"},
		{"the client cuts the prompt itself", ourPod, 640, `,"truncate_prompt_tokens":600`, all, "not-needed"},
		{"several choices", ourPod, 640, `,"n":2,"temperature":1`, all, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, says(http.StatusOK, "application/json", `{"choices":[{"text":"x"}]}`))
			s := startRig(t, decode.addr, set(c.flags))
			body := `{"prompt":"x"` + c.members + `}`
			if got := post(t, s.url+completionsPath, body, planOf(prefill.addr, c.source, c.tokens)...); got.status != http.StatusOK {
				t.Fatalf("%d %s", got.status, got.body)
			}
			for _, leg := range append(prefill.requests(), decode.requests()...) {
				if strings.Contains(leg.body, "truncation_side") || strings.Contains(leg.body, "remote_blocks_expiry_time") {
					t.Errorf("a leg has %s", leg.body)
				}
			}
			want := 0.0
			if c.result != "" {
				want = 1
			}
			s.mustCount(t, want, "tandem_kv_pull_requests_total", "result", "not-needed")
			s.mustCount(t, 0, "tandem_kv_pull_requests_total", "result", "asked")
		})
	}
}

// TestReadBackFails: a local engine that hands nothing over costs a second at most, once a request, and prefill computes.
func TestReadBackFails(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]act{
		"refuses":     says(http.StatusBadRequest, "application/json", `{"error":{"message":"truncation_side"}}`),
		"fails":       says(http.StatusInternalServerError, "application/json", `{}`),
		"no hand-off": says(http.StatusOK, "application/json", `{"choices":[{"text":"x"}],"kv_transfer_params":null}`),
		"incomplete":  offering(`{"do_remote_prefill":true}`),
		"ends":        resets,
		"hangs":       hangs,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			decode := startEngine(t, answer, says(http.StatusOK, "application/json", `{"choices":[{"text":"x"}]}`))
			first, second := startEngine(t, says(http.StatusInternalServerError, "application/json", `{}`)), startEngine(t, offering(handoffParams))
			s := startRig(t, decode.addr, readsBack)
			got := post(t, s.url+completionsPath, `{"prompt":"x"}`, planOf(first.addr+","+second.addr, ourPod, 640)...)
			got.mustBe(t, http.StatusOK, "remote;reason=uncached;attempts=2;candidate=1")
			if legs := decode.requests(); len(legs) != 2 || !strings.Contains(legs[0].body, `"truncate_prompt_tokens":640`) {
				t.Errorf("the local engine got %d legs", len(legs))
			}
			for _, leg := range append(first.requests(), second.requests()...) {
				if strings.Contains(leg.body, "expiry") {
					t.Errorf("prefill got %s", leg.body)
				}
			}
			s.mustCount(t, 1, "tandem_kv_pull_requests_total", "result", "failed")
		})
	}
}

// TestReadBackUnread: what a prefill engine does not read is released, and the next request offers it nothing.
func TestReadBackUnread(t *testing.T) {
	t.Parallel()
	prefill, decode := startSim(t, sim.Config{}), startSim(t, sim.Config{}) // without bidirectional_kv_xfer
	s := startRig(t, addrOf(decode), readsBack)
	prompt := make([]int, 700)
	for i := range prompt {
		prompt[i] = 20 + (int(prompts.Add(1))*131+i*7)%900
	}
	for range 2 {
		prompt[699]++
		post(t, s.url+completionsPath, turn{prompt, false}.body(""), planOf(addrOf(prefill), ourPod, 640)...).mustBe(t, http.StatusOK, "remote;reason=uncached;attempts=1;candidate=0")
	}
	s.end()
	mustFree(t, prefill, decode)
	s.mustCount(t, 1, "tandem_kv_pull_requests_total", "result", "unread")
	s.mustCount(t, 1, "tandem_kv_pull_requests_total", "result", "not-needed")
}

// TestReadBackRefused: a prefill engine that refuses its leg reads nothing, and is what releases the blocks of the local engine.
func TestReadBackRefused(t *testing.T) {
	t.Parallel()
	prefill, decode := startSim(t, sim.Config{MaxModelLen: 600}), startSim(t, sim.Config{})
	s := startRig(t, addrOf(decode), readsBack)
	prompt := make([]int, 700)
	for i := range prompt {
		prompt[i] = 20 + (int(prompts.Add(1))*131+i*7)%900
	}
	post(t, s.url+completionsPath, turn{prompt, false}.body(""), planOf(addrOf(prefill), ourPod, 640)...)
	s.end()
	mustFree(t, prefill, decode)
	s.mustCount(t, 1, "tandem_kv_pull_requests_total", "result", "asked")
}

// TestReadBackExpired: a prefill engine that comes to a leg when the blocks may have been freed does not read them, and the request is
// computed elsewhere.
func TestReadBackExpired(t *testing.T) {
	t.Parallel()
	// The margin of five seconds is longer than the lease: no leg comes in time.
	prefill, decode, plain := startSim(t, sim.Config{KV: sim.KVConfig{Bidirectional: true}}), startSim(t, sim.Config{KV: sim.KVConfig{Lease: 2 * time.Second}}), startSim(t, sim.Config{})
	s := startRig(t, addrOf(decode), readsBack, set(func(c *Config) { c.Fallback.Lease = 2 * time.Second }))
	prompt := make([]int, 700)
	for i := range prompt {
		prompt[i] = 20 + (int(prompts.Add(1))*131+i*7)%900
	}
	body := turn{prompt, false}.body("")
	got := post(t, s.url+completionsPath, body, planOf(addrOf(prefill), ourPod, 640)...)
	got.mustBe(t, http.StatusOK, "local;reason=prefill-failed;attempts=1;candidate=0")
	if want := tokensOf(t, post(t, plain.URL+completionsPath, body).body); !slices.Equal(tokensOf(t, got.body), want) {
		t.Errorf("tokens %v, a plain engine has %v", tokensOf(t, got.body), want)
	}
	s.end()
	mustState(t, decode, "the end of the lease", free)
}

// TestReadBackNeeds: what the flag needs besides.
func TestReadBackNeeds(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"--pod-ip":                  func(c *Config) { c.Prefill.PodIP = "" },
		"nixlv2":                    func(c *Config) { c.Engine.Connector = "mooncake" },
		"--enable-p2p-pull":         func(c *Config) { c.Prefill.Pull = true },
		"--model-server-host=node1": func(c *Config) { c.Engine.Host = "node1" },
	} {
		c := Defaults()
		c.Prefill.ReadBack, c.Prefill.PodIP = true, "10.1.2.3"
		change(&c)
		var said []string
		c.Problems(func(flag, format string, args ...any) { said = append(said, flag+": "+fmt.Sprintf(format, args...)) })
		if len(said) != 1 || !strings.HasPrefix(said[0], "read-back: ") || !strings.Contains(said[0], want) {
			t.Errorf("%s: %q", want, said)
		}
	}
}
