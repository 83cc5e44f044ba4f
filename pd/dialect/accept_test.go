package dialect_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
)

func answer(t testing.TB, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata/answers", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// valueOf returns the raw value of a top-level member.
func valueOf(t testing.TB, object, name string) string {
	t.Helper()
	for _, m := range members(t, object) {
		if m.name == name {
			return m.value
		}
	}
	t.Fatalf("no %s in %s", name, object)
	return ""
}

func TestAcceptRecordings(t *testing.T) {
	cases := []struct {
		file           string
		api            pd.API
		prompt, cached int64
		blocks         int
	}{
		{"chat-P.json", pd.APIChat, 95, 0, 3},
		{"chat-stream-P.json", pd.APIChat, 95, 0, 3},
		{"completions-first-contact-P.json", pd.APICompletions, 100, 0, 4},
		{"completions-same-prompt-again-P.json", pd.APICompletions, 100, 96, 4},
		{"completions-long-3000-P.json", pd.APICompletions, 3000, 0, 94},
		{"stop-first-P.json", pd.APICompletions, 100, 0, 4},
		{"responses-P.json", pd.APIResponses, 111, 0, 4},
		{"messages-P.json", pd.APIMessages, 111, 96, 4},
	}
	for _, c := range cases {
		t.Run(c.file, func(t *testing.T) {
			raw := answer(t, c.file)
			r := asked(t, c.api, `{"prompt":"x"}`)
			for _, blockSize := range []int{0, 32} { // 32: of the engine that was recorded
				d, _ := dialect.New("nixlv2", dialect.Options{BlockSize: blockSize})
				h, err := attempt(t, d, r).Accept([]byte(raw))
				if err != nil {
					t.Fatal(err)
				}
				leg, err := h.Decode()
				if got, want := valueOf(t, text(t, leg, err), "kv_transfer_params"), valueOf(t, raw, "kv_transfer_params"); got != want {
					t.Errorf("hand-off %s, want %s", got, want)
				}
				if blocks := h.(dialect.Sized).Blocks(); blocks != c.blocks {
					t.Errorf("%d blocks, want %d", blocks, c.blocks)
				}
				if cached, corrects := h.(dialect.UsageCorrector).Cached(); cached != c.cached || corrects {
					t.Errorf("%d tokens cached, corrects the usage of an engine that hands its count over: %v", cached, corrects)
				}
			}
			d, _ := dialect.New("nixlv2", dialect.Options{BlockSize: 1})
			if h, err := attempt(t, d, r).Accept([]byte(raw)); err == nil || h == nil {
				t.Errorf("%d tokens in %d blocks of one: %v", c.prompt, c.blocks, err)
			}
		})
	}
}

func TestAccept(t *testing.T) {
	older := strings.Replace(handoff, `,"remote_prefill_cached_tokens":96`, "", 1)
	cases := []struct {
		name, usage, handoff string
		prompt, cached       int64
		corrects             bool
	}{
		{"an engine that hands its count over", `{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":96}}`, handoff, 100, 96, false},
		{"an older engine", `{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":96}}`, older, 100, 96, true},
		{"an older engine, nothing cached", `{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":0}}`, older, 100, 0, true},
		{"an older engine that does not count", `{"prompt_tokens":100,"prompt_tokens_details":null}`, older, 100, -1, false},
		{"no usage", `null`, older, -1, -1, false},
		{"usage of a wrong type", `[100]`, handoff, -1, -1, false},
		{"counts that are none", `{"prompt_tokens":-5,"prompt_tokens_details":{"cached_tokens":1.5}}`, older, -1, -1, false},
		{"counts of a wrong type", `{"prompt_tokens":"100","prompt_tokens_details":{"cached_tokens":true}}`, older, -1, -1, false},
		{"counts beyond integers", `{"prompt_tokens":99999999999999999999,"prompt_tokens_details":{"cached_tokens":9999999999999999}}`, older, -1, -1, false},
		{"the largest count", `{"prompt_tokens":999999999999999}`, handoff, 999999999999999, -1, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, in := range []string{
				`{"id":"1","usage":` + c.usage + `,"kv_transfer_params":` + c.handoff + `}`,
				"\n{ \"kv_transfer_params\" : " + c.handoff + " , \"usage\" :\t" + c.usage + " }\n",
			} {
				h, err := attempt(t, nixl(t), asked(t, pd.APICompletions, `{"prompt":"x"}`)).Accept([]byte(in))
				if err != nil {
					t.Fatalf("%s: %v", in, err)
				}
				leg, err := h.Decode()
				if got := valueOf(t, text(t, leg, err), "kv_transfer_params"); got != c.handoff {
					t.Errorf("%s: got %s", in, got)
				}
				if cached, corrects := h.(dialect.UsageCorrector).Cached(); cached != c.cached || corrects != c.corrects {
					t.Errorf("%s: %d cached, corrects %v", in, cached, corrects)
				}
				// The hand-off says 100 tokens in 4 blocks, which is wrong for blocks of one token if prefill counted 100, too.
				d, _ := dialect.New("nixlv2", dialect.Options{BlockSize: 1})
				if _, err := attempt(t, d, asked(t, pd.APICompletions, `{"prompt":"x"}`)).Accept([]byte(in)); (err != nil) != (c.prompt == 100) {
					t.Errorf("%s: %d tokens, and the check of blocks says %v", in, c.prompt, err)
				}
			}
		})
	}
}

func TestAcceptRefuses(t *testing.T) {
	good := `{"id":"1","kv_transfer_params":` + handoff + `}`
	cases := []struct{ name, in, err string }{
		{"nothing", ``, "unexpected end"},
		{"no JSON", `<html>502 Bad Gateway</html>`, "reading the prefill answer"},
		{"gzip", "\x1f\x8b\x08\x00\x00", "reading the prefill answer"},
		{"a stream of events", "data: " + good + "\n\ndata: [DONE]\n\n", "reading the prefill answer"},
		{"garbage after it", good + "x", "reading the prefill answer"},
		{"two answers", good + good, "reading the prefill answer"},
		{"a list", `[` + good + `]`, "is a KV connector configured"},
		{"an empty object", `{}`, "is a KV connector configured"},
		{"an engine without a connector", `{"id":"1","kv_transfer_params":null}`, "is a KV connector configured"},
		{"params not at top level", `{"choices":[` + good + `]}`, "is a KV connector configured"},
		{"params by another name", `{"Kv_transfer_params":` + handoff + `}`, "is a KV connector configured"},
		{"params twice", `{"kv_transfer_params":` + handoff + `,"kv_transfer_params":` + handoff + `}`, "occurs twice"},
		{"params a list", `{"kv_transfer_params":[` + handoff + `]}`, "not an object"},
		{"params a string", `{"kv_transfer_params":"x"}`, "not an object"},
		{"params incomplete", `{"kv_transfer_params":{"do_remote_prefill":true}}`, "hand-off lacks"},
		{"params without blocks", strings.Replace(good, "[[1,2, 3,4]]", "[[]]", 1), "no blocks"},
		{"prefill's own params", `{"kv_transfer_params":` + priming + `}`, "do_remote_prefill true"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h, err := attempt(t, nixl(t), asked(t, pd.APICompletions, `{"prompt":"x"}`)).Accept([]byte(c.in))
			if err == nil || h != nil {
				t.Fatalf("got %v, %v", h, err)
			}
			if !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %q, want %q in it", err, c.err)
			}
		})
	}
}

func TestAcceptRefusesEveryTruncation(t *testing.T) {
	whole := answer(t, "chat-P.json")
	for n := range len(whole) {
		if h, err := attempt(t, nixl(t), asked(t, pd.APIChat, `{}`)).Accept([]byte(whole[:n])); err == nil || h != nil {
			t.Fatalf("%s was accepted: %v", whole[:n], h)
		}
	}
}

// TestReleaseRequest: the engine must refuse the request, but only after it has read the params. So it is a
// complete request for a model that no engine serves.
func TestReleaseRequest(t *testing.T) {
	f, ok := handedOff(t, asked(t, pd.APICompletions, `{"prompt":"x"}`)).(dialect.RequestReleaser)
	if !ok {
		t.Fatal("the hand-off has no release request")
	}
	path, raw := f.ReleaseRequest()
	if pd.APIOf(path) != pd.APICompletions || !json.Valid(raw) {
		t.Fatalf("POST %s %s", path, raw)
	}
	list := members(t, string(raw))
	if !slices.Contains(list, member{"kv_transfer_params", handoff}) || !slices.Contains(list, member{"max_tokens", "1"}) {
		t.Errorf("body %s", raw)
	}
	if asked(t, pd.APICompletions, string(raw)).Fit() != request.FitSplit {
		t.Errorf("the engine's front end would refuse it before it reads the params: %s", raw)
	}
	if valueOf(t, string(raw), "model") != `"tandem-release"` {
		t.Errorf("body %s", raw)
	}
}

// Two thirds of the lease leave the rest for the way to decode.
func TestTrust(t *testing.T) {
	h, ok := handedOff(t, asked(t, pd.APICompletions, `{"prompt":"x"}`)).(dialect.Leased)
	if !ok || h.Trust() != 20*time.Second {
		t.Errorf("a hand-off with a lease of 30 s may be %v old", h.Trust())
	}
	want := dialect.Pin{EngineID: "e-1", RequestID: "cmpl-1-0-8a7a7f67", Host: "10.0.0.7", Port: 5601, Tensor: 1, Pipeline: 1}
	if h.Pin() != want {
		t.Errorf("pinned by %+v", h.Pin())
	}
}

func BenchmarkAccept(b *testing.B) {
	for _, file := range []string{"chat-P.json", "completions-long-3000-P.json"} {
		b.Run(file, func(b *testing.B) {
			raw, a := []byte(answer(b, file)), attempt(b, nixl(b), asked(b, pd.APIChat, `{}`))
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := a.Accept(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
