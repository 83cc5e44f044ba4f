package relay

import (
	"fmt"
	"testing"

	"github.com/tandem-serving/tandem/pd/body"
)

func TestCorrectUsage(t *testing.T) {
	cases := []struct{ name, in, want string }{
		{"smaller", `{"usage":{"prompt_tokens_details":{"cached_tokens":100}}}`, `{"usage":{"prompt_tokens_details":{"cached_tokens":7}}}`},
		{"spaces stay", `{"usage" : {"prompt_tokens_details":{ "cached_tokens" : 1 } } }`, `{"usage" : {"prompt_tokens_details":{ "cached_tokens" : 7 } } }`},
		{"responses", `{"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":100,"cache_write_tokens":0}}}`,
			`{"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":7,"cache_write_tokens":0}}}`},
		{"the last event of responses", `{"response":{"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":100}}}}`,
			`{"response":{"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":7}}}}`},
		{"messages", `{"usage":{"input_tokens":0,"output_tokens":5,"cache_read_input_tokens":100}}`,
			`{"usage":{"input_tokens":93,"output_tokens":5,"cache_read_input_tokens":7}}`},
		{"messages, the other way round", `{"usage":{"cache_read_input_tokens":90,"cache_creation_input_tokens":8,"input_tokens":2}}`,
			`{"usage":{"cache_read_input_tokens":7,"cache_creation_input_tokens":8,"input_tokens":85}}`},
		{"messages without the count", `{"usage":{"input_tokens":100,"output_tokens":5}}`, ""},
		{"the first event of messages", `{"message":{"usage":{"input_tokens":100,"output_tokens":0}}}`, ""},
		{"elsewhere", `{"x":{"usage":{"prompt_tokens_details":{"cached_tokens":1}}}}`, ""},
		{"null", `{"usage":{"prompt_tokens_details":null}}`, ""},
		{"no usage", `{"choices":[]}`, ""},
		{"a string", `{"usage":{"prompt_tokens_details":{"cached_tokens":"1"}}}`, ""},
		{"in text", `{"text":"\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":1}}"}`, ""},
		{"no JSON", `{"usage":]`, ""},
		{"cut off behind the count", `{"usage":{"prompt_tokens_details":{"cached_tokens":1 `, ""},
		{"empty", ``, ""},
	}
	for in, want := range map[string]string{`{"usage":{"prompt_tokens_details":{"cached_tokens":1}`: `{"usage":{"prompt_tokens_details":{"cached_tokens":7}`,
		`{"usage":{"prompt_tokens_details":{"cached_tokens":1`: `{"usage":{"prompt_tokens_details":{"cached_tokens":1`} {
		if got := string(correctUsage([]byte(in), false, 7)); got != want {
			t.Errorf("the beginning %s became %s", in, got)
		}
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			want := c.want
			if want == "" {
				want = c.in
			}
			if got := string(correctUsage([]byte(c.in), true, 7)); got != want {
				t.Errorf("got %s", got)
			}
			for _, form := range []string{"data: %s\n\n", ": hi\r\nid: 1\r\ndata:%s\r\n\r\n", "event: x\ndata: %s\nretry: 1\n\n"} {
				var events body.Events
				err := events.Feed(fmt.Appendf(nil, form, c.in), func(e body.Event) error {
					if got := string(replaceData(e, correctUsage(e.Data, true, 7))); got != fmt.Sprintf(form, want) {
						t.Errorf("event became %q", got)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	t.Run("data of several lines stays", func(t *testing.T) {
		const event = "data: {\"usage\":\ndata: {\"prompt_tokens_details\":{\"cached_tokens\":1}}}\n\n"
		var events body.Events
		err := events.Feed([]byte(event), func(e body.Event) error {
			if got := string(replaceData(e, correctUsage(e.Data, true, 7))); got != event {
				t.Errorf("event became %q", got)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
