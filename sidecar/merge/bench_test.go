package merge_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/merge"
)

// One event of one of two streams, as the sidecar hands it over.
func BenchmarkStream(b *testing.B) {
	token := `{"id":"c0e507ae70f34fb18a5694d7bacdde0c","object":"text_completion","created":1795523170,"model":"tiny","choices":[{"index":0,"text":" zadohefa","logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}`
	for _, c := range []struct {
		name, data string
		api        pd.API
	}{
		{"chat", token, pd.APIChat},
		{"generate", fmt.Sprintf(`{"text":%q,"output_ids":[%s20],"meta_info":{"id":"5b0c","completion_tokens":1001}}`, strings.Repeat("word ", 1000), strings.Repeat("101,", 1000)), pd.APISGLang},
	} {
		b.Run(c.name, func(b *testing.B) {
			event := []byte(events(c.data))
			s := merge.NewStream(c.api, 2)
			out := make([]byte, 0, 2*len(event))
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				var err error
				if out, err = s.Feed(out[:0], i%2, event); err != nil || len(out) == 0 {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkWhole(b *testing.B) {
	for _, n := range []int{2, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			answers := make([][]byte, n)
			for i := range answers {
				answers[i] = fmt.Appendf(nil, `{"id":"a","created":1,"choices":[{"index":0,"message":{"role":"assistant","content":%q}}],"usage":{"prompt_tokens":40,"total_tokens":1040,"completion_tokens":1000}}`,
					strings.Repeat("word ", 1000))
			}
			b.SetBytes(int64(n * len(answers[0])))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := merge.Whole(pd.APIChat, answers); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
