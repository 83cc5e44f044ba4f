package dialect_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
)

// What a client says of encodings reaches no engine: an image that is only a size ends engines that hand KV caches over. The images
// themselves reach all.
func TestVLLMEncodings(t *testing.T) {
	const item = `{"type":"image_embeds","image_embeds":{"image_grid_thw":[1,4,4]},"uuid":"evil"}`
	const image = `{"type":"image_url","image_url":{"url":"data:image/png;base64,uuid","uuid":"inner"},"uuid":"evil"}`
	sent := fmt.Sprintf(`{"messages":[{"role":"user","content":[%s,{"type":"text","text":"uuid"},%s,{"u\u0075id":"evil","audio_embeds":"evil","video_embeds":{"evil":1}}]},`+
		`{"role":"user","content":"uuid","uuid":"kept"}],"uuid":"kept"}`, item, image)
	const want = `{"messages":[{"role":"user","content":[{"type":"image_embeds"},{"type":"text","text":"uuid"},` +
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,uuid","uuid":"inner"}},{}]},{"role":"user","content":"uuid","uuid":"kept"}],"uuid":"kept"`
	for _, name := range []string{"nixlv2", "nixl-push", "mooncake", "shared-storage", "offloading", "moriio"} {
		d, _ := dialect.New(name, dialect.Options{Ask: offloads})
		table := dialect.Members(d)
		var scan body.Scanner
		if err := scan.Scan(table.Members(), body.Limits{}, []byte(sent)); err != nil {
			t.Fatal(err)
		}
		b := &body.Body{}
		b.Append([]byte(sent))
		r := table.Request(pd.APIChat, b, &scan)
		legs := map[string]func() (request.Payload, error){"local": r.Local}
		if name != "mooncake" { // which asks a bootstrap server first
			legs["prefill"] = attempt(t, d, r).Prefill
		}
		for leg, of := range legs {
			l, err := of()
			if got := text(t, l, err); !strings.HasPrefix(got, want) {
				t.Errorf("%s: the %s leg is %s", name, leg, got)
			}
		}
	}
}

// BenchmarkScan scans a conversation for the members that a dialect removes, and for those of all protocols alone.
func BenchmarkScan(b *testing.B) {
	message := `{"role":"user","content":[{"type":"text","text":"` + strings.Repeat("a conversation of some length ", 30) + `"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("aGVsbG8g", 400) + `"}}]},`
	conversation := []byte(`{"model":"m","messages":[` + strings.TrimSuffix(strings.Repeat(message, 50), ",") + `]}`)
	d, _ := dialect.New("nixlv2", dialect.Options{})
	for name, table := range map[string]*request.Table{"base": request.Base, "vllm": dialect.Members(d)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(conversation)))
			b.ReportAllocs()
			var scan body.Scanner
			for b.Loop() {
				if err := scan.Scan(table.Members(), body.Limits{}, conversation); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAttempt makes both legs of a request, with prefill's answer between them.
func BenchmarkAttempt(b *testing.B) {
	for name, answer := range map[string]string{
		"nixlv2":         `{"usage":{"prompt_tokens":100},"kv_transfer_params":` + handoff + `}`,
		"nixl-push":      `{"usage":{"prompt_tokens":100},"kv_transfer_params":` + pushed + `}`,
		"shared-storage": `{"choices":[{"finish_reason":"length"}],"usage":{"prompt_tokens":100}}`,
		"offloading":     `{"choices":[{"finish_reason":"length"}],"usage":{"prompt_tokens":100}}`,
	} {
		b.Run(name, func(b *testing.B) {
			d, _ := dialect.New(name, dialect.Options{Ask: offloads})
			r := asked(b, pd.APICompletions, `{"prompt":"`+strings.Repeat("a prompt of some length ", 100)+`","max_tokens":9}`)
			b.ReportAllocs()
			for b.Loop() {
				a := attempt(b, d, r)
				if _, err := a.Prefill(); err != nil {
					b.Fatal(err)
				}
				h, err := a.Accept([]byte(answer))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := h.Decode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestRankOutOfRange: only vLLM's message about a rank that it does not have is taken for it.
func TestRankOutOfRange(t *testing.T) {
	d, _ := dialect.New("nixlv2", dialect.Options{})
	for answer, own := range map[string]bool{
		`{"error":{"message":"data_parallel_rank 7 is out of range [0, 2).","type":"BadRequestError","param":null,"code":400}}`: true,
		`{"error":{"message":"temperature must be non-negative, got data_parallel_rank 7 is out of range [0, 2)."}}`:            false,
		`{"error":{"message":"data_parallel_rank is no member"}}`:                                                               false,
		`{"detail":"data_parallel_rank 7 is out of range [0, 2)."}`:                                                             false,
		`data_parallel_rank 7 is out of range [0, 2).`:                                                                          false,
	} {
		if got := d.(dialect.RankRefuser).RefusesRank([]byte(answer)); got != own {
			t.Errorf("%s: %v, want %v", answer, got, own)
		}
	}
}
