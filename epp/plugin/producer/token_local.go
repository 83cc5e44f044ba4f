package producer

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/tokens"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

const (
	// maxLocalText is the longest prompt that is turned into ids in the picker (bytes): it takes one core for 0.1 s at most.
	maxLocalText = 1 << 20
	// localTimeout is how long a request waits for ids where there is no service.
	localTimeout = time.Second
)

// localTokens is an epp.Preparer that turns prompts of the completions API into token ids in the picker, and leaves what it cannot do to a
// tokenizer service, if there is one. Prompts of the chat API need the model's chat template, which it does not have.
type localTokens struct {
	models  map[string]*tokens.Tokenizer // by the name in requests
	service *tokenService                // nil = none
}

// readTokenizers reads the files of models. One that several models or an earlier configuration use is read once.
func readTokenizers(paths map[string]string, b *epp.Builder) (map[string]*tokens.Tokenizer, error) {
	models := make(map[string]*tokens.Tokenizer, len(paths))
	for model, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("the tokenizer of model %q: %w", model, err)
		}
		key := fmt.Sprintf("tokenizer %s of %d bytes and %s", path, info.Size(), info.ModTime())
		file := epp.Kept(b.Keep, key, func() *tokenizerFile { return readTokenizer(path) })
		if file.err != nil {
			return nil, fmt.Errorf("the tokenizer of model %q: %w", model, file.err)
		}
		models[model] = file.tokenizer
		if class := tokenizerClass(path); rebuilt[class] {
			b.Log.Warn("engines may make other token ids than the tokenizer.json says: compare with an engine's /tokenize", "model", model, "file", path, "tokenizer_class", class)
		}
	}
	return models, nil
}

// rebuilt are the classes whose tokenizers Transformers 5 builds by rules of its own, with the vocabulary alone from tokenizer.json.
// Transformers 5.19 makes other ids for DeepSeek V3 and Yi.
var rebuilt = map[string]bool{"LlamaTokenizer": true, "LlamaTokenizerFast": true}

// tokenizerClass returns what the tokenizer_config.json beside a tokenizer.json says, "" if there is none.
func tokenizerClass(path string) string {
	var config struct {
		Class string `json:"tokenizer_class"`
	}
	data, err := os.ReadFile(filepath.Join(filepath.Dir(path), "tokenizer_config.json"))
	if err != nil || json.Unmarshal(data, &config) != nil {
		return ""
	}
	return config.Class
}

// tokenizerFile is a tokenizer.json, or why it cannot be used.
type tokenizerFile struct {
	tokenizer *tokens.Tokenizer
	err       error
}

// Close implements io.Closer, so that a file is forgotten when no configuration names it any more.
func (f *tokenizerFile) Close() error { return nil }

func readTokenizer(path string) *tokenizerFile {
	data, err := os.ReadFile(path)
	if err != nil {
		return &tokenizerFile{err: err}
	}
	t, err := tokens.Read(data)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return &tokenizerFile{t, err}
}

// Timeout implements epp.Preparer.
func (l *localTokens) Timeout() time.Duration {
	if l.service != nil {
		return l.service.Timeout()
	}
	return localTimeout
}

// Close implements io.Closer.
func (l *localTokens) Close() error {
	if l.service != nil {
		return l.service.Close()
	}
	return nil
}

// Prepare implements epp.Preparer.
func (l *localTokens) Prepare(ctx context.Context, r *epp.Request) (add func(*epp.Request), err error) {
	if len(r.Prompt.IDs) > 0 {
		return nil, nil
	}
	if ids := l.ids(r); len(ids) > 0 {
		return func(r *epp.Request) { r.Prompt.SetIDs(ids) }, nil
	}
	if l.service != nil {
		return l.service.Prepare(ctx, r)
	}
	return nil, nil
}

// ids returns the token ids of a request's prompt, nil if they cannot be made here.
func (l *localTokens) ids(r *epp.Request) []uint32 {
	tokenizer := l.models[r.Model]
	if tokenizer == nil || r.API != pd.APICompletions || len(r.Prompt.Media) > 0 {
		return nil
	}
	text, special, ok := promptText(r.Body)
	if !ok {
		return nil
	}
	return tokenizer.Append(make([]uint32, 0, len(text)/4+1), []byte(text), special)
}

// What is read of a completions request.
const (
	wantPrompt = iota
	wantSpecial
	wantTruncated
	wantEmbeds
)

var promptMembers = body.NewTable(body.Want{Path: "prompt"}, body.Want{Path: "add_special_tokens"}, body.Want{Path: "truncate_prompt_tokens"},
	body.Want{Path: "prompt_embeds"})

// promptText returns a completions request's prompt, and whether the engine puts special tokens around it. It returns false if the prompt is
// not one string, or if the engine sees anything but that string.
func promptText(segments [][]byte) (text string, special, ok bool) {
	var whole body.Body
	var scan body.Scanner
	scan.Reset(promptMembers, body.Limits{}, nil)
	for _, s := range segments {
		whole.Append(s)
		if _, err := scan.Write(s); err != nil {
			return "", false, false
		}
	}
	if scan.Close() != nil {
		return "", false, false
	}
	for _, want := range []int{wantTruncated, wantEmbeds} {
		if m, found := scan.Find(want); found && m.Kind != body.Null {
			return "", false, false
		}
	}
	special = true
	if m, found := scan.Find(wantSpecial); found && m.Kind != body.Null {
		special = string(whole.Bytes(m.Value)) == "true"
	}
	m, found := scan.Find(wantPrompt)
	if !found || m.Kind != body.String {
		return "", false, false
	}
	raw := whole.Bytes(m.Value)
	if len(raw) > maxLocalText {
		return "", false, false
	}
	text, err := body.Text(raw)
	return text, special, err == nil
}
