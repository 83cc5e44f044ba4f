package read_test

import (
	"encoding/json"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

// cut cuts text into chunks of the given sizes, over and over.
func cut(text, sizes []byte) (chunks [][]byte) {
	for i := 0; len(text) > 0; i++ {
		n := 1
		if len(sizes) > 0 {
			n = min(1+int(sizes[i%len(sizes)]), len(text))
		}
		chunks = append(chunks, text[:n])
		text = text[n:]
	}
	return chunks
}

// Whatever the chunks, the request is the same, and so is the refusal.
func FuzzReaderChunks(f *testing.F) {
	for i, text := range seeds() {
		for api := range len(pd.GenerateAPIs()) {
			f.Add(uint8(api), []byte(text), []byte{byte(i), 3, 30})
		}
	}
	// A type that is an image's in its first chunk.
	f.Add(uint8(0), []byte(`{"messages":[{"content":[{"type":"image                                "}]}]}`), []byte{byte(len(`{"messages":[{"content":[{"type":"image`) - 1), 200})
	f.Fuzz(func(t *testing.T, which uint8, text, sizes []byte) {
		apis := pd.GenerateAPIs()
		api := apis[int(which)%len(apis)]
		var whole read.Reader
		whole.Reset(post(api), 500, blocks)
		err := whole.Write(text)
		var want *epp.Request
		if err == nil {
			want, err = whole.Close(nil)
		}
		var parts read.Reader
		for _, sizes := range [][]byte{nil, sizes} {
			parts.Reset(post(api), 500, blocks)
			var got *epp.Request
			var gotErr error
			for _, chunk := range cut(text, sizes) {
				if gotErr = parts.Write(chunk); gotErr != nil {
					break
				}
			}
			if gotErr == nil {
				got, gotErr = parts.Close(nil)
			}
			// A body that is wrong and too large is refused for the first of the two that the reader meets.
			if len(text) > 500 && err != nil && gotErr != nil {
				continue
			}
			if !same(got, want) || (err == nil) != (gotErr == nil) || err != nil && pd.AsRefusal(err).Message != pd.AsRefusal(gotErr).Message {
				t.Fatalf("%v %q\nwhole: %+v, %v\nparts: %+v, %v", api, text, want, err, got, gotErr)
			}
		}
	})
}

// A string means to us what encoding/json makes of it: it counts and hashes as its plainest spelling does.
func FuzzReaderText(f *testing.F) {
	for _, s := range []string{`plain`, `\n\"\\\/`, `\ud83d\ude00`, `\ud83d`, `\ud83d\ud83d\ude00\ude00`, `\ud83d\n`, `\ud83d\"`, `\u4f60好`, `é\u00e9`} {
		f.Add([]byte(s))
		f.Add([]byte(s + s + s + `0123456789abcdef`))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		literal := slices.Concat([]byte(`"`), raw, []byte(`"`))
		var text string
		if !utf8.Valid(raw) || json.Unmarshal(literal, &text) != nil {
			return
		}
		plain, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			api          pd.API
			before, last string
		}{
			{pd.APICompletions, `{"prompt":`, `}`},
			{pd.APICompletions, `{"prompt":[`, `]}`},
			{pd.APIChat, `{"messages":[{"content":`, `}]}`},
		} {
			a, b := mustRead(t, c.api, c.before+string(literal)+c.last), mustRead(t, c.api, c.before+string(plain)+c.last)
			b.Bytes = a.Bytes // the spellings differ in length
			if want := (len(text) + 3) / 4; a.Prompt.Tokens != want || !same(a, b) {
				t.Fatalf("%s: %+v; as %s: %+v; want %d tokens", literal, a.Prompt, plain, b.Prompt, want)
			}
		}
	})
}
