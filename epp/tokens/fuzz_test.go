package tokens

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// FuzzRead reads any file as tokenizer.json: it is refused, or makes ids of a text.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}`,
		`{"added_tokens":[{"id":3,"content":"x","lstrip":true}],"pre_tokenizer":{"type":"ByteLevel"},"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]}}`,
		`{"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Prepend","prepend":"_"},{"type":"Replace","pattern":{"String":" "},"content":"_"}]},"model":{"type":"BPE","unk_token":"a","fuse_unk":true,"vocab":{"a":0,"_":1},"merges":[]}}`,
		`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a+|b"},"behavior":"MergedWithNext"},"post_processor":{"type":"BertProcessing","cls":["a",0],"sep":["b",1]},"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}}`,
		`{"normalizer":{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAABhAA=="},"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"first"},"model":` + unigramModel + `}`,
		`{"normalizer":{"type":"BertNormalizer","clean_text":true},"pre_tokenizer":{"type":"BertPreTokenizer"},"model":` + wordPieceModel + `}`,
	} {
		f.Add([]byte(seed), "ab a b x  ")
	}
	f.Fuzz(func(t *testing.T, file []byte, text string) {
		if len(file) > 2000 {
			return
		}
		if tokenizer, err := Read(file); err == nil {
			tokenizer.Append(nil, []byte(text), true)
		}
	})
}

// FuzzAppend makes ids of any text: the same ones when words are cached, cut at boundaries, and all steps of pre-tokenization are
// done at once, as without.
func FuzzAppend(f *testing.F) {
	for _, text := range smallTexts() {
		f.Add(text)
	}
	files, err := filepath.Glob("testdata/small/*.json")
	if err != nil || len(files) == 0 {
		f.Fatal("no vocabularies", err)
	}
	var cold, warm []*Tokenizer
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, all := range []*[]*Tokenizer{&cold, &warm} {
			tokenizer, err := Read(data)
			if err != nil {
				f.Fatal(err)
			}
			*all = append(*all, tokenizer)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		for i := range cold {
			cold[i].idle, cold[i].scan, cold[i].boundaries = nil, nil, nil
			want := cold[i].Append(nil, []byte(text), true)
			prefix := []uint32{7}
			got := warm[i].Append(prefix, []byte(text), true)
			if got[0] != 7 || !slices.Equal(got[1:], want) {
				t.Fatalf("%s: %q: warm %d, cold %d", files[i], text, got, want)
			}
		}
	})
}
