package read_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

// chatBody returns a chat of about size bytes whose last message repeats unit.
func chatBody(size int, unit string) []byte {
	const head = `{"model":"meta-llama/Llama-3.1-8B-Instruct",` +
		`"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"`
	const foot = `"}],"stream":true,"max_tokens":300,"temperature":0.7}`
	return []byte(head + strings.Repeat(unit, max(1, (size-len(head)-len(foot))/len(unit))) + foot)
}

func idsBody(n int) []byte {
	b := []byte(`{"model":"m","prompt":[1`)
	for i := range n - 1 {
		b = strconv.AppendInt(append(b, ", "...), int64(i*7919%151936), 10)
	}
	return append(b, `],"max_tokens":300}`...)
}

// talkBody returns a chat of n short messages.
func talkBody(n int) []byte {
	b := []byte(`{"model":"m","messages":[{"role":"system","content":"be brief"}`)
	for i := range n {
		b = fmt.Appendf(b, `,{"role":"user","content":"message %d of a long talk"}`, i)
	}
	return append(b, `],"stream":true}`...)
}

// BenchmarkReader reads whole requests, with blocks of 16 tokens and without, in chunks of 16 KiB: what Envoy sends of an
// HTTP/2 request.
func BenchmarkReader(b *testing.B) {
	const line = "It was the best of times, it was the wor"
	type variant struct {
		name   string
		api    pd.API
		body   []byte
		secret *read.Secret
	}
	var all []variant
	for _, size := range []int{1, 32, 512} {
		all = append(all,
			variant{fmt.Sprintf("plain-%dK", size), pd.APIChat, chatBody(size<<10, line), nil},
			variant{fmt.Sprintf("newline-every-40-%dK", size), pd.APIChat, chatBody(size<<10, line+`\n`), nil},
			variant{fmt.Sprintf("plain-secret-%dK", size), pd.APIChat, chatBody(size<<10, line), &read.Secret{1}})
	}
	all = append(all,
		variant{"unicode-escapes-512K", pd.APIChat, chatBody(512<<10, `\u4f60\u597d`), nil},
		variant{"messages-10000", pd.APIChat, talkBody(10_000), nil},
		variant{"token-ids-100000", pd.APICompletions, idsBody(100_000), nil})
	for _, v := range all {
		for _, spec := range []epp.PromptSpec{{Tokens: 16, Max: 1 << 20}, {}} {
			b.Run(fmt.Sprintf("%s/block=%d", v.name, spec.Tokens), func(b *testing.B) {
				r := read.NewReader(v.secret)
				head := read.Head{Method: http.MethodPost, Path: v.api.Path()}
				b.SetBytes(int64(len(v.body)))
				b.ReportAllocs()
				for b.Loop() {
					readAll(b, r, head, spec, v.body, 16<<10)
				}
			})
		}
	}
}

func readAll(tb testing.TB, r *read.Reader, head read.Head, spec epp.PromptSpec, text []byte, chunk int) *epp.Request {
	r.Reset(head, 0, spec)
	for at := 0; at < len(text); at += chunk {
		if err := r.Write(text[at:min(at+chunk, len(text))]); err != nil {
			tb.Fatal(err)
		}
	}
	req, err := r.Close(nil)
	if err != nil {
		tb.Fatal(err)
	}
	return req
}
