package tokens

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// scanned are pre-tokenizers whose steps are done at once.
var scanned = map[string]string{
	"Qwen": `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated"},
		{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`,
	"DeepSeek": `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}"},"behavior":"Isolated"},{"type":"Split","pattern":{"Regex":"[一-龥぀-ゟ゠-ヿ]+"},"behavior":"Isolated"},
		{"type":"Split","pattern":{"Regex":"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_` + "`" + `{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated"},
		{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`,
	"Command R":       `{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false}]}`,
	"runs that share": `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"[a-m]+"},"behavior":"Isolated"},{"type":"Split","pattern":{"Regex":"[h-z]{1,2}"},"behavior":"Isolated"},{"type":"ByteLevel","add_prefix_space":false}]}`,
	"gaps":            `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"[0-9]"},"behavior":"Isolated"},{"type":"Split","pattern":{"Regex":"the| ?é+"},"behavior":"Isolated"},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`,
	"dropped gaps":    `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"[0-9]"},"behavior":"Isolated"},{"type":"Split","pattern":{"Regex":"\\p{L}+"},"behavior":"Removed","invert":true},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}`,
}

// TestScanned compares the ids when all steps are done at once with those when they are done one after the other.
func TestScanned(t *testing.T) {
	var file object
	readJSON(t, "testdata/small/bytelevel.json", &file)
	texts := slices.Concat(sentences, randomTexts(3000, nil), []string{repositoryText(t, ".go", 30_000), repositoryText(t, ".md", 30_000), randomWords(3000)})
	random := rand.New(rand.NewPCG(9, 10))
	for range 1000 {
		var b strings.Builder
		for range random.IntN(40) {
			b.WriteByte("aehtz019 \n'.é"[random.IntN(14)])
		}
		texts = append(texts, b.String())
	}
	for name, splits := range scanned {
		t.Run(name, func(t *testing.T) {
			file["pre_tokenizer"] = json.RawMessage(splits)
			data, err := json.Marshal(file)
			if err != nil {
				t.Fatal(err)
			}
			at, one := mustRead(t, data), mustRead(t, data)
			if at.scan == nil {
				t.Fatal("the steps are not done at once")
			}
			one.scan = nil
			for _, text := range texts {
				if got, want := at.Append(nil, []byte(text), false), one.Append(nil, []byte(text), false); !slices.Equal(got, want) {
					t.Fatalf("%q: at once %d, one after the other %d", text, got, want)
				}
			}
		})
	}
}

func mustRead(t *testing.T, data []byte) *Tokenizer {
	t.Helper()
	tokenizer, err := Read(data)
	if err != nil {
		t.Fatal(err)
	}
	return tokenizer
}
