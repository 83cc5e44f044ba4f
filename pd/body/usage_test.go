package body

import "testing"

func TestUsage(t *testing.T) {
	cases := []struct {
		name, in string
		out      Usage
	}{
		{"chat", `{"id":"x","usage":{"prompt_tokens":100,"total_tokens":108,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":96}}}`, Usage{100, 96, 8}},
		{"chat without details", `{"usage":{"prompt_tokens":100,"completion_tokens":8,"prompt_tokens_details":null}}`, Usage{100, -1, 8}},
		{"responses", `{"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":96},"output_tokens":8}}`, Usage{100, 96, 8}},
		{"event of responses", `{"type":"response.completed","response":{"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":0},"output_tokens":6}}}`, Usage{5, 0, 6}},
		{"messages", `{"usage":{"input_tokens":4,"cache_read_input_tokens":96,"output_tokens":8}}`, Usage{100, 96, 8}},
		{"messages that fill the cache", `{"usage":{"input_tokens":11,"output_tokens":1,"cache_creation_input_tokens":160,"cache_read_input_tokens":0}}`, Usage{171, 0, 1}},
		{"messages without their input", `{"usage":{"output_tokens":8,"cache_read_input_tokens":3}}`, Usage{-1, 3, 8}},
		{"first event of messages", `{"type":"message_start","message":{"usage":{"input_tokens":100,"output_tokens":0}}}`, Usage{100, -1, 0}},
		{"with spaces", `{ "usage" : { "prompt_tokens" : 7 } }`, Usage{7, -1, -1}},
		{"null", `{"choices":[],"usage":null}`, NoUsage},
		{"absent", `{"choices":[]}`, NoUsage},
		{"in a text", `{"text":"\"usage\":{\"prompt_tokens\":3}"}`, NoUsage},
		{"elsewhere", `{"x":{"usage":{"prompt_tokens":3}}}`, NoUsage},
		{"no whole numbers", `{"usage":{"prompt_tokens":1.5,"completion_tokens":-1,"prompt_tokens_details":{"cached_tokens":"7"}}}`, NoUsage},
		{"beyond all bounds", `{"usage":{"prompt_tokens":18446744073709551617,"completion_tokens":3}}`, Usage{-1, -1, 3}},
		{"null count", `{"usage":{"prompt_tokens":null,"completion_tokens":3}}`, Usage{-1, -1, 3}},
		{"the last of two", `{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":2}}`, Usage{2, -1, -1}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var r UsageReader
			if got, ok := r.Event([]byte(c.in)); got != c.out || ok != (c.out != NoUsage) {
				t.Errorf("event: %+v, %v, want %+v", got, ok, c.out)
			}
			for _, size := range []int{31, 1, 3} {
				r.Reset()
				for _, chunk := range inChunks(c.in, size) {
					if _, err := r.Write(chunk); err != nil {
						t.Fatal(err)
					}
				}
				if got, ok := r.Usage(); got != c.out || ok != (c.out != NoUsage) {
					t.Errorf("chunks of %d bytes: %+v, %v, want %+v", size, got, ok, c.out)
				}
			}
		})
	}
}

func TestUsageOfBrokenEvent(t *testing.T) {
	var r UsageReader
	if u, ok := r.Event([]byte(`{"usage":{"prompt_tokens":1}]`)); ok || u != NoUsage {
		t.Errorf("got %+v", u)
	}
}

func TestMerge(t *testing.T) {
	start, delta := Usage{100, -1, 0}, Usage{4, 96, 8}
	if got, want := start.Merge(delta), (Usage{100, 96, 8}); got != want {
		t.Errorf("got %+v", got)
	}
	if got := NoUsage.Merge(delta); got != delta {
		t.Errorf("got %+v", got)
	}
}

func TestUsageAllocatesNothing(t *testing.T) {
	var r UsageReader
	in := []byte(`{"usage":{"prompt_tokens":100,"completion_tokens":8}}`)
	r.Event(in)
	if n := testing.AllocsPerRun(10, func() { r.Event(in) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
