package tokens

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// families are the vocabularies that are compared, folders of .tools/vocabularies.
var families = []string{"qwen2_5", "qwen3", "llama3_1", "llama3_2", "deepseek_v3", "mistral_nemo", "command_r_plus", "gpt4o", "gptoss",
	"gemma2", "gemma3", "llama2", "internlm2", "yi"}

const tools = "../../.tools/"

// tokenizerFile returns the path of a family's tokenizer.json. Without it the test is skipped, and fails with CI=true.
func tokenizerFile(t testing.TB, family string) string {
	t.Helper()
	path := filepath.Join(tools, "vocabularies", family, "tokenizer.json")
	need(t, path)
	return path
}

func need(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Stat(path); err == nil {
		return
	} else if os.Getenv("CI") == "true" {
		t.Fatal(err)
	}
	t.Skipf("there is no %s: make .tools/vocabularies .tools/tokenizers", path)
}

func readFile(t testing.TB, path string) *Tokenizer {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tokenizer, err := Read(data)
	if err != nil {
		t.Fatal(err)
	}
	return tokenizer
}

// reference returns the ids of PyPI's tokenizers for each text: alone, and with special tokens around it.
func reference(t *testing.T, path string, texts []string) [][2][]uint32 {
	t.Helper()
	python := filepath.Join(tools, "tokenizers", "bin", "python")
	need(t, python)
	var in, out bytes.Buffer
	for _, text := range texts {
		in.WriteString(base64.StdEncoding.EncodeToString([]byte(text)) + "\n")
	}
	cmd := exec.Command(python, "testdata/reference.py", path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	var all [][2][]uint32
	lines := bufio.NewScanner(&out)
	lines.Buffer(nil, 1<<30)
	for lines.Scan() {
		var ids [2][]uint32
		if err := json.Unmarshal(lines.Bytes(), &ids); err != nil {
			t.Fatal(err)
		}
		all = append(all, ids)
	}
	return all
}

// compare fails for texts whose ids are not the reference's.
func compare(t *testing.T, path string, texts []string) {
	t.Helper()
	compareWith(t, path, texts, reference(t, path, texts))
}

func compareWith(t *testing.T, path string, texts []string, all [][2][]uint32) {
	t.Helper()
	if len(all) != len(texts) {
		t.Fatalf("there are ids of %d of %d texts", len(all), len(texts))
	}
	tokenizer := readFile(t, path)
	failed := 0
	for i, want := range all {
		for special, want := range want {
			got := tokenizer.Append(nil, []byte(texts[i]), special == 1)
			if slices.Equal(got, want) {
				continue
			}
			if failed++; failed > 10 {
				t.Fatal("and more")
			}
			at := 0
			for at < min(len(got), len(want)) && got[at] == want[at] {
				at++
			}
			t.Errorf("text %d, special %v: %.300q\nfrom id %d on got %d\nwant %d", i, special == 1, texts[i], at, got[at:min(len(got), at+12)], want[at:min(len(want), at+12)])
		}
	}
}

// addedTokens returns the texts of a file's added tokens.
func addedTokens(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, token := range f.AddedTokens {
		all = append(all, token.Content)
	}
	return all
}

// sampled are the families that are compared with the race detector: one of each kind of model.
var sampled = []string{"qwen3", "llama2"}

// TestIDsAreTheReferences compares all families on all texts. With the race detector it takes a sample of both; make test-all runs it
// without it too.
func TestIDsAreTheReferences(t *testing.T) {
	for _, family := range families {
		if raced && !slices.Contains(sampled, family) {
			continue
		}
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			path := tokenizerFile(t, family)
			if raced {
				compare(t, path, slices.Concat(sentences, randomTexts(100, addedTokens(t, path))))
				return
			}
			compare(t, path, slices.Concat(sentences, randomTexts(1000, addedTokens(t, path)),
				[]string{repositoryText(t, ".go", 60_000), repositoryText(t, ".md", 60_000), randomWords(10_000)}))
		})
	}
}

var update = flag.Bool("update", false, "record the ids of the small vocabularies anew; needs .tools/tokenizers")

// smallTexts are the texts that the small vocabularies are compared on, without the longest.
func smallTexts() (texts []string) {
	for _, s := range sentences {
		texts = append(texts, s[:min(len(s), 300)])
	}
	return append(texts, "<|start|> a <|end|> b", "a   <|end|>   <|end|> \n<|start|>", "x <mask> y<mask>z", "<nl>  a<nl>\n\n<nl>", "the whole wholesome awhole whole", "whole", "_whole é"+"whole",
		"café", "cafe\u0301 x", "<|start|><|start|><|start|>", "<|start|", "<|end|> <mask> <|end|>", "  <mask>  <nl>  <|end|>  ", "<nl> <mask>", "\u3000<mask>\u0085", "a <nl> whole")
}

// TestSmallVocabularies compares with ids that are recorded, so it needs nothing fetched.
func TestSmallVocabularies(t *testing.T) {
	files, err := filepath.Glob("testdata/small/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no vocabularies", err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			recorded := strings.TrimSuffix(path, ".json") + ".ids"
			texts := smallTexts()
			if *update {
				var out bytes.Buffer
				for _, ids := range reference(t, path, texts) {
					line, err := json.Marshal(ids)
					if err != nil {
						t.Fatal(err)
					}
					out.Write(append(line, '\n'))
				}
				if err := os.WriteFile(recorded, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			data, err := os.ReadFile(recorded)
			if err != nil {
				t.Fatal(err)
			}
			var all [][2][]uint32
			for line := range strings.Lines(string(data)) {
				var ids [2][]uint32
				if err := json.Unmarshal([]byte(line), &ids); err != nil {
					t.Fatal(err)
				}
				all = append(all, ids)
			}
			compareWith(t, path, texts, all)
		})
	}
}
