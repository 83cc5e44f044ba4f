package tokens

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// with returns a tokenizer.json with members beside a small model.
func with(members, model string) []byte {
	if model == "" {
		model = `{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"abab":3,"_":4,"Ġ":5,"Ġa":6},"merges":["a b","ab ab","Ġ a"]}`
	}
	return []byte("{" + members + `"model":` + model + "}")
}

// Small models of the other kinds.
const (
	unigramModel   = `{"type":"Unigram","unk_id":0,"vocab":[["?",0],["a",-1],["b",-1],["c",-2],["ab",-1.5],["bc",-2.6]]}`
	spaceModel     = `{"type":"Unigram","unk_id":0,"vocab":[["?",0],["_",-1],["_a",-1],["a",-1],["_b",-2]]}`
	wordPieceModel = `{"type":"WordPiece","unk_token":"?","continuing_subword_prefix":"##","max_input_chars_per_word":4,"vocab":{"?":0,"a":1,"##b":2,"##ba":3,"##a":4}}`
)

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name, members, model, text string
		want                       []uint32
	}{
		{"merges by rank", ``, ``, "babab", []uint32{1, 3}},
		{"characters without a token are dropped", ``, ``, "axb", []uint32{2}},
		{"an unknown token for each of them", ``, `{"type":"BPE","unk_token":"?","vocab":{"a":0,"?":1},"merges":[]}`, "xya", []uint32{1, 1, 0}},
		{"one for all in sequence", ``, `{"type":"BPE","unk_token":"?","fuse_unk":true,"vocab":{"a":0,"?":1},"merges":[]}`, "xyaz", []uint32{1, 0, 1}},
		{"their bytes", ``, `{"type":"BPE","byte_fallback":true,"vocab":{"a":0,"<0xC3>":1,"<0xA9>":2},"merges":[]}`, "éa", []uint32{1, 2, 0}},
		{"byte level with a space before", `"pre_tokenizer":{"type":"ByteLevel"},`, ``, "a", []uint32{6}},
		{"a whole word without merges", `"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},`,
			`{"type":"BPE","ignore_merges":true,"vocab":{"a":0,"b":1,"aab":2},"merges":[]}`, "aab aa", []uint32{2, 0, 0}},
		{"removed", `"pre_tokenizer":{"type":"Split","pattern":{"String":"_"},"behavior":"Removed"},`, ``, "a_b", []uint32{0, 1}},
		{"isolated", `"pre_tokenizer":{"type":"Split","pattern":{"String":"b"},"behavior":"Isolated"},`, ``, "ab", []uint32{0, 1}},
		{"merged with previous", `"pre_tokenizer":{"type":"Split","pattern":{"String":"b"},"behavior":"MergedWithPrevious"},`, ``, "abab", []uint32{2, 2}},
		{"merged with next", `"pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"MergedWithNext"},`, ``, "abab", []uint32{2, 2}},
		{"contiguous", `"pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"Contiguous"},`, ``, "aabab", []uint32{0, 0, 1, 0, 1}},
		{"inverted", `"pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"Removed","invert":true},`, ``, "ab", []uint32{0}},
		{"normalised", `"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"a"},{"type":"Replace","pattern":{"Regex":"x+"},"content":"b"}]},`, ``, "xx", []uint32{2}},
		{"around a text", `"post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"BertProcessing","sep":["b",1],"cls":["_",4]}]},`, ``, "a", []uint32{4, 0, 1}},
		{"template", `"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}],"special_tokens":{"x":{"ids":[8,9]}}},`, ``, "a", []uint32{8, 9, 0}},
		{"the largest sum of scores", ``, unigramModel, "abc", []uint32{4, 3}},
		{"unknown characters in sequence", ``, unigramModel, "xyaz", []uint32{0, 1, 0}},
		{"bytes of unknown characters", ``, `{"type":"Unigram","unk_id":0,"byte_fallback":true,"vocab":[["?",0],["<0x78>",0],["<0x79>",0],["a",0]]}`, "xyaz", []uint32{1, 2, 3, 0}},
		{"spaces that begin words", `"pre_tokenizer":{"type":"Metaspace","replacement":"_"},`, spaceModel, "a  a_", []uint32{2, 1, 2, 1}},
		{"no space before a text", `"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"never"},`, spaceModel, "a a", []uint32{3, 2}},
		{"a space before the whole text", `"added_tokens":[{"id":3,"content":"a"}],"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"first"},`, spaceModel, "bab", []uint32{4, 3, 0}},
		{"the longest pieces of a word", ``, wordPieceModel, "abab", []uint32{1, 3, 2}},
		{"a word that ends with none", ``, wordPieceModel, "abc", []uint32{0}},
		{"a word that is too long", ``, wordPieceModel, "ababa", []uint32{0}},
		{"BERT's text", `"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"lowercase":true},"pre_tokenizer":{"type":"BertPreTokenizer"},`,
			`{"type":"WordPiece","unk_token":"?","continuing_subword_prefix":"##","max_input_chars_per_word":9,"vocab":{"?":0,"ae":1,"!":2,"漢":3}}`, "\u00c4\u0000E\t!漢!", []uint32{1, 2, 3, 2}},
		{"words and what is between them", `"pre_tokenizer":{"type":"Whitespace"},`, wordPieceModel, "ab !a", []uint32{1, 2, 0, 1}},
		{"the longest added token", `"added_tokens":[{"id":7,"content":"x"},{"id":8,"content":"xx"},{"id":1,"content":"b"}],`, ``, "xxxab", []uint32{8, 7, 0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tokenizer, err := Read(with(c.members, c.model))
			if err != nil {
				t.Fatal(err)
			}
			if got := tokenizer.Append(nil, []byte(c.text), true); !slices.Equal(got, c.want) {
				t.Errorf("%q: got %d, want %d", c.text, got, c.want)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	for _, c := range []struct{ members, model, says string }{
		{``, `{"type":"Nope"}`, `model: type "Nope" is not supported`},
		{``, `{"type":"BPE","vocab":{},"merges":[]}`, "vocab is empty"},
		{``, `{"type":"Unigram","unk_id":0,"vocab":[]}`, "vocab is empty"},
		{``, `{"type":"Unigram","vocab":[["a",0]]}`, "unk_id is missing"},
		{``, `{"type":"Unigram","unk_id":1,"vocab":[["a",0]]}`, "unk_id is 1"},
		{``, `{"type":"Unigram","unk_id":0,"vocab":[["a",0],["a",-1]]}`, "twice"},
		{``, `{"type":"WordPiece","unk_token":"?","vocab":{"a":0}}`, "unk_token"},
		{``, `{"type":"WordPiece","unk_token":"a","vocab":{"a":0}}`, "continuing_subword_prefix"},
		{``, `{"type":"WordPiece","unk_token":"a","continuing_subword_prefix":"##","vocab":{"a":0}}`, "max_input_chars_per_word"},
		{`"pre_tokenizer":{"type":"ByteLevel"},`, unigramModel, "ByteLevel"},
		{`"pre_tokenizer":{"type":"ByteLevel"},`, wordPieceModel, "ByteLevel"},
		{`"pre_tokenizer":{"type":"Metaspace","replacement":"__"},`, unigramModel, "replacement"},
		{`"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"last"},`, unigramModel, "prepend_scheme"},
		{`"pre_tokenizer":{"type":"Metaspace","replacement":"_","add_prefix_space":false},`, unigramModel, "contradict"},
		{`"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"first"},`, unigramModel, "prepend_scheme first"},
		{`"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Metaspace","replacement":"_"},{"type":"Metaspace","replacement":"_"}]},`, unigramModel, "more than one Metaspace"},
		{`"pre_tokenizer":{"type":"CharDelimiterSplit","delimiter":""},`, ``, "delimiter"},
		{`"pre_tokenizer":{"type":"Punctuation","behavior":"Nope"},`, ``, "behavior"},
		{`"normalizer":{"type":"Precompiled","precompiled_charsmap":""},`, ``, "normalizer: precompiled_charsmap"},
		{`"normalizer":{"type":"Precompiled","precompiled_charsmap":"/////w=="},`, ``, "length of its table"},
		{`"normalizer":{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAAD/"},`, ``, "not UTF-8"},
		{``, `{"type":"BPE","vocab":{"a":0},"merges":["a b"]}`, "merges[0]"},
		{``, `{"type":"BPE","vocab":{"a":0},"merges":["ab"]}`, "space between"},
		{``, `{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}`, "two tokens"},
		{``, `{"type":"BPE","vocab":{"a":2000000},"merges":[]}`, "ids must be below"},
		{``, `{"type":"BPE","dropout":0.1,"vocab":{"a":0},"merges":[]}`, "dropout"},
		{``, `{"type":"BPE","unk_token":"b","vocab":{"a":0},"merges":[]}`, "unk_token"},
		{``, `{"type":"BPE","end_of_word_suffix":"</w>","vocab":{"a":0},"merges":[]}`, "end_of_word_suffix"},
		{``, `{"type":"BPE","continuing_subword_prefix":"##","vocab":{"a":0},"merges":[]}`, "continuing_subword_prefix"},
		{`"pre_tokenizer":{"type":"ByteLevel"},`, `{"type":"BPE","byte_fallback":true,"vocab":{"a":0},"merges":[]}`, "byte_fallback"},
		{`"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Nope"}]},`, ``, `normalizer.normalizers[1]: type "Nope"`},
		{`"normalizer":{"type":"Replace","pattern":{"Regex":"(?<=a)b"}},`, ``, "normalizer: regular expression"},
		{`"normalizer":{"type":"Replace","pattern":{"String":""}},`, ``, "normalizer: pattern"},
		{`"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]},`, ``, "ByteLevel"},
		{`"pre_tokenizer":{"type":"Nope"},`, ``, `pre_tokenizer: type "Nope"`},
		{`"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a++"},"behavior":"Isolated"},`, ``, "possessive"},
		{`"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a"},"behavior":"Nope"},`, ``, `behavior "Nope"`},
		{`"pre_tokenizer":{"type":"Split","pattern":{},"behavior":"Isolated"},`, ``, "pattern must be"},
		{`"post_processor":{"type":"Nope"},`, ``, `post_processor: type "Nope"`},
		{`"post_processor":{"type":"TemplateProcessing","single":[]},`, ``, "no sequence"},
		{`"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}]},`, ``, `no "x"`},
		{`"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}},{"Sequence":{"id":"A"}}]},`, ``, "single[1]"},
		{`"added_tokens":[{"id":9,"content":"x"}],`, ``, "would get 7"},
		{`"added_tokens":7,`, ``, "added_tokens"},
	} {
		_, err := Read(with(c.members, c.model))
		if err == nil {
			t.Errorf("%s %s is accepted", c.members, c.model)
		} else if !strings.HasPrefix(err.Error(), "reading tokenizer.json: ") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %s: the error does not say %q: %v", c.members, c.model, c.says, err)
		}
	}
}

// TestMemory makes ids of texts that are remembered in part, as those of a conversation are, and of more texts than are remembered.
func TestMemory(t *testing.T) {
	for _, path := range []string{"testdata/small/bytelevel.json", "testdata/small/roberta.json"} {
		cached, fresh := readFile(t, path), readFile(t, path)
		var text []byte
		for turn := range 40 {
			text = fmt.Appendf(text, "<|start|>%s\n%d<|end|>", strings.Repeat(strings.Join(sentences[turn%20:turn%20+6], "\n"), 1+turn%4), turn)
			fresh.memory, fresh.cut = memory{}, [utf8.RuneSelf]bool{}
			want := fresh.Append(nil, text, true)
			for range 2 {
				if got := cached.Append(nil, text, true); !slices.Equal(got, want) {
					t.Fatalf("%s: turn %d: other ids than those of the whole text", path, turn)
				}
			}
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	var m memory
	ids := make([]uint32, 1000)
	kept := 0
	for i := range 40_000 {
		text := fmt.Appendf(nil, "%04000d", i)
		m.add(text, hash(text), ids)
	}
	for i := range m {
		s := &m[i]
		for _, generation := range []map[uint64]*remembered{s.young, s.old} {
			for _, r := range generation {
				kept += len(r.text) + 4*len(r.ids) + overhead
			}
		}
	}
	if kept > memoryBytes || kept < memoryBytes/4 {
		t.Errorf("%d bytes are kept, at most %d may be", kept, memoryBytes)
	}
	last := fmt.Appendf(nil, "%04000d", 39_999)
	if m.find(last, hash(last)) == nil {
		t.Error("the last text is forgotten")
	}
	other := fmt.Appendf(nil, "%04000d", 39_998)
	if m.find(other, hash(last)) != nil {
		t.Error("a text has the ids of another with the same hash")
	}
}

// TestAtOnce has several goroutines use one tokenizer.
func TestAtOnce(t *testing.T) {
	tokenizer := readFile(t, "testdata/small/bytelevel.json")
	texts := smallTexts()
	var want [][]uint32
	for _, text := range texts {
		want = append(want, tokenizer.Append(nil, []byte(text), true))
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i, text := range texts {
				if got := tokenizer.Append(nil, []byte(text), true); !slices.Equal(got, want[i]) {
					t.Errorf("%q: got %d, want %d", text, got, want[i])
				}
			}
		})
	}
	wg.Wait()
}
