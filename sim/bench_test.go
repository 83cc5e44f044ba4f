package sim

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func benchEngine(b *testing.B) *Engine {
	b.Helper()
	e, err := New(Config{KV: KVConfig{Blocks: 4096}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(e.Close)
	return e
}

// BenchmarkDecodeStep is the engine's own cost of a step with so many running answers; a token of each is one operation's
// share.
func BenchmarkDecodeStep(b *testing.B) {
	for _, batch := range []int{1, 32} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			e := benchEngine(b)
			b.ReportAllocs()
			for n := 0; n < b.N; {
				steps := min(b.N-n, 1000)
				seqs := make([]*sequence, batch)
				for i := range seqs {
					seqs[i] = decodeSequence(e, prompt(i, 100), steps)
				}
				if err := e.submit(seqs); err != nil {
					b.Fatal(err.Message)
				}
				for _, s := range seqs {
					for finish := ""; finish == ""; {
						out, err := s.out.next(b.Context())
						if err != nil {
							b.Fatal(err)
						}
						finish = out.finish
					}
				}
				n += steps
			}
		})
	}
}

// BenchmarkPrefill computes the KV of 2048 tokens that no cache has.
func BenchmarkPrefill(b *testing.B) {
	e := benchEngine(b)
	b.SetBytes(2048 * 512)
	b.ReportAllocs()
	for i := range b.N {
		ids := prompt(i, 2048)
		ids[0] = firstByte + i%1000
		ids[1] = firstByte + i/1000%1000
		s := decodeSequence(e, ids, 1)
		if err := e.submit([]*sequence{s}); err != nil {
			b.Fatal(err.Message)
		}
		if _, err := s.out.next(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCompletion is a whole short request without a socket: the floor of what the simulator adds to a measurement.
func BenchmarkCompletion(b *testing.B) {
	e := benchEngine(b)
	body := string(encodeJSON(ask(prompt(1, 100), 8, nil)))
	b.ReportAllocs()
	for range b.N {
		r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		e.Handler().ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			b.Fatal(w.Body)
		}
	}
}

func BenchmarkSplit(b *testing.B) {
	text := strings.Repeat("the cache of a block is token and prefill to decode. ", 100)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for range b.N {
		tokenizer{128256}.split(text)
	}
}
