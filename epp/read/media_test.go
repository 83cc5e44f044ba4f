package read_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// TestMedia: the images, audio and video of a prompt are told apart, each once, wherever they are.
func TestMedia(t *testing.T) {
	image := func(url string) string { return `{"type":"image_url","image_url":{"url":"` + url + `"}}` }
	says := func(parts ...string) string { return `{"role":"user","content":[` + strings.Join(parts, ",") + `]}` }
	chat := func(messages ...string) string { return `{"messages":[` + strings.Join(messages, ",") + `]}` }
	const text = `{"type":"text","text":"image_url"}`
	a, b := image("a"), image("b")
	for _, c := range []struct {
		name string
		api  pd.API
		body string
		want int
	}{
		{"text", pd.APIChat, chat(says(text), `{"role":"user","content":"image_url"}`), 0},
		{"an image", pd.APIChat, chat(says(a)), 1},
		{"an image and text", pd.APIChat, chat(says(text, a)), 1},
		{"the same twice", pd.APIChat, chat(says(a, text, a)), 1},
		{"the same in two messages", pd.APIChat, chat(says(a), says(a)), 1},
		{"two", pd.APIChat, chat(says(a, b)), 2},
		{"sound and video", pd.APIChat, chat(says(`{"type":"input_audio","input_audio":{"data":"x"}}`, `{"type":"video_url","video_url":{"url":"v"}}`)), 2},
		{"a part of another type", pd.APIChat, chat(says(`{"type":"file","file":{}}`)), 0},
		{"a tool", pd.APIChat, `{"tools":[{"type":"image_url"}],"messages":[]}`, 0},
		{"messages", pd.APIMessages, chat(says(`{"type":"image","source":{"data":"x"}}`)), 1},
		{"the result of a tool", pd.APIMessages, chat(says(`{"type":"tool_result","content":[{"type":"image","source":{}}]}`)), 1},
		{"responses", pd.APIResponses, `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]}`, 1},
		{"completions", pd.APICompletions, `{"prompt":"image_url"}`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := mustRead(t, c.api, c.body).Prompt.Media; len(got) != c.want {
				t.Errorf("%d items, want %d", len(got), c.want)
			}
		})
	}
	first, second := items(t, chat(says(a, b))), items(t, chat(says(text), says(b), says(a)))
	if !slices.Equal(first, second) {
		t.Errorf("the same items have the hashes %x and %x", first, second)
	}
	if other := items(t, chat(says(image("c")))); slices.Contains(first, other[0]) {
		t.Errorf("another item has the hash %x too", other)
	}
}

// TestMediaIsBounded: a body may have more items than are told apart.
func TestMediaIsBounded(t *testing.T) {
	var b strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&b, `,{"type":"image_url","n":%d}`, i)
	}
	if n := len(items(t, `{"messages":[{"content":[`+b.String()[1:]+`]}]}`)); n != 1024 {
		t.Errorf("%d items", n)
	}
}

// items returns the hashes of a chat body's items.
func items(t *testing.T, body string) []uint64 {
	t.Helper()
	return slices.Clone(mustRead(t, pd.APIChat, body).Prompt.Media)
}
