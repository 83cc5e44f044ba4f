package body

import (
	"bytes"
	"testing"
)

// tokenEvent is the data of an event of vLLM with one token.
const tokenEvent = `{"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"big-7b",` +
	`"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}`

// FuzzMark: a Mark finds what bytes.Index finds.
func FuzzMark(f *testing.F) {
	for _, data := range []string{"", "g", "usage", tokenEvent, `"usage`, `"usage"`, `"usag"usage"`, `ggggg"usage"g`, `"usage""usage"`} {
		f.Add([]byte(data), `"usage"`, uint8(4))
	}
	f.Add([]byte("aaab"), "aab", uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, text string, rare uint8) {
		if text == "" {
			return
		}
		m := NewMark(text, text[int(rare)%len(text)])
		if got, want := m.Index(data), bytes.Index(data, []byte(text)); got != want {
			t.Errorf("%q in %q: %d, want %d", text, data, got, want)
		}
		if m.In(data) != bytes.Contains(data, []byte(text)) {
			t.Errorf("%q in %q", text, data)
		}
	})
}

func TestMarkNeedsItsRareByte(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	NewMark("text", 'z')
}

// BenchmarkMark looks for a text that an event does not have.
func BenchmarkMark(b *testing.B) {
	data, text := []byte(tokenEvent), `"finish_reason":"abort"`
	mark := NewMark(text, 'b')
	b.Run("mark", func(b *testing.B) {
		for b.Loop() {
			if mark.In(data) {
				b.Fatal("it is there")
			}
		}
	})
	b.Run("bytes", func(b *testing.B) {
		for b.Loop() {
			if bytes.Contains(data, []byte(text)) {
				b.Fatal("it is there")
			}
		}
	})
}
