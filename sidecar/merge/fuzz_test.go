package merge_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/merge"
)

// How a stream is cut into chunks makes no difference, the merged one has at most one end, and what was JSON is JSON.
func FuzzStream(f *testing.F) {
	f.Add(`{"id":"a","choices":[{"index":0}]}`, `{"choices":[],"usage":{"total_tokens":3,"completion_tokens":1}}`, uint8(7), false)
	f.Add(`{"error":{}}`, `{"index":1e9}`, uint8(1), true)
	f.Add("{}\n\ndata: [DONE]", "\xef\xbb\xbf{\"id\":1,\"id\":2}", uint8(3), false)
	f.Fuzz(func(t *testing.T, a, b string, cut uint8, own bool) {
		api := pd.APIChat
		if own {
			api = pd.APISGLang
		}
		left, right := events(a, "[DONE]"), events(b, a, "[DONE]")
		s, want := feed(t, api, 2, fed{0, left}, fed{1, right})
		var cuts []fed
		for i, stream := range []string{left, right} {
			for n := int(cut)%16 + 1; len(stream) > 0; {
				n = min(n, len(stream))
				cuts = append(cuts, fed{i, stream[:n]})
				stream = stream[n:]
			}
		}
		if _, got := feed(t, api, 2, cuts...); got != want {
			t.Errorf("in chunks\n%q, whole\n%q", got, want)
		}
		if !s.Done() {
			t.Errorf("no end: %q", want)
		}
		if strings.ContainsAny(a+b, "\r\n") || !json.Valid([]byte(a)) || !json.Valid([]byte(b)) {
			return
		}
		for data := range strings.SplitSeq(strings.TrimSuffix(want, "\n\n"), "\n\n") {
			if data = strings.TrimPrefix(data, "data: "); data != "[DONE]" && !json.Valid([]byte(data)) {
				t.Errorf("%q is no JSON", data)
			}
		}
	})
}

// Merged answers have the choices of all in order, numbered from 0.
func FuzzWhole(f *testing.F) {
	f.Add(`{"id":"a","choices":[{"index":0,"text":"x"}],"usage":{"completion_tokens":1}}`, `{"choices":[{"text":"y"}]}`)
	f.Add(`{"choices":[{"index":0},{"index":1}],"choices":[{"index":5}]}`, `{"choices":[{"index":{}}],"usage":{"completion_tokens_details":null}}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		if _, err := merge.Whole(pd.APISGLang, [][]byte{[]byte(a), []byte(b)}); err == nil && (a == "" || b == "") {
			t.Error("an answer was made of nothing")
		}
		got, err := merge.Whole(pd.APIChat, [][]byte{[]byte(a), []byte(b)})
		if err != nil || !json.Valid([]byte(a)) || !json.Valid([]byte(b)) {
			return
		}
		var said map[string]json.RawMessage // a struct's names would match in any case
		var choices []json.RawMessage
		if err := json.Unmarshal(got, &said); err != nil || json.Unmarshal(said["choices"], &choices) != nil {
			t.Fatalf("%s: %v", got, err)
		}
		for i, raw := range choices {
			var c map[string]json.RawMessage
			if json.Unmarshal(raw, &c) == nil && c["index"] != nil && string(c["index"]) != strconv.Itoa(i) {
				t.Errorf("choice %d has index %s in %s", i, c["index"], got)
			}
		}
	})
}
