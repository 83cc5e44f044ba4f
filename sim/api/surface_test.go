package api_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// TestEventSources: the engine tells where it publishes KV events, in the members of the real one.
func TestEventSources(t *testing.T) {
	s := simtest.Start(t, func(c *sim.Config) {
		c.Events = sim.EventsConfig{Publish: "127.0.0.1:0", Replay: "127.0.0.1:0", Topic: "kv@127.0.0.1:8100@tiny"}
	})
	publish, replay := s.Engine.EventAddresses()
	want := fmt.Sprintf(`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://%s","replay_endpoint":"tcp://%s",`+
		`"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv@127.0.0.1:8100@tiny"}}`, publish, replay)
	resp, err := http.Get(s.URL + "/kv_event_sources")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}

// TestKeepAlive: an idle connection is closed by FIN, not by RST, and not before its time.
func TestKeepAlive(t *testing.T) {
	s := simtest.Start(t, func(c *sim.Config) { c.KeepAlive = 300 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(simtest.Timeout)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	for range 2 {
		fmt.Fprint(conn, "GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("answer %v, %v", resp, err)
		}
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection ended with %v", err)
	}
	if got := simtest.Start(t).Engine.Config().KeepAlive; got != 5*time.Second {
		t.Errorf("the default is %v", got)
	}
}

// TestBrokenFraming: a body that is not valid HTTP is answered with 400, and ends its connection.
func TestBrokenFraming(t *testing.T) {
	s := simtest.Start(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(simtest.Timeout)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n")
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(answer); !strings.HasPrefix(text, "HTTP/1.1 400 ") || !strings.HasSuffix(text, "\r\n\r\nInvalid HTTP request received.") {
		t.Errorf("answer %q", text)
	}
}

// TestInvocations: the path serves both APIs, with their hand-offs.
func TestInvocations(t *testing.T) {
	s := simtest.Start(t)
	for object, body := range map[string]map[string]any{
		"text_completion": {"prompt": "a b c", "max_tokens": 1},
		"chat.completion": {"messages": []any{map[string]any{"role": "user", "content": "a"}}, "max_tokens": 1},
	} {
		var got struct{ Object string }
		simtest.Post(t, s.URL+"/invocations", body).Decode(t, &got)
		if got.Object != object {
			t.Errorf("%v was answered by a %q", body, got.Object)
		}
	}
	forged := map[string]any{"prompt": "a b c", "kv_transfer_params": map[string]any{"do_remote_prefill": true}}
	if r := simtest.Post(t, s.URL+"/invocations", forged); r.Status != http.StatusInternalServerError || s.Wait() == nil {
		t.Errorf("a forged hand-off was answered with %d %s", r.Status, r.Body)
	}
}

// TestChoicesAndSeeds: choices differ, seeds change the tokens, and the same request has the same answer.
func TestChoicesAndSeeds(t *testing.T) {
	s := simtest.Start(t)
	request := func(seed any, n int) simtest.Completion {
		body := simtest.Greedy(simtest.Prompt(1, 50), 8, nil)
		body["temperature"], body["n"], body["seed"] = 1, n, seed
		return simtest.Complete(t, s, body)
	}
	greedy := simtest.Complete(t, s, simtest.Greedy(simtest.Prompt(1, 50), 8, nil)).Tokens()
	two := request(nil, 2)
	if !slices.Equal(two.Choices[0].TokenIDs, greedy) || slices.Equal(two.Choices[1].TokenIDs, greedy) {
		t.Errorf("choices %v, greedy %v", two.Choices, greedy)
	}
	if a, b := request(7, 1).Tokens(), request(8, 1).Tokens(); slices.Equal(a, b) || !slices.Equal(a, request(7, 1).Tokens()) {
		t.Errorf("seeds gave %v and %v", a, b)
	}
}

// TestMinTokens: an answer that would end earlier goes on until min_tokens, and with ignore_eos to its limit.
func TestMinTokens(t *testing.T) {
	s := simtest.Start(t, func(c *sim.Config) { c.Model = simtest.Model(t, "tiny"); c.Model.EOSEvery = 4 })
	lengths := func(add map[string]any) (list []int) {
		for seed := range 30 {
			body := simtest.Greedy(simtest.Prompt(seed, 20), 40, nil)
			for k, v := range add {
				body[k] = v
			}
			c := simtest.Complete(t, s, body)
			list = append(list, c.Usage.CompletionTokens)
			if ended := c.Usage.CompletionTokens < 40; ended != (c.Choices[0].FinishReason == "stop") {
				t.Errorf("%d tokens and finish reason %s", c.Usage.CompletionTokens, c.Choices[0].FinishReason)
			}
		}
		return list
	}
	if free, long := lengths(nil), lengths(map[string]any{"min_tokens": 20}); slices.Min(free) >= 20 || slices.Min(long) < 20 || slices.Min(long) == 40 {
		t.Errorf("lengths %v, and with min_tokens 20 %v", free, long)
	}
	if all := lengths(map[string]any{"ignore_eos": true}); slices.Min(all) != 40 {
		t.Errorf("with ignore_eos %v", all)
	}
}

// TestCacheSalt: prompts with different salts share no blocks.
func TestCacheSalt(t *testing.T) {
	s := simtest.Start(t)
	var cached []int
	for _, salt := range []string{"a", "a", "b"} {
		body := simtest.Greedy(simtest.Prompt(1, 100), 1, nil)
		body["cache_salt"] = salt
		cached = append(cached, simtest.Complete(t, s, body).Usage.PromptTokensDetails.CachedTokens)
	}
	if !slices.Equal(cached, []int{0, 96, 0}) {
		t.Errorf("cached tokens %v", cached)
	}
}

// TestHostMemory: a prompt whose blocks were taken for others is loaded from the host's memory, and answered as if it had been computed.
func TestHostMemory(t *testing.T) {
	for name, c := range map[string]struct{ host, cached int }{"there is space": {64, 96}, "for too few": {3, 0}, "there is none": {0, 0}} {
		t.Run(name, func(t *testing.T) {
			s := simtest.Start(t, func(cfg *sim.Config) { cfg.MaxModelLen, cfg.KV.Blocks, cfg.KV.HostBlocks = 256, 10, c.host })
			ask := func(kind int) (text string, cached int) {
				answer := simtest.Complete(t, s, simtest.Greedy(simtest.Prompt(kind, 100), 10, nil))
				return answer.Choices[0].Text, answer.Usage.PromptTokensDetails.CachedTokens
			}
			before, _ := ask(1)
			for kind := range 4 {
				ask(2 + kind)
			}
			if after, cached := ask(1); after != before || cached != c.cached {
				t.Errorf("%d tokens are cached, want %d; answers %q and %q", cached, c.cached, before, after)
			}
		})
	}
}

// TestGauges: the page counts a running and a waiting request.
func TestGauges(t *testing.T) {
	s := simtest.Start(t, func(c *sim.Config) { c.TimeScale = 1e6; c.Schedule.MaxSequences = 1; c.KV.Blocks = 257 })
	simtest.Occupy(t, s) // one block of 256
	simtest.Occupy(t, s)
	page := simtest.MetricsPage(t, s)
	for _, line := range []string{
		`vllm:num_requests_running{engine="0",model_name="tiny"} 1.0`,
		`vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0`,
		`vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 1.0`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.00390625`,
		`vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="awake"} 1.0`,
		`block_size="32"`, `num_gpu_blocks="257"`,
	} {
		if !strings.Contains(page, line) {
			t.Errorf("the page lacks %s", line)
		}
	}
}

// TestAccounting checks the counters of both engines after one hand-off.
func TestAccounting(t *testing.T) {
	p, d := simtest.Start(t), simtest.Start(t)
	simtest.Complete(t, d, simtest.Greedy(simtest.Prompt(1, 100), 4, simtest.Prefill(t, p, simtest.Prompt(1, 100))))
	series := func(name string, labels ...string) string {
		return fmt.Sprintf(`vllm:%s{engine="0",model_name="tiny"%s} `, name, strings.Join(labels, ""))
	}
	for _, c := range []struct {
		engine *server.Server
		series string
		want   string
	}{
		{p, series("prompt_tokens_by_source_total", `,source="local_compute"`), "100.0"},
		{p, series("external_prefix_cache_queries_total"), "100.0"},
		{p, series("external_prefix_cache_hits_total"), "0.0"},
		{p, series("nixl_bytes_transferred_count"), "0.0"},
		{d, series("prompt_tokens_by_source_total", `,source="local_compute"`), "0.0"},
		{d, series("prompt_tokens_by_source_total", `,source="external_kv_transfer"`), "100.0"},
		{d, series("prompt_tokens_cached_by_source_total", `,source="p2p"`), "100.0"},
		{d, series("external_prefix_cache_hits_total"), "100.0"},
		{d, series("request_prefill_kv_computed_tokens_sum"), "100.0"}, // all that is not reported as cached
		{d, series("nixl_bytes_transferred_sum"), "65536.0"},
		{d, series("nixl_num_descriptors_sum"), "1.0"},
		{d, series("generation_tokens_total"), "4.0"},
		{d, series("time_to_first_token_seconds_count"), "1.0"},
		{d, series("inter_token_latency_seconds_count"), "3.0"},
	} {
		if page := simtest.MetricsPage(t, c.engine); !strings.Contains(page, c.series+c.want+"\n") {
			_, rest, _ := strings.Cut(page, c.series)
			value, _, _ := strings.Cut(rest, "\n")
			t.Errorf("%s is %s, want %s", c.series, value, c.want)
		}
	}
}

// TestContentOfMessages: all text parts of a message count, and other parts have no tokens.
func TestContentOfMessages(t *testing.T) {
	s := simtest.Start(t)
	count := func(content string) int {
		var got struct{ Count int }
		simtest.Do(t, http.MethodPost, s.URL+"/tokenize", `{"messages":[{"role":"user","content":`+content+`}]}`).Decode(t, &got)
		return got.Count
	}
	if whole, parts := count(`"ab cd"`), count(`[{"type":"text","text":"ab"},{"type":"image_url"},{"type":"text","text":" cd"}]`); whole != parts {
		t.Errorf("%d tokens as text, %d as parts", whole, parts)
	}
	if none, empty := count(`null`), count(`""`); none != empty {
		t.Errorf("%d tokens for null, %d for nothing", none, empty)
	}
}

func TestAddresses(t *testing.T) {
	s := simtest.Start(t)
	if a := s.SideChannelAddr(); a.String() != s.SideChannel || a.Network() != "tcp" || s.SideChannel != s.Engine.SideChannelAddress() {
		t.Errorf("addresses %v, %s", a, s.SideChannel)
	}
}
