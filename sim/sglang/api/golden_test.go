package api_test

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// recordings are those of SGLang 0.5.23.
var recordings = simtest.Recordings{
	Free: []string{"id", "item_id", "created", "created_at", "text", "content", "delta", "output_ids", "start", "end",
		"forward_entry_time", "prefill_finished_time", "queue_time", "e2e_latency", "request_received_ts", "first_token_latency",
		"api_server_dispatch_finish_ts", "request_finished_ts", "response_sent_to_client_ts", "timestamp",
		"input_token_logprobs", "output_token_logprobs", "token_logprobs", "tokens", "top_logprobs", "rank_port", "prefill_http_port"},
	Counts: []string{"prompt_tokens", "total_tokens", "completion_tokens", "cached_tokens", "input_tokens", "output_tokens", "cache_read_input_tokens", "length"},
	// Whether these are there depends on how many tokens one message between the real engine's processes had.
	Optional: []string{"decode_throughput", "response_sent_to_client_ts", "cache_read_input_tokens"},
	Varying:  regexp.MustCompile(`[0-9a-f]{32}|after \d+\.\d+s|127\.0\.0\.1:\d+|\\n\\n  File .*"type"`),
}

// anyCache is for recordings whose engines had seen some of the prompts before.
var anyCache = func() simtest.Recordings {
	r := recordings
	r.Optional = append(slices.Clone(r.Optional), "cached_tokens", "cached_tokens_details")
	return r
}()

// patience is how long legs wait for each other in these tests: as long as they need to fail.
const patience = time.Second

func recordedEngine(c *sglang.Config) {
	c.MaxTotalTokens, c.MaxRunningRequests, c.ContextLength, c.ServedModelName = 16384, 16, 4096, "tiny"
	c.Times.Bootstrap, c.Times.Waiting, c.Times.Health = patience, patience, time.Millisecond
}

// request returns a recorded request with the bootstrap port of another engine.
func request(t *testing.T, r simtest.Recording, prefill *server.SGLang) []byte {
	t.Helper()
	_, port, err := net.SplitHostPort(prefill.Bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := bytes.Cut(r.Request, []byte("\r\n\r\n"))
	body = regexp.MustCompile(`"bootstrap_port": 8998`).ReplaceAll(body, []byte(`"bootstrap_port": `+port))
	body = regexp.MustCompile(`\[8998, 8998\]`).ReplaceAll(body, []byte("["+port+", "+port+"]"))
	head = regexp.MustCompile(`(?i)content-length: \d+`).ReplaceAll(head, []byte("Content-Length: "+strconv.Itoa(len(body))))
	return append(append(head, "\r\n\r\n"...), body...)
}

// replay sends both legs of a recorded pair at once, and compares the answers.
func replay(t *testing.T, with *simtest.Recordings, pair simtest.Pair, name string) {
	t.Helper()
	legP, legD := recordings.Read(t, name+"-P"), recordings.Read(t, name+"-D")
	answer := make(chan []byte, 1)
	go func() { answer <- simtest.Exchange(t, pair.Prefill.URL, request(t, legP, pair.Prefill)) }()
	d := simtest.Exchange(t, pair.Decode.URL, request(t, legD, pair.Prefill))
	ids := bytes.Contains(legP.Request, []byte(`"input_ids"`)) || bytes.Contains(legP.Request, []byte(`"prompt": [`))
	with.Compare(t, simtest.ParseWire(t, <-answer), simtest.ParseWire(t, legP.Response), ids)
	with.Compare(t, simtest.ParseWire(t, d), simtest.ParseWire(t, legD.Response), ids)
}

// TestRecordedPairs replays hand-offs that worked, in their order, on one pair.
func TestRecordedPairs(t *testing.T) {
	pair := simtest.SGLangPair(t, recordedEngine)
	for _, name := range []string{
		"generate-first", "generate-second", "generate-again-cached", "generate-exact-pages-64", "generate-exact-pages-again", "generate-short-3",
		"generate-long-3000", "generate-stream", "completions", "completions-stream", "completions-max1", "chat", "chat-stream", "responses",
		"messages", "responses-stream", "messages-stream", "logprobs", "generate-input-logprobs", "unknown-model",
	} {
		t.Run(name, func(t *testing.T) { replay(t, &recordings, pair, "pd-"+name) })
	}
	pair.Rests(t)
}

// TestRecordedFields replays pairs with rendezvous members of every kind, and batches.
func TestRecordedFields(t *testing.T) {
	pair := simtest.SGLangPair(t, recordedEngine, func(c *sglang.Config) { c.Times.Bootstrap, c.Times.Waiting = time.Minute, time.Minute })
	_, port, _ := net.SplitHostPort(pair.Prefill.Bootstrap)
	pair.Decode = simtest.SGLang(t, sglang.Decode, recordedEngine, func(c *sglang.Config) { c.Bootstrap = net.JoinHostPort("127.0.0.1", port) })
	for _, name := range []string{
		"pd-batch2-scalar-room", "pd-batch2-lists", "pd-batch2-room-list-only", "pd-batch2-room-list-long", "pd-batch2-room-list-short", "pd-oai-batch2-scalar",
		"pd-room-2p53plus1", "pd-room-2p63", "pd-room-2p64-1", "pd-room-2p64", "pd-room-float", "pd-room-float-1.5", "pd-room-string", "pd-room-string-digits",
		"pd-room-true", "pd-room-oai-float", "pd-room-oai-string-digits", "pd-room-oai-true", "pd-room-oai-2p64", "pd-f-no-fields", "pd-f-room-null",
		"pd-f-port-null", "pd-f-port-missing", "pd-f-port-string", "pd-f-P-room-only-D-full", "pd-f-P-host-wrong-D-right", "pd-f-routed-dp-rank-1-of-1",
		"pd-f-dp-rank-0", "pd-f-host-localhost", "pdfail-prompt-too-long", "pdfail-too-long",
	} {
		t.Run(name, func(t *testing.T) { replay(t, &anyCache, pair, name) })
	}
}

// TestRecordedFailures replays pairs that fail, with time-outs that are short.
func TestRecordedFailures(t *testing.T) {
	pair := simtest.SGLangPair(t, recordedEngine)
	for _, name := range []string{"pd-f-room-differs", "pd-f-D-disagg-prefill-dp-rank-1-of-1", "pdfail-D-400", "pdfail-P-400", "pdfail-stream-timeout"} {
		t.Run(name, func(t *testing.T) {
			replay(t, &recordings, pair, name)
			pair.Rests(t)
		})
	}
}

// TestRecordedRanks replays pairs whose prefill engine has two ranks.
func TestRecordedRanks(t *testing.T) {
	two := func(c *sglang.Config) { c.Ranks = 2 }
	for _, name := range []string{
		"even-room", "odd-room", "even-room-routed-0", "routed-7", "even-room-routed-1-on-P-only", "even-room-routed-1-on-P-disagg_prefill_dp_rank-1-on-D",
		"odd-room-routed-1-on-P-disagg_prefill_dp_rank-1-on-both", "odd-room-routed-0-on-P-disagg_prefill_dp_rank-0-on-both",
		"odd-room-disagg_prefill_dp_rank-1-on-both-nothing-routed", "header", "as-before-P-also-has-disagg_prefill_dp_rank",
	} {
		t.Run(name, func(t *testing.T) {
			replay(t, &anyCache, simtest.Pair{Prefill: simtest.SGLang(t, sglang.Prefill, recordedEngine, two), Decode: simtest.SGLang(t, sglang.Decode, recordedEngine)}, "pd-dp-"+name)
		})
	}
}

// TestRecordedSurface replays requests to one engine.
func TestRecordedSurface(t *testing.T) {
	for name, mode := range map[string]sglang.Mode{
		"pd-prefill-alone": sglang.Prefill, "pd-decode-alone": sglang.Decode, "err-no-bootstrap-chat": sglang.Decode,
		"err-no-bootstrap-chat-stream": sglang.Decode, "err-no-bootstrap-generate-stream": sglang.Prefill, "bootstrap-on-plain": sglang.Plain,
		"abort-request-all": sglang.Decode, "abort-request-decode": sglang.Decode, "abort-request-empty": sglang.Decode, "abort-request-emptyrid": sglang.Decode,
		"abort-request-unknown": sglang.Decode, "flush-cache": sglang.Plain, "get-A-health": sglang.Plain, "get-P-ready": sglang.Prefill,
		"get-P-ping": sglang.Prefill, "get-P-nope": sglang.Prefill, "get-P-v1-models": sglang.Prefill, "adv-dup-key": sglang.Decode,
		"adv-fake-host-P": sglang.Prefill,
	} {
		t.Run(name, func(t *testing.T) {
			prefill := simtest.SGLang(t, sglang.Prefill, recordedEngine)
			s := prefill
			if mode != sglang.Prefill {
				s = simtest.SGLang(t, mode, recordedEngine)
			}
			r := recordings.Read(t, name)
			if name == "adv-fake-host-P" { // recorded with a warm prefix cache
				simtest.Exchange(t, s.URL, request(t, r, prefill))
			}
			recordings.Compare(t, simtest.ParseWire(t, simtest.Exchange(t, s.URL, request(t, r, prefill))), simtest.ParseWire(t, r.Response), true)
		})
	}
}

// TestRecordedBootstrapServer compares what a prefill engine tells decode engines.
func TestRecordedBootstrapServer(t *testing.T) {
	one, two := simtest.SGLang(t, sglang.Prefill, recordedEngine), simtest.SGLang(t, sglang.Prefill, recordedEngine, func(c *sglang.Config) { c.Ranks = 2 })
	for _, name := range []string{"health", "route-all", "route-all-dp2", "route-noargs", "route-rank0", "route-rank1-dp2", "route-rank3", "query-dp-ranks"} {
		t.Run(name, func(t *testing.T) {
			s := one
			if strings.HasSuffix(name, "dp2") {
				s = two
			}
			r := recordings.Read(t, "bootstrap-"+name)
			recordings.Compare(t, simtest.ParseWire(t, simtest.Exchange(t, "http://"+s.Bootstrap, r.Request)), simtest.ParseWire(t, r.Response), true)
		})
	}
}

// TestRecordedMetrics: a scraper of the real pages finds the same families, types and labels here.
func TestRecordedMetrics(t *testing.T) {
	pair := simtest.SGLangPair(t, recordedEngine)
	ranked := simtest.SGLang(t, sglang.Prefill, recordedEngine, func(c *sglang.Config) { c.Ranks = 2 })
	plain := simtest.SGLang(t, sglang.Plain, recordedEngine)
	fresh := simtest.SGLang(t, sglang.Decode, recordedEngine)
	prompt := simtest.Prompt(1, 40)
	pair.Send(t, "/generate", simtest.Generate(prompt, 8, simtest.Meet(pair.Prefill, 7)))
	pair.Rests(t)
	simtest.Post(t, plain.URL+"/generate", simtest.Generate(prompt, 8)).Decoded(t)
	for rank := range 2 {
		simtest.Post(t, ranked.URL+"/generate", simtest.Generate(prompt, 8, map[string]any{"bootstrap_host": "2.2.2.2", "bootstrap_room": 2, "routed_dp_rank": rank,
			"disagg_prefill_dp_rank": rank})).Decoded(t)
	}
	for _, c := range []struct {
		recorded string
		engine   *server.SGLang
	}{{"P", pair.Prefill}, {"P-dp2", ranked}, {"A", plain}} {
		t.Run(c.recorded, func(t *testing.T) {
			real := recordedSeries(t, c.recorded)
			for name := range series(metricsPage(t, c.engine)) {
				if !real[name] && !lateSeries.MatchString(name) {
					t.Errorf("series %s is not on the real page", name)
				}
			}
		})
	}
	t.Run("wanted", func(t *testing.T) {
		ours := series(metricsPage(t, pair.Prefill))
		for name := range recordedSeries(t, "P") {
			if wanted.MatchString(name) && !ours[name] {
				t.Errorf("series %s is missing", name)
			}
		}
	})
	t.Run("fresh decode engine", func(t *testing.T) {
		if page := metricsPage(t, fresh); strings.Contains(page, "num_running_reqs") || strings.Contains(page, "token_usage") {
			t.Errorf("gauges before the first batch:\n%s", page)
		}
	})
}

var (
	// wanted matches the series that programs read.
	wanted = regexp.MustCompile(`^sglang:(num_(queue|running|used|pages|prefill|decode_(prealloc|transfer|deferred)|requests)|token_usage|max_total|page_size|kv_(available|evictable|used|transfer)|cached_tokens_total|prompt_tokens_total|generation_tokens_total)`)
	// lateSeries matches those that the recorded page has not counted yet, and those of this test's own requests.
	lateSeries = regexp.MustCompile(`^sglang:(http_requests|num_(bootstrap|transfer)_failed|inter_token)`)
)

func metricsPage(t *testing.T, s *server.SGLang) string {
	t.Helper()
	r := simtest.Do(t, http.MethodGet, s.URL+"/metrics", "")
	if got := r.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/plain; version=0.0.4") {
		t.Errorf("content type %q", got)
	}
	return string(r.Body)
}

func recordedSeries(t *testing.T, name string) map[string]bool {
	t.Helper()
	data, err := os.ReadFile("testdata/golden/metrics-" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	return series(string(data))
}

// series returns the names of a page's series with their labels, and the types of its families; without buckets.
func series(page string) map[string]bool {
	set := make(map[string]bool)
	for line := range strings.Lines(page) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "} ")
		switch {
		case strings.HasPrefix(line, "# TYPE sglang:"):
			set[strings.TrimPrefix(strings.TrimSpace(line), "# TYPE ")] = true
		case strings.HasPrefix(line, "#") || strings.Contains(name, "_bucket{") || !strings.HasPrefix(line, "sglang:"):
		default:
			set[name] = true
		}
	}
	return set
}
