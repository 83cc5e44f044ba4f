package body

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
)

// chatTable has the members that the sidecar and the picker read.
func chatTable() *Table {
	return NewTable(
		Want{Path: "model", Once: true},
		Want{Path: "stream", Once: true},
		Want{Path: "stream_options", Once: true},
		Want{Path: "max_tokens", Once: true},
		Want{Path: "max_completion_tokens", Once: true},
		Want{Path: "min_tokens", Once: true},
		Want{Path: "n", Once: true},
		Want{Path: "prompt", Once: true, Sink: true},
		Want{Path: "messages", Once: true},
		Want{Path: "messages.*.content", Sink: true},
		Want{Path: "kv_transfer_params", Once: true},
		Want{Path: "sampling_params.extra_args.kv_transfer_params", Once: true},
	)
}

// chat returns a chat body of about size bytes whose text repeats unit.
func chat(size int, unit string) []byte {
	text := strings.Repeat(unit, size/len(unit))
	return []byte(`{"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":"` +
		text + `"}],"stream":true,"max_tokens":300,"temperature":0.7}`)
}

func tokenIDs(n int, separator string) []byte {
	var b bytes.Buffer
	b.WriteString(`{"model":"m","prompt":[1`)
	for i := range n - 1 {
		b.WriteString(separator)
		b.WriteString(strconv.Itoa(i * 7919 % 151936))
	}
	b.WriteString(`],"max_tokens":300}`)
	return b.Bytes()
}

func messages(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"model":"m","messages":[{"role":"system","content":"be brief"}`)
	for i := range n {
		fmt.Fprintf(&b, `,{"role":"user","content":"message %d of a long talk"}`, i)
	}
	b.WriteString(`],"stream":true}`)
	return b.Bytes()
}

// tools returns a body of much structure and little text, none of it wanted.
func tools(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"model":"m","tools":[null`)
	for i := range n {
		fmt.Fprintf(&b, `,{"type":"function","function":{"name":"f%d","strict":true,"parameters":{"type":"object","properties":`+
			`{"city":{"type":"string","minLength":1},"unit":{"type":"string","enum":["c","f"]}},"required":["city"]}}}`, i)
	}
	b.WriteString(`],"stream":true}`)
	return b.Bytes()
}

func BenchmarkScan(b *testing.B) {
	const size = 457_000
	plain := "It was the best of times, it was the wor"
	slim := NewTable(Want{Path: "model"}, Want{Path: "stream"}, Want{Path: "max_tokens"})
	cases := []struct {
		name  string
		table *Table
		body  []byte
	}{
		{"plain", chatTable(), chat(size, plain)},
		{"newline-every-40", chatTable(), chat(size, plain+`\n`)},
		{"quote-every-40", chatTable(), chat(size, plain+`\"`)},
		{"quote-every-40-unwanted", slim, chat(size, plain+`\"`)},
		{"unicode-escapes", chatTable(), chat(size, `\u4f60\u597d`)},
		{"token-ids", chatTable(), tokenIDs(100_000, ",")},
		{"token-ids-spaced", chatTable(), tokenIDs(100_000, ", ")},
		{"token-ids-unwanted", slim, tokenIDs(100_000, ", ")},
		{"messages", chatTable(), messages(10_000)},
		{"messages-unwanted", slim, messages(10_000)},
		{"tools-unwanted", slim, tools(2000)},
	}
	for _, c := range cases {
		for _, chunk := range []int{len(c.body), 64 << 10} {
			kind := "whole"
			if chunk < len(c.body) {
				kind = "64K"
			}
			b.Run(c.name+"/"+kind, func(b *testing.B) {
				var s Scanner
				var sunk int
				sink := func(_ int, piece []byte, _ bool) { sunk += len(piece) }
				b.SetBytes(int64(len(c.body)))
				b.ReportAllocs()
				for b.Loop() {
					s.Reset(c.table, Limits{}, sink)
					for at := 0; at < len(c.body); at += chunk {
						if _, err := s.Write(c.body[at:min(at+chunk, len(c.body))]); err != nil {
							b.Fatal(err)
						}
					}
					if err := s.Close(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkEdit(b *testing.B) {
	in := []byte(`{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":300,"min_tokens":5,"prompt":"` +
		strings.Repeat("It was the best of times. ", 220_000/26) + `","kv_transfer_params":{"do_remote_prefill":true}}`)
	const (
		stream = iota
		options
		maxTokens
		minTokens
		hint
	)
	table := NewTable(Want{Path: "stream"}, Want{Path: "stream_options"}, Want{Path: "max_tokens"},
		Want{Path: "min_tokens"}, Want{Path: "kv_transfer_params"})
	var body Body
	for at := 0; at < len(in); at += 16 << 10 {
		body.Append(in[at:min(at+16<<10, len(in))])
	}
	var s Scanner
	s.Reset(table, Limits{}, nil)
	for _, seg := range body.Segments() {
		if _, err := s.Write(seg); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	find := func(want int) Member {
		m, ok := s.Find(want)
		if !ok {
			b.Fatal("no member", want)
		}
		return m
	}
	params := []byte(`{"do_remote_decode":true}`)
	no, one := []byte("false"), []byte("1")
	run := func(name string, edit func(e *Edit)) {
		b.Run(name, func(b *testing.B) {
			var e Edit
			var segs [][]byte
			b.ReportAllocs()
			for b.Loop() {
				e.Reset(&body, s.Root())
				edit(&e)
				var err error
				if segs, err = e.Segments(segs[:0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("prefill", func(e *Edit) {
		e.Replace(find(stream), no)
		e.Remove(find(options))
		e.Replace(find(maxTokens), one)
		e.Remove(find(minTokens))
		e.Remove(find(hint))
		e.Add(s.Root(), "kv_transfer_params", params)
	})
	run("decode", func(e *Edit) {
		e.Remove(find(hint))
		e.Add(s.Root(), "kv_transfer_params", params)
	})
}

// replay is a reader that returns the same bytes again after rewind.
type replay struct {
	data []byte
	at   int
}

func (r *replay) Read(p []byte) (int, error) {
	if r.at == len(r.data) {
		return 0, io.EOF
	}
	n := copy(p, r.data[r.at:])
	r.at += n
	return n, nil
}

func BenchmarkBlank(b *testing.B) {
	plain := chat(457_000, "It was the best of times, it was the wor\\n")
	dirty := append([]byte(`{"kv_transfer_params":{"do_remote_prefill":true},`), plain[1:]...)
	table := NewTable(Want{Path: "kv_transfer_params"}, Want{Path: "sampling_params.extra_args.kv_transfer_params"})
	all := func(int) bool { return true }
	for _, c := range []struct {
		name string
		in   []byte
	}{{"clean", plain}, {"dirty", dirty}} {
		b.Run(c.name, func(b *testing.B) {
			buf := make([]byte, 32<<10)
			b.SetBytes(int64(len(c.in)))
			b.ReportAllocs()
			src := &replay{data: c.in}
			for b.Loop() {
				src.at = 0
				r := NewBlank(src, table, Limits{}, all)
				for {
					if _, err := r.Read(buf); err == io.EOF {
						break
					} else if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func BenchmarkMentions(b *testing.B) {
	table := NewTable(Want{Path: "kv_transfer_params"}, Want{Path: "sampling_params.extra_args.kv_transfer_params"})
	all := func(int) bool { return true }
	for _, c := range []struct{ name, unit string }{
		{"plain", "It was the best of times, it was the wor\\n"}, {"unicode-escapes", `\u4f60\u597d`},
	} {
		b.Run(c.name, func(b *testing.B) {
			var body Body
			body.Append(chat(457_000, c.unit))
			b.SetBytes(body.Len())
			b.ReportAllocs()
			for b.Loop() {
				if table.Mentions(&body, all) {
					b.Fatal("mentioned")
				}
			}
		})
	}
}

func BenchmarkEvents(b *testing.B) {
	event := `data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1764000000,"model":"tiny",` +
		`"choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n"
	usage := `data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1764000000,"model":"tiny",` +
		`"choices":[],"usage":{"prompt_tokens":100,"total_tokens":108,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":96}}}` + "\n\n"
	run := func(name, event string, per int, each func(Event) error) {
		b.Run(name, func(b *testing.B) {
			chunk := []byte(strings.Repeat(event, per))
			var v Events
			b.SetBytes(int64(len(chunk)))
			b.ReportAllocs()
			for b.Loop() {
				if err := v.Feed(chunk, each); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*per), "ns/event")
		})
	}
	run("single", event, 1, func(e Event) error { return nil })
	run("hundred", event, 100, func(e Event) error { return nil })
	run("done-or-error", event, 1, func(e Event) error {
		if e.Done() || e.Error() {
			b.Fatal("not a token")
		}
		return nil
	})
	var r UsageReader
	run("usage", usage, 1, func(e Event) error {
		if u, ok := r.Event(e.Data); !ok || u.Cached != 96 {
			b.Fatal("no usage")
		}
		return nil
	})
	run("usage-null", event, 1, func(e Event) error {
		if _, ok := r.Event(e.Data); ok {
			b.Fatal("usage")
		}
		return nil
	})
}
