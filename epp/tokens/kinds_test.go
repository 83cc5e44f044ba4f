package tokens

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// object is a JSON object of a tokenizer.json.
type object = map[string]any

// readJSON reads a file.
func readJSON(t *testing.T, path string, value any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, value); err != nil {
		t.Fatal(err)
	}
}

// writeTokenizer writes a tokenizer.json and returns its path.
func writeTokenizer(t *testing.T, file object) string {
	t.Helper()
	data, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// bertFile is the tokenizer.json of BERT's vocabulary, whose file marks the tokens that words begin with.
func bertFile(t *testing.T) string {
	path := filepath.Join(tools, "vocabularies", "bert", "vocab.json")
	need(t, path)
	var tokens []string
	readJSON(t, path, &tokens)
	vocab := object{}
	for i, token := range tokens {
		begins, ok := strings.CutPrefix(token, "▁")
		switch {
		case strings.HasPrefix(token, "["):
			vocab[token] = i
		case ok && begins != "":
			vocab[begins] = i
		default:
			vocab["##"+token] = i
		}
	}
	return writeTokenizer(t, object{
		"added_tokens":   []object{{"id": vocab["[MASK]"], "content": "[MASK]", "single_word": false, "lstrip": true, "rstrip": false, "normalized": false, "special": true}},
		"normalizer":     object{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": nil, "lowercase": true},
		"pre_tokenizer":  object{"type": "BertPreTokenizer"},
		"post_processor": object{"type": "BertProcessing", "sep": []any{"[SEP]", vocab["[SEP]"]}, "cls": []any{"[CLS]", vocab["[CLS]"]}},
		"model":          object{"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab},
	})
}

// nfkc returns SentencePiece's own table nmt_nfkc, which the models of T5 and XLM-RoBERTa have.
func nfkc(t *testing.T) object {
	t.Helper()
	f, err := os.Open("testdata/nmt_nfkc.charsmap.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	table, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return object{"type": "Precompiled", "precompiled_charsmap": table}
}

// monFile is the tokenizer.json of a Unigram model, as it is, or with another normalizer.
func monFile(t *testing.T, normalizer object) string {
	path := tokenizerFile(t, "mon")
	if normalizer == nil {
		return path
	}
	var file object
	readJSON(t, path, &file)
	file["normalizer"] = normalizer
	return writeTokenizer(t, file)
}

// TestUnigramAndWordPiece compares these models with the reference, as TestIDsAreTheReferences does for those of engines.
func TestUnigramAndWordPiece(t *testing.T) {
	kinds := map[string]func(*testing.T) string{
		"bert":              bertFile,
		"mon":               func(t *testing.T) string { return monFile(t, nil) },
		"mon with nmt_nfkc": func(t *testing.T) string { return monFile(t, nfkc(t)) },
	}
	small, err := filepath.Glob("testdata/small/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range small {
		kinds[filepath.Base(path)] = func(*testing.T) string { return path }
	}
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		t.Run(name, func(t *testing.T) {
			path := kinds[name](t)
			texts := slices.Concat(sentences, randomTexts(100, addedTokens(t, path)))
			if !raced {
				texts = slices.Concat(sentences, randomTexts(1000, addedTokens(t, path)), everyCharacter(),
					[]string{repositoryText(t, ".go", 60_000), repositoryText(t, ".md", 60_000), randomWords(10_000)})
			}
			compare(t, path, texts)
		})
	}
}

// everyCharacter returns texts that have every code point up to U+30000, each behind a letter and before a combining mark, 64 to a text.
func everyCharacter() (texts []string) {
	var b strings.Builder
	for r := rune(1); r < 0x30000; r++ {
		if r >= 0x4E20 && r < 0x9F00 || r >= 0xAC20 && r < 0xD780 || r >= 0xD800 && r < 0xF900 || r >= 0x17020 && r < 0x18700 || r >= 0x20020 && r < 0x2A600 {
			continue // much of the same
		}
		b.WriteString(" a")
		b.WriteRune(r)
		b.WriteString("\u0301")
		if r%64 == 63 {
			texts = append(texts, b.String())
			b.Reset()
		}
	}
	return append(texts, b.String())
}
